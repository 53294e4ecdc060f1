"""Modes: how much of a compile really happens while a program is checked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import unknown_name
from pytest_regional._torch.config import forced_autograd_cache
from pytest_regional._torch.dynamo import guards_untimed
from pytest_regional._torch.inductor import interpreting_regions

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: ``interpret``: everything up to Inductor (Dynamo, AOTAutograd, partitions, passes, the backend's caches); the
#: subgraphs are interpreted. ``graph``: the same without Dynamo, for the programs whose graph can be written down
#: (:mod:`pytest_regional.fuzz.graph_capture`). ``aten``: without AOTAutograd, too; the backend's graph pass gets ATen
#: graphs (:mod:`pytest_regional.fuzz.oracles.aten_run`). ``emulated``: Triton code for an emulated GPU. ``native``: C++
#: code, or a GPU.
MODES = ("aten", "graph", "interpret", "emulated", "native")

#: Modes in which a program is compiled: it trains, is called again, and caches answer.
COMPILED = ("graph", "interpret", "emulated", "native")

#: Modes whose graphs do not come from Dynamo: what only such a mode shows is no finding.
WITHOUT_DYNAMO = ("aten", "graph")

#: Modes that generate no code.
INTERPRETED = ("aten", "graph", "interpret")


def mode_of(device: str) -> str:
    """Return the mode that a device under test takes unless told otherwise."""
    return "emulated" if device.startswith("cuda-emulated") else "native"


def nearest_mode(regional: Regional, name: str) -> str:
    """Return the mode ``name``, or where device or backend cannot take it, the one of the device.

    Raises:
        RegionalValueError: there is no such mode.
    """
    try:
        _check(regional, name)
    except RegionalValueError:
        if name not in MODES:
            raise
        return mode_of(regional.device_under_test.name)
    return name


@contextlib.contextmanager
def in_mode(regional: Regional, name: str) -> Iterator[None]:
    """Compile in a mode while the context lasts.

    Raises:
        RegionalValueError: there is no such mode, or this harness cannot take it; says why.
    """
    _check(regional, name)
    interpreting = interpreting_regions() if name in INTERPRETED else contextlib.nullcontext()
    with guards_untimed(), interpreting:
        yield


@contextlib.contextmanager
def keeping_whole_results(regional: Regional, name: str) -> Iterator[None]:
    """Compile in a mode while the context lasts, and have whole results kept.

    A backend without an outer cache has PyTorch's, which keeps whole results only under ``force_autograd_cache``.

    Raises:
        RegionalValueError: as :func:`in_mode`.
    """
    own = regional.supports("outer_cache")
    with in_mode(regional, name), contextlib.nullcontext() if own else forced_autograd_cache():
        yield


def _check(regional: Regional, name: str) -> None:
    if name not in MODES:
        raise RegionalValueError(unknown_name("mode", name, MODES))
    device = regional.device_under_test.name
    if name not in INTERPRETED and name != mode_of(device):
        raise RegionalValueError(f"mode {name!r} does not run on device {device!r}, whose mode is {mode_of(device)!r}")
    if name in INTERPRETED and mode_of(device) == "emulated":
        raise RegionalValueError(f"mode {name!r} generates no code, so it has no use for device {device!r}: use 'cpu'")
    support = regional.supports("regions")
    if name in INTERPRETED and not support:
        raise RegionalValueError(
            f"mode {name!r} interprets what backend {regional.backend!r} hands to Inductor region by region, and it "
            f"disclaims regions ({support.reason}): use another mode"
        )
    if name == "aten" and regional._spec.graph_pass is None:
        raise RegionalValueError(
            f"mode 'aten' hands graphs to the graph pass of a backend, and the BackendSpec of {regional.backend!r} "
            f"gives none (graph_pass): use mode 'graph'"
        )
