"""``region``: a short form of PyTorch's own annotation.

A program that uses it runs on PyTorch's own backend too, because nothing but ``torch.fx.traceback.annotate`` is left
of it: as a context manager, as a decorator of functions and methods, in eager mode and under ``fullgraph``.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, Protocol, TypeVar, overload

from torch.fx.traceback import annotate

from pytest_regional._base.errors import RegionalError, RegionalWarning

Function = TypeVar("Function", bound=Callable[..., Any])


class AnnotationError(RegionalError, ValueError):
    """An annotation of the program is not understood; backends raise a subclass that says which, and where."""


class AnnotationWarning(RegionalWarning):
    """An annotation has a key that nothing reads and that is similar to one that is read."""


def misspelt_text(key: str) -> str:
    """Return what to say of an annotation whose key is next to that of regional compilation."""
    return (
        f"an annotation has the key {key!r}, which nothing reads, so that its ops run eager: did you mean "
        f"'compile_with_inductor'? pytest_regional.region(...) writes the key"
    )


class RegionMark(Protocol):
    """What :func:`region` returns: usable after ``with`` and after ``@``."""

    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> bool | None: ...

    def __call__(self, func: Any) -> Any:
        """Mark all ops that ``func`` makes."""


@overload
def region(name: Function, /) -> Function: ...


@overload
def region(
    name: str | int | None = None,
    *,
    configs: Mapping[str, Any] | None = None,
    after: Sequence[str | int] | None = None,
) -> RegionMark: ...


def region(
    name: Any = None,
    *,
    configs: Mapping[str, Any] | None = None,
    after: Sequence[str | int] | None = None,
) -> Any:
    """Mark the ops made inside for compilation by Inductor, as region ``name`` (the default region when left out).

    ``@region`` without parentheses is ``@region()``. Integers may be arguments of the compiled function: each value is
    compiled for itself, as the id of a region has to be known when it is.

    Args:
        name: Region id; ops of two ids never share a compiled partition. A string, an integer, an enumeration member,
            or a tuple of these.
        configs: Inductor configuration of this region alone, such as ``{"max_autotune": True}``.
        after: Ids of regions that have to run first, though no value says so; gradients run the other way round.
            PyTorch's own backends ignore it.

    Raises:
        AnnotationError: ``name`` is no region id.
        TypeError: ``name`` is a module or a class, or ``after`` is one id and no list of them.
    """
    if callable(name):
        return region()(_function(name))
    if isinstance(after, (str, int)):
        raise TypeError(f"region: after takes a list of region ids, as in after=[{after!r}], not {after!r} alone")
    mark: dict[str, Any] = {}
    if name is not None:
        _require_region_id(name)
        mark["inductor_region"] = _known_at_compile_time(name)
    if configs is not None:
        mark["inductor_configs"] = {key: _known_at_compile_time(configs[key]) for key in configs}
    if after is not None:
        mark["inductor_after"] = [_known_at_compile_time(earlier) for earlier in after]
    manager: RegionMark = annotate({"compile_with_inductor": mark})
    return manager


def _function(decorated: Any) -> Any:
    """Return what ``@region`` stands above, where that can be decorated."""
    if isinstance(decorated, (FunctionType, MethodType)):
        return decorated
    what = f"the class {decorated.__name__}" if isinstance(decorated, type) else f"a {type(decorated).__name__}"
    raise TypeError(
        f"region decorates functions and methods, not {what}: put it above forward, or write 'with region(...):' "
        f"around the call"
    )


def _require_region_id(name: Any) -> None:
    # Dynamo traces this function: it knows ``isinstance``, but not every way of writing it shorter.
    if isinstance(name, tuple):
        for part in name:
            _require_region_id(part)
    elif isinstance(name, bool) or not isinstance(name, (str, int, enum.Enum)):
        raise AnnotationError(
            "a region id is a string, an integer, an enumeration member, or a tuple of these, not a "
            + type(name).__name__
        )


def _known_at_compile_time(value: Any) -> Any:
    """Return ``value`` with constants for the integers in it.

    At its second value Dynamo makes an integer argument symbolic, and fails on an annotation that holds it
    (``InternalTorchDynamoError``, torch 2.11 to 2.15). An index is never symbolic: Dynamo guards it, and compiles again
    for each value.
    """
    if isinstance(value, tuple):
        return tuple([_known_at_compile_time(part) for part in value])
    return operator.index(value) if type(value) is int else value
