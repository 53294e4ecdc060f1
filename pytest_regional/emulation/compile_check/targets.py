"""Architectures by name."""

from __future__ import annotations

import re
from typing import NamedTuple

from pytest_regional._text import unknown_name

DEFAULT_ARCHITECTURES = ("sm_80", "sm_90")
KNOWN_ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx90a", "gfx942")


class UnknownArchitectureError(ValueError):
    """A name that is no architecture; the message lists those there are."""


class Target(NamedTuple):
    """What Triton calls a target: the arguments of its ``GPUTarget``."""

    backend: str
    arch: int | str
    warp_size: int


def target_of(arch: str) -> Target:
    """Return the target called ``arch``.

    Raises:
        UnknownArchitectureError: there is none of that name.
    """
    if arch not in KNOWN_ARCHITECTURES:
        raise UnknownArchitectureError(unknown_name("architecture", arch, KNOWN_ARCHITECTURES))
    number = re.fullmatch(r"sm_(\d+)", arch)
    return Target("cuda", int(number[1]), 32) if number else Target("hip", arch, 64)
