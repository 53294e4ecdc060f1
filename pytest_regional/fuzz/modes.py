"""Lanes: how much of a compile really happens while a program is judged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_regional._errors import RegionalError
from pytest_regional._text import unknown_name

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: ``structure``: everything up to Inductor (Dynamo, AOTAutograd, partitions, passes, the backend's caches); the
#: subgraphs are interpreted. ``fast``: Triton code for an emulated GPU. ``full``: C++ code, or a GPU.
LANES = ("structure", "fast", "full")


#: The backend for which PyTorch's caches are as much PyTorch's as the backend itself.
PYTORCHS_OWN = "torch"


class LaneError(RegionalError, ValueError):
    """A lane that does not exist, or that the device or the backend at hand cannot take."""


def lane_of(device: str) -> str:
    """Return the lane that a device under test takes unless told otherwise."""
    return "fast" if device.startswith("cuda-emulated") else "full"


def nearest_lane(regional: Regional, name: str) -> str:
    """Return the lane ``name``, or where device or backend cannot take it, the one of the device.

    Raises:
        LaneError: there is no such lane.
    """
    try:
        _check(regional, name)
    except LaneError:
        if name not in LANES:
            raise
        return lane_of(regional.device_under_test.name)
    return name


@contextlib.contextmanager
def in_lane(regional: Regional, name: str) -> Iterator[None]:
    """Compile in a lane while the context lasts.

    Raises:
        LaneError: there is no such lane, or this harness cannot take it; says why.
    """
    from pytest_regional._torch.dynamo import guards_untimed
    from pytest_regional._torch.inductor import interpreting_regions

    _check(regional, name)
    interpreting = interpreting_regions() if name == "structure" else contextlib.nullcontext()
    with guards_untimed(), interpreting:
        yield


@contextlib.contextmanager
def keeping_whole_results(regional: Regional, name: str) -> Iterator[None]:
    """Compile in a lane while the context lasts, and have whole results kept.

    PyTorch's regional backend keeps them only where PyTorch is told to; others have a cache of their own.

    Raises:
        LaneError: as :func:`in_lane`.
    """
    from pytest_regional._torch.config import forced_autograd_cache

    own = regional.supports("outer_cache")
    with in_lane(regional, name), contextlib.nullcontext() if own else forced_autograd_cache():
        yield


def _check(regional: Regional, name: str) -> None:
    if name not in LANES:
        raise LaneError(unknown_name("lane", name, LANES))
    device = regional.device_under_test.name
    if name != "structure" and name != lane_of(device):
        raise LaneError(f"lane {name!r} does not run on device {device!r}, whose lane is {lane_of(device)!r}")
    if name == "structure" and lane_of(device) == "fast":
        raise LaneError(f"lane 'structure' generates no code, so it has no use for device {device!r}: use 'cpu'")
    support = regional.supports("regions")
    if name == "structure" and not support:
        raise LaneError(
            f"lane 'structure' interprets what backend {regional.backend!r} hands to Inductor region by region, and it "
            f"disclaims regions ({support.reason}): use another lane"
        )
