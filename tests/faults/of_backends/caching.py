"""Faults of the outer cache: what its key lacks, what it finds that is not meant, what it never finds."""

from __future__ import annotations

import dataclasses
import itertools
import json
import struct
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from pytest_regional._torch.fx_graphs import ANNOTATION
from tests.faults.planting import Mutant, Patch

ANNOTATIONS = "suites/caching/test_annotations.py"
DAMAGE = "suites/caching/test_damage.py"
HITS = "suites/caching/test_hits.py"
SHAPES = "suites/caching/test_shapes.py"
SETTINGS = "suites/caching/test_settings.py"


# Keys


def _no_annotations(original: Any) -> Any:
    return lambda gm: iter(())


def _annotations_without(entry: str) -> Any:
    def replaced(original: Any) -> Any:
        def text(node: Any, custom: Any) -> str:
            value = custom.get(ANNOTATION)
            if isinstance(value, dict):
                custom = {**custom, ANNOTATION: {name: item for name, item in value.items() if name != entry}}
            made: str = original(node, custom)
            return made

        return text

    return replaced


def _annotations_without_places(original: Any) -> Any:
    def annotations(gm: Any) -> Iterator[str]:
        yield from sorted({line.split(":", 2)[2] for line in original(gm)})

    return annotations


def _details_with(**changes: Any) -> Any:
    def replaced(original: Any) -> Any:
        def details(*arguments: Any) -> Any:
            chosen = {name: make() if callable(make) else make for name, make in changes.items()}
            return dataclasses.replace(original(*arguments), **chosen)

        return details

    return replaced


def _of_ops_alone(original: Any) -> Any:
    """Take the ops and the inputs of a graph for all that decides over its code."""

    def details(lookup: Any, *others: Any) -> Any:
        inputs = [node.meta.get("example_value") for node in lookup.graph.graph.find_nodes(op="placeholder")]
        looks = [
            (str(value.shape), value.dtype, value.stride(), value.requires_grad)
            for value in inputs
            if isinstance(value, torch.Tensor)
        ]
        program = f"{lookup.graph.code}{looks}"
        return dataclasses.replace(original(lookup, *others), program=program, state="")

    return details


def _ranks_in_one(original: Any) -> Any:
    """Take what a graph says of ranks for numbers that do not matter."""

    def details(lookup: Any, *others: Any) -> Any:
        nodes = [node for node in lookup.graph.graph.nodes if node.op == "call_function"]
        calls = str([(str(node.target), len(node.args)) for node in nodes])
        return dataclasses.replace(original(lookup, *others), program=calls, groups=())

    return details


_numbers = itertools.count()


# Entries


def _regions_exchanged(original: Any) -> Any:
    """Give a loaded graph its regions in another order."""

    class Unpickler(original):  # type: ignore[misc]
        def __init__(self, stream: Any, regions: list[Any]) -> None:
            super().__init__(stream, regions[::-1])

    return Unpickler


def _constants_lost(original: Any) -> Any:
    def attribute(owner: Any, path: str) -> Any:
        value = original(owner, path)
        with unset_fake_temporarily():
            return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value

    return attribute


def _numbers_rounded(original: Any) -> Any:
    """Store numbers of the graph as float16."""

    def describe(gm: Any) -> Any:
        made = original(gm)
        made.nodes = [(op, target, _rounded(args), kwargs, name) for op, target, args, kwargs, name in made.nodes]
        return made

    return describe


def _rounded(args: Any) -> Any:
    return torch.fx.node.map_aggregate(
        args, lambda value: struct.unpack("e", struct.pack("e", value))[0] if type(value) is float else value
    )


def _believed(original: Any) -> Any:
    """Take the payload out of a container without looking at its checksum."""
    from pytest_regional.reference.caching import container

    def unseal(data: bytes, *, kind: str, key: str | None = None, where: str = "", machine: Any = None) -> bytes:
        _, _, header, payload = container._PREAMBLE.unpack_from(data)
        start = container._HEADER_AT + header
        json.loads(data[container._HEADER_AT : start])
        return data[start : start + payload]

    return unseal


def _training_not_stored(original: Any) -> Any:
    def save(self: Any, key: str, entry: Any) -> None:
        if getattr(entry, "compiled_bw", None) is None:
            original(self, key, entry)

    return save


