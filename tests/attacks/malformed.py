"""Malformed findings: what a seeded generator makes of valid ones, and code injected into every text they hold."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CAMPAIGNS = ROOT / "docs" / "findings" / "campaigns"

#: Blocks, regions, settings, parameters; a sequence of each kind of event.
NAMES = (
    "torch-2.13.0/torch-annotations_in_key-restart-d94977df",
    "torch-2.15.0/aot_eager-compiles-run-c644481f",
    "torch-2.15.0/torch-caches-run-72f6e961",
    "torch-2.15.0/torch-caches-restart-97c7aea4",
)


def documents() -> list[Any]:
    """Return valid findings as plain data: together they have every field that there is."""
    kept = [json.loads((CAMPAIGNS / f"{name}.json").read_text()) for name in NAMES]
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

#: What stands where something else is due.
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3.5,
    1e308,
    -0.0,
    10**6,
    2**31,
    2**63,
    10**19,
    "",
    " ",
    "a",
    "0",
    "float32",
    "class",
    "None",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "C:\\windows",
    "a\x00b",
    "\ud800",
    "\x1b[2J\x1b]0;title\x07",
    "\u202e",
    "a\nimport os\n",
    "é" * 300,
    "x" * 100_000,
    [],
    [[]],
    [0] * 3000,
    [None],
    ["a"],
    {},
    {"": None},
    {"version": 1},
    {"__class__": "os.system"},
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
    """Yield a description and a document for every payload in every value, and for some as every name of a field.

    Fields are found by walking the documents, each once whatever number an item of a list has.
    """
    seen = set()
    for document in documents:
        for place in places(document):
            general = tuple("*" if isinstance(key, int) else key for key in place)
            holds_text = isinstance(at(document, place), (str, int, float, bool, type(None)))
            if general in seen:
                continue
            seen.add(general)
            for number, payload in enumerate(PAYLOADS):
                if holds_text:
                    yield f"{general} = {payload!r}", put(document, place, payload)
                if isinstance(place[-1], str) and number % 2 == 0:
                    yield f"{general} called {payload!r}", renamed(document, place, payload)
                    yield f"beside {general}: {payload!r}", put(document, (*place[:-1], payload), 1)


def mutants(documents: list[Any], seed: int, count: int) -> Iterator[bytes]:
    """Yield ``count`` files that were valid findings before one to three things happened to them."""
    draw = random.Random(seed)
    for _ in range(count):
        document = copy.deepcopy(draw.choice(documents))
        for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
            place = draw.choice(list(places(document)))
            document = draw.choice(_OF_DATA)(draw, document, place)
        text = json.dumps(document)
        yield draw.choice(_OF_BYTES)(draw, text.encode()) if draw.random() < 0.3 else text.encode()


def _replaced(draw: random.Random, data: Any, place: tuple[Any, ...]) -> Any:
    return put(data, place, draw.choice(VALUES))


def _moved(draw: random.Random, data: Any, place: tuple[Any, ...]) -> Any:
    return put(data, place, copy.deepcopy(at(data, draw.choice(list(places(data))))))


def _near(draw: random.Random, data: Any, place: tuple[Any, ...]) -> Any:
    value = at(data, place)
    if isinstance(value, bool):
        return put(data, place, int(value))
    if isinstance(value, (int, float)):
        return put(data, place, draw.choice((value + 1, -value, value * 1000, float(value), str(value), 2**40)))
    if isinstance(value, str):
        return put(data, place, draw.choice((value[:-1], value * 2, value.upper(), [value], value + "\n")))
    return _removed(draw, data, place)


def _removed(draw: random.Random, data: Any, place: tuple[Any, ...]) -> Any:
    made = copy.deepcopy(data)
    del at(made, place[:-1])[place[-1]]
    return made if len(made) else data


def _repeated(draw: random.Random, data: Any, place: tuple[Any, ...]) -> Any:
    value = at(data, place)
    return put(data, place, value * draw.choice((2, 50)) if isinstance(value, list) else [value])


def _added(draw: random.Random, data: Any, place: tuple[Any, ...]) -> Any:
    if isinstance(at(data, place[:-1]), dict):
        return put(data, (*place[:-1], draw.choice(("event", "sequence", "x", "__init__"))), 1)
    return _repeated(draw, data, place[:-1] or place)


_OF_DATA = (_replaced, _replaced, _replaced, _moved, _near, _near, _removed, _repeated, _added)


def _cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def _flipped(draw: random.Random, data: bytes) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]


def _number(draw: random.Random, data: bytes) -> bytes:
    text = draw.choice((b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"-0", b"1" * 25))
    return data.replace(draw.choice((b": 0", b": 1", b"[0", b"true", b"null")), b": " + text, 1)


def _nested(draw: random.Random, data: bytes) -> bytes:
    depth = draw.choice((50, 100_000))
    opening, closing = draw.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return data.replace(b"null", opening * depth + b"1" + closing * depth, 1)


def _twice(draw: random.Random, data: bytes) -> bytes:
    name = draw.choice((b'"version": 1', b'"oracle": "x"', b'"backend": "torch"'))
    return data[:1] + name + b", " + data[1:]


def _not_text(draw: random.Random, data: bytes) -> bytes:
    return draw.choice(
        (b"\xff\xfe" + data, b"\xef\xbb\xbf" + data, data.replace(b"a", b"\xe9", 1), data + b"\x00", b"")
    )


_OF_BYTES = (_cut, _flipped, _number, _nested, _twice, _not_text)
