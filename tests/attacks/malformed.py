"""Findings with code injected into every text that they hold."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: One valid finding a line: blocks, regions, settings, parameters; a sequence of each kind of event.
VALID = Path(__file__).with_name("valid_findings.jsonl")


def documents() -> list[Any]:
    """Return valid findings as plain data: together they have every field that there is."""
    kept = [json.loads(line) for line in VALID.read_text(encoding="utf-8").splitlines()]
    everything = {
        **kept[0],
        "program": {
            "version": 1,
            "arguments": [
                {
                    "shape": [2, 3],
                    "dtype": "float64",
                    "layout": "transposed",
                    "content": "positive",
                    "requires_grad": True,
                    "dynamic": [0],
                },
                {"shape": [2, 3], "dtype": "float64", "layout": "transposed", "alias_of": 0},
                {"shape": [2], "dtype": "int64", "content": "index", "below": 2},
            ],
            "blocks": [
                {
                    "parameters": [0],
                    "steps": [
                        {
                            "operator": "sin",
                            "operands": [0],
                            "results": [1],
                            "scope": [{"region": "b", "configs": {"max_fusion_size": 8}, "after": []}],
                        }
                    ],
                    "result": 1,
                }
            ],
            "steps": [
                {
                    "operator": "mul_number",
                    "operands": [0],
                    "parameters": {"value": 0.5},
                    "results": [3],
                    "scope": [{"region": "a", "configs": {"epilogue_fusion": False}, "after": ["b", 7]}],
                },
                {
                    "operator": "sum",
                    "operands": [3],
                    "parameters": {"dim": 1, "keepdim": True},
                    "results": [4],
                    "scope": [{"context": "tag"}],
                },
                {"operator": "new_zeros", "operands": [0], "parameters": {"shape": [2, 3]}, "results": [5]},
                {"operator": "call", "operands": [3], "results": [6], "blocks": [0]},
            ],
            "outputs": [4, 0],
            "training": True,
            "dynamic": None,
        },
    }
    sequence = {
        **kept[2],
        "sequence": [
            {"event": "compile", "key": {"program": "plain", "region": "a", "fusion": 8, "passes": ["u", None]}},
            {"event": "new process", "key": {"timing": "early", "size": 7, "dynamic": True, "state": "autocast"}},
            {"event": "damage", "number": 3, "kind": "everything lost"},
            {"event": "restart"},
            {"event": "clear"},
        ],
    }
    return [everything, sequence, *kept]


DOCUMENTS = documents()

#: Called by injected code, which so shows that it ran.
RAN = "regional_attack_ran"

#: Code for the middle of an expression, of a call, of a list, of a text, of a comment, of a ``with``, of a name.
PAYLOADS = (
    f"{RAN}()",
    f"0) or {RAN}() or (0",
    f"0); {RAN}(); (0",
    f"0]; {RAN}(); [0",
    f"0\n{RAN}()\n",
    f"0\r{RAN}()\r",
    f"0\x0c\u2028{RAN}()\n",
    f'"); {RAN}(); ("',
    f'"""\n{RAN}()\n"""',
    f"'); {RAN}(); ('",
    f"x\\\n\n{RAN}()",
    f"x = {RAN}(); x",
    f"x[{RAN}()]",
    f"os import path; {RAN}(); from os",
    f"float32).to({RAN}()",
    f"clone().float32 if not {RAN}() else torch.float32",
    f"{{{RAN}()}}",
    f"#\n{RAN}()",
    f"../../{RAN}",
    f"/tmp/{RAN}",
)


def places(data: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in ``data`` but the document itself."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*before, key)
        yield from places(value, (*before, key))


def at(data: Any, place: tuple[Any, ...]) -> Any:
    """Return the value at ``place``."""
    for key in place:
        data = data[key]
    return data


def put(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of ``data`` with ``value`` at ``place``."""
    made = copy.deepcopy(data)
    at(made, place[:-1])[place[-1]] = value
    return made


def renamed(data: Any, place: tuple[Any, ...], name: str) -> Any:
    """Return a copy of ``data`` with the field at ``place`` called ``name``."""
    made = copy.deepcopy(data)
    holder = at(made, place[:-1])
    holder[name] = holder.pop(place[-1])
    return made


def injections(documents: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield a description and a document for payloads in every value and as every name of a field.

    Fields are found by walking the documents, each once whatever number an item of a list has. Texts, and names that
    are read as they are, get every payload; other places a fifth of them each, in turns.
    """
    seen = set()
    for document in documents:
        for place in places(document):
            general = tuple("*" if isinstance(key, int) else key for key in place)
            if general in seen:
                continue
            seen.add(general)
            fifth = PAYLOADS[len(seen) % 5 :: 5]
            value = at(document, place)
            if isinstance(value, (str, int, float, bool, type(None))):
                # The two originals are read as the program and the sequence are.
                is_text = isinstance(value, str) and not general[0].startswith("original_")
                for payload in PAYLOADS if is_text else fifth:
                    yield f"{general} = {payload!r}", put(document, place, payload)
            if isinstance(place[-1], str):
                is_free = general[-2:-1] and general[-2] in ("configs", "parameters", "settings")
                for payload in PAYLOADS if is_free else fifth:
                    yield f"{general} called {payload!r}", renamed(document, place, payload)
                    yield f"beside {general}: {payload!r}", put(document, (*place[:-1], payload), 1)