def _counted_twice(original: Any) -> Any:
    def count(outcome: str, reason: str = "") -> None:
        for _ in range(2 if outcome == "hit" else 1):
            original(outcome, reason)

    return count


def _fault(
    name: str,
    sentence: str,
    oracles: tuple[str, ...],
    suites: tuple[str, ...],
    target: str,
    change: Any,
    *modes: str,
    **more: Any,
) -> Mutant:
    patches = (Patch(target, change, **more),)
    return Mutant(name, sentence, oracles, suites, patches, modes=modes or ("interpret", "caches"))


STALE = ("annotations_in_key", "caches")
DETAILS = "caching.outer:details_of"

FAULTS = (
    _fault(
        "key_without_annotations",
        "annotations are no part of the cache's key",
        STALE,
        (ANNOTATIONS,),
        "caching.outer:annotations_of",
        _no_annotations,
    ),
    _fault(
        "key_without_configs",
        "configs of annotations are no part of the key",
        STALE,
        (ANNOTATIONS,),
        "caching.outer:_text",
        _annotations_without("inductor_configs"),
    ),
    _fault(
        "key_without_ids",
        "region ids are no part of the key",
        STALE,
        (ANNOTATIONS,),
        "caching.outer:_text",
        _annotations_without("inductor_region"),
    ),
    _fault(
        "key_without_boundaries",
        "the key holds which annotations there are, and not where",
        STALE,
        (ANNOTATIONS,),
        "caching.outer:annotations_of",
        _annotations_without_places,
        "caches",
    ),
    _fault(
        "key_without_state",
        "the key is made of ops and inputs alone: no threads, precision, autocast",
        ("caches",),
        (SETTINGS,),
        DETAILS,
        _of_ops_alone,
    ),
    _fault(
        "key_without_shapes",
        "PyTorch's own key, of ops, shapes and settings, is left out",
        ("caches", "warm"),
        (SHAPES, SETTINGS, HITS),
        DETAILS,
        _details_with(program=""),
        "caches",
        "interpret",
    ),
    _fault(
        "key_without_ranks",
        "the key holds which ops there are, and not for which ranks: no sizes of groups, no constants",
        ("caches",),
        (SHAPES,),
        DETAILS,
        _ranks_in_one,
        "caches",
    ),
    _fault(
        "never_hits",
        "the key is another one each time",
        ("warm", "counters"),
        (HITS,),
        DETAILS,
        _details_with(format=lambda: next(_numbers)),
    ),
    _fault(
        "nothing_saved",
        "results are offered to the store and not kept",
        ("warm", "counters"),
        (HITS,),
        "caching.store:Store.save",
        lambda original: lambda self, key, payload: False,
    ),
    _fault(
        "training_not_saved",
        "results with a backward are not stored",
        ("warm", "counters"),
        (HITS,),
        "caching.outer:OuterCache._save",
        _training_not_stored,
    ),
    _fault(
        "hits_counted_twice",
        "a hit is counted twice",
        ("counters", "warm"),
        (HITS,),
        "caching.outer:count_outcome",
        _counted_twice,
    ),
    _fault(
        "loaded_regions_exchanged",
        "a stored graph comes back with its regions in another order",
        ("warm", "parity"),
        (HITS,),
        "caching.program:_Unpickler",
        _regions_exchanged,
        counted=False,
    ),
    _fault(
        "stored_constants_lost",
        "tensor constants of a stored graph come back as zeros",
        ("caches", "warm", "parity"),
        (HITS,),
        "caching.program:attribute",
        _constants_lost,
        "caches",
        "interpret",
    ),
    _fault(
        "stored_numbers_rounded",
        "numbers of a stored graph come back as float16",
        ("caches", "warm", "parity"),
        (HITS,),
        "caching.program:_describe",
        _numbers_rounded,
    ),
    Mutant(
        "guards_ignored",
        "an entry is used for sizes that its guards exclude",
        ("caches",),
        (SHAPES,),
        (
            Patch(
                "pytest_regional._torch.autograd_cache:GraphLookup.guards_hold",
                lambda original: lambda self, guards: True,
            ),
        ),
        errors=("*",),  # PyTorch asserts the guards of what it revives
    ),
    _fault(
        "damage_believed",
        "the checksum of an entry is not looked at",
        ("caches",),
        (DAMAGE,),
        "caching.store:unseal",
        _believed,
    ),
)
