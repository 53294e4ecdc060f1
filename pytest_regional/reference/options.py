"""What a user may choose: ``torch.compile(fn, backend="regional", options={...})``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from pytest_regional.reference.failure import OnRegionError

Partitioner = Literal["default", "min_cut"]

_CHOICES: Mapping[str, tuple[object, ...]] = {
    "partitioner": ("default", "min_cut"),
    "share_identical": (True, False),
    "on_region_error": ("raise", "eager"),
}


class BackendOptionError(ValueError):
    """The backend was given an option that it does not have, or a value that the option does not take."""


@dataclass(frozen=True)
class BackendOptions:
    """Options of the backend ``regional``, checked.

    Attributes:
        partitioner: How AOTAutograd splits forward from backward: ``default`` or ``min_cut``.
        share_identical: Whether equal partitions, also of forward and backward, are compiled once.
        on_region_error: ``raise`` a RegionCompileError, or run that region ``eager`` with one warning.
    """

    partitioner: Partitioner = "default"
    share_identical: bool = True
    on_region_error: OnRegionError = "raise"

    def __post_init__(self) -> None:
        for option in fields(self):
            value, choices = getattr(self, option.name), _CHOICES[option.name]
            if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
                shown = " or ".join(map(repr, choices))
                raise BackendOptionError(f"option {option.name!r} of backend 'regional' is {value!r}: use {shown}.")

    @classmethod
    def merged(cls, given: Mapping[str, Any] | None, **keywords: Any) -> BackendOptions:
        """Combine the dictionary that ``torch.compile`` passes on with keywords; what is None counts as not given.

        Raises:
            BackendOptionError: for an option that does not exist, or that is given twice with two values.
        """
        chosen = {name: value for name, value in keywords.items() if value is not None}
        for name, value in (given or {}).items():
            if name not in _CHOICES:
                raise BackendOptionError(_unknown(name))
            if chosen.setdefault(name, value) != value:
                raise BackendOptionError(
                    f"option {name!r} of backend 'regional' is given twice: {chosen[name]!r} and {value!r}."
                )
        return cls(**cast("Any", chosen))


def _unknown(name: object) -> str:
    close = difflib.get_close_matches(str(name), _CHOICES, n=1, cutoff=0.5)
    nearest = f" (nearest: {close[0]})" if close else ""
    return (
        f"backend 'regional' has no option {name!r}{nearest}: it has {', '.join(_CHOICES)}. Settings of Inductor "
        f"belong into the annotation of a region, as inductor_configs."
    )
