"""The user's options: ``torch.compile(fn, backend="regional", options={...})``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch.config import TIMINGS, Timing

OnRegionError = Literal["raise", "eager"]

Partitioner = Literal["default", "min_cut"]


@dataclass(frozen=True)
class BackendOptions:
    """Validated options of the backend ``regional``.

    Attributes:
        partitioner: How AOTAutograd splits forward from backward: ``default`` or ``min_cut``.
        share_identical: Whether equal partitions, also of forward and backward, are compiled once.
        on_region_error: ``raise`` a RegionCompileError, or run that region ``eager`` with one warning.
        outer_cache: Whether results of whole graphs are looked up on disk and stored there.
        pre_grad_pass_timing: ``early``, ``late`` or ``default``; None for Inductor's configuration.

    Every field is part of the cache key, unless it says otherwise.
    """

    partitioner: Partitioner = field(default="default", metadata={"choices": ("default", "min_cut")})
    share_identical: bool = field(default=True, metadata={"choices": (True, False)})
    on_region_error: OnRegionError = field(default="raise", metadata={"choices": ("raise", "eager")})
    outer_cache: bool = field(default=True, metadata={"choices": (True, False), "in_key": False})
    # The key includes its effect: the graph after early passes, or the uuids of late ones.
    pre_grad_pass_timing: Timing | None = field(default=None, metadata={"choices": (None, *TIMINGS), "in_key": False})

    def __post_init__(self) -> None:
        for option in fields(self):
            value, choices = getattr(self, option.name), option.metadata.get("choices")
            if choices and not any(
                value is choice or (isinstance(value, str) and value == choice) for choice in choices
            ):
                shown = " or ".join(map(repr, choices))
                raise RegionalValueError(f"option {option.name!r} of backend 'regional' is {value!r}: use {shown}.")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the options."""
        return tuple(option.name for option in fields(cls))

    @classmethod
    def merged(cls, given: Mapping[str, Any] | None, **keywords: Any) -> BackendOptions:
        """Combine the dictionary from ``torch.compile`` with keywords; None counts as not given.

        Raises:
            RegionalValueError: an unknown option, or one given twice with two values.
        """
        chosen = {name: value for name, value in keywords.items() if value is not None}
        for name, value in (given or {}).items():
            if name not in cls.names():
                close = difflib.get_close_matches(str(name), cls.names(), n=1, cutoff=0.5)
                nearest = f" (nearest: {close[0]})" if close else ""
                raise RegionalValueError(
                    f"backend 'regional' has no option {name!r}{nearest}: it has {', '.join(cls.names())}. Settings of "
                    f"Inductor belong in the annotation of a region, as inductor_configs."
                )
            if chosen.setdefault(name, value) != value:
                raise RegionalValueError(
                    f"option {name!r} of backend 'regional' is given twice: {chosen[name]!r} and {value!r}."
                )
        return cls(**cast("Any", chosen))
