"""``region``: PyTorch's own annotation, spelled shortly.

A program that uses it runs on PyTorch's own backend too, because nothing but ``torch.fx.traceback.annotate`` is left
of it: as a context manager, as a decorator of functions and methods, in eager mode and under ``fullgraph``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch.fx.traceback import annotate


class RegionMark(Protocol):
    """What :func:`region` returns: usable after ``with`` and after ``@``."""

    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> bool | None: ...

    def __call__(self, func: Any) -> Any:
        """Mark all ops that ``func`` makes."""


def region(
    name: str | int | None = None,
    *,
    configs: Mapping[str, Any] | None = None,
    after: Sequence[str | int] | None = None,
) -> RegionMark:
    """Mark the ops made inside for compilation by Inductor, as region ``name`` (the default region when left out).

    Args:
        name: Region id; ops of two ids never share a compiled partition.
        configs: Inductor configuration of this region alone, such as ``{"max_autotune": True}``.
        after: Ids of regions that have to run first, though no value says so; gradients run the other way round.
            PyTorch's own backends read over it.
    """
    mark: dict[str, Any] = {}
    if name is not None:
        mark["inductor_region"] = name
    if configs is not None:
        mark["inductor_configs"] = dict(configs)
    if after is not None:
        mark["inductor_after"] = list(after)
    manager: RegionMark = annotate({"compile_with_inductor": mark})
    return manager


__all__ = ["RegionMark", "region"]
