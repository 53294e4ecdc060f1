"""Faults of sharing: partitions that are not the same are taken for the same, or the same ones for different."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from tests.faults.planting import Mutant, Patch

COUNTS = "suites/regions/test_partition_counts.py"
CONFIGS = "suites/regions/test_configs.py"
ALMOST = "suites/regions/test_almost_identical.py"
EDGES = "suites/control_deps/test_region_edges.py"
SUITES = (ALMOST, CONFIGS, COUNTS, EDGES)


def _numbers_alike(original: Any) -> Any:
    def plain(self: Any, value: Any) -> Any:
        made = original(self, value)
        return "number" if isinstance(made, float) else made

    return plain


def _dimensions_alike(original: Any) -> Any:
    def plain(self: Any, value: Any) -> Any:
        made = original(self, value)
        return "number" if type(made) is int else made

    return plain


def _without_strides(original: Any) -> Any:
    def geometry(self: Any, value: torch.Tensor) -> Any:
        yield next(iter(original(self, value)))

    return geometry


def _without_configs(original: Any) -> Any:
    def fingerprint(request: Any) -> Any:
        made = original(request)
        return dataclasses.replace(made, token=made.token[1:])

    return fingerprint


def _without_results(original: Any) -> Any:
    """Leave out which values leave the region, but not how many."""

    def fingerprint(request: Any) -> Any:
        made = original(request)
        configs, lines, _, order = made.token
        return dataclasses.replace(made, token=(configs, lines, len(request.results), order))

    return fingerprint


def _without_dtypes(original: Any) -> Any:
    def value(self: Any, found: Any) -> Any:
        made = original(self, found)
        return (*made[:1], *made[2:]) if isinstance(found, torch.Tensor) else made

    return value


def _without_shapes(original: Any) -> Any:
    def geometry(self: Any, value: torch.Tensor) -> Any:
        list(original(self, value))  # symbols are noted
        return (value.dim(),)

    return geometry


def _without_memory(original: Any) -> Any:
    """Leave out which values share memory."""

    def value(self: Any, found: Any) -> Any:
        made = original(self, found)
        return (*made[:5], *made[6:]) if isinstance(found, torch.Tensor) else made

    return value


def _without_order(original: Any) -> Any:
    def fingerprint(request: Any) -> Any:
        made = original(request)
        return dataclasses.replace(made, token=made.token[:3])

    return fingerprint


_numbers = iter(range(10**9))


def _never_alike(original: Any) -> Any:
    def fingerprint(request: Any) -> Any:
        made = original(request)
        return dataclasses.replace(made, token=(*made.token, next(_numbers)))

    return fingerprint


WRONG = ("parity", "compiles", "region_boundary", "plan")


def _fault(
    name: str, sentence: str, target: str, change: Any, oracles: tuple[str, ...] = WRONG, mode: str = "interpret"
) -> Mutant:
    more: Any = {"errors": ("*",), "needs": ("region:near duplicates",), "modes": (mode,)}
    return Mutant(f"sharing_{name}", sentence, oracles, SUITES, (Patch(target, change),), **more)


FAULTS = (
    _fault("ignores_numbers", "x * 2.0 is shared with x * 3.0", "compile_regions:Description._plain", _numbers_alike),
    _fault(
        "ignores_dimensions",
        "a sum over rows is shared with one over columns",
        "compile_regions:Description._plain",
        _dimensions_alike,
    ),
    _fault(
        "ignores_strides",
        "inputs of other strides are taken for the same",
        "compile_regions:Description._geometry",
        _without_strides,
        mode="emulated",  # what is interpreted takes any
    ),
    _fault(
        "ignores_configs",
        "equal partitions under other configs are shared",
        "compile_regions:fingerprint",
        _without_configs,
        ("configs", "plan"),
    ),
    _fault(
        "ignores_results",
        "partitions that return other values of theirs are shared",
        "compile_regions:fingerprint",
        _without_results,
    ),
    _fault(
        "ignores_dtypes",
        "partitions of other dtypes are shared",
        "compile_regions:Description.value",
        _without_dtypes,
        mode="emulated",
    ),
    _fault(
        "ignores_shapes",
        "partitions of other shapes are shared",
        "compile_regions:Description._geometry",
        _without_shapes,
        mode="emulated",
    ),
    _fault(
        "ignores_order",
        "partitions with other order edges are shared",
        "compile_regions:fingerprint",
        _without_order,
        ("order",),
        "emulated",
    ),
    _fault(
        "dropped",
        "identical partitions are compiled one by one",
        "compile_regions:fingerprint",
        _never_alike,
        ("plan", "counters"),
    ),
)
