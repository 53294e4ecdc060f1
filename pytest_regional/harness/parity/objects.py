"""Objects that hold tensors and are no pytree: caches of keys and values, and whatever classes a user makes for state.

A program that is given such an object changes it, so each run needs its own: :func:`copy_object`. An object that the
program holds itself (in a closure, in an attribute of a module) cannot be exchanged; :func:`snapshots` put it back.
"""

from __future__ import annotations

import copy
import enum
import operator
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pytest_regional._errors import RegionalError
from pytest_regional._torch import pytree
from pytest_regional._torch.process_state import MACHINERY

PLAIN = (bool, int, float, complex, str, bytes)
_WHOLE = (
    *(torch.Tensor, torch.nn.Module, torch.Generator, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(type(None), *PLAIN, type, enum.Enum, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(types.ModuleType, types.GeneratorType, types.CodeType, types.FrameType),
)
_CONTAINERS = (Mapping, list, tuple, set, frozenset, deque)
#: Objects of these packages belong to the machinery around a program, never to its state.
_MACHINERY = (
    *("_pytest", "hypothesis", "logging", "pluggy", "pytest", "pytest_regional", "threading", "unittest", "weakref"),
    *MACHINERY,
)
#: How many values of one captured object are looked at.
LIMIT = 20_000


class UncopyableInputError(RegionalError, TypeError):
    """An argument of the program holds tensors and cannot be copied, so the runs would share it."""


def is_object(value: Any) -> bool:
    """Say whether ``value`` may hold state: an instance with attributes, or a container; but no tensor, no module."""
    if isinstance(value, _WHOLE) or is_machinery(value):
        return False
    return isinstance(value, _CONTAINERS) or bool(_attributes(value))


def is_plain_container(value: Any) -> bool:
    """Say whether ``value`` is a list or another container of Python's own, and no instance of a user's class."""
    return type(value) in (list, tuple, dict, set, frozenset, deque)


def is_machinery(value: Any) -> bool:
    """Say whether ``value`` belongs to the test around a program or to a compiler: a harness, a mock, a graph."""
    return f"{type(value).__module__}.".startswith(tuple(f"{package}." for package in _MACHINERY))


def walk(value: Any, path: str, limit: int | None = None) -> Iterator[tuple[str, Any]]:
    """Yield ``(path, leaf)`` for all that is no container and no object inside ``value``, which may be a leaf itself.

    A container is entered once; a tensor is yielded by every path that leads to it.
    """
    seen: set[int] = set()
    waiting = [(path, value)]
    while waiting and (limit is None or len(seen) < limit):
        where, current = waiting.pop()
        if not is_object(current):
            if not is_machinery(current):
                yield where, current
        elif id(current) not in seen:
            seen.add(id(current))
            waiting += [(f"{where}{step}", child) for step, child in reversed(_children(current))]


def tensors_in(value: Any, path: str = "", limit: int | None = None) -> list[tuple[str, torch.Tensor]]:
    """Return every tensor inside ``value`` with its path; those of modules are the modules' business."""
    return [(where, leaf) for where, leaf in walk(value, path, limit) if isinstance(leaf, torch.Tensor)]


def plain_values_in(value: Any, path: str) -> dict[str, Any]:
    """Return numbers, flags and texts inside ``value`` by path; what Dynamo keeps on objects is left out."""
    return {where: leaf for where, leaf in walk(value, path) if isinstance(leaf, PLAIN) and "._dynamo" not in where}


def _children(value: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        found += [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, _CONTAINERS):
        found += [(f"[{index}]", item) for index, item in enumerate(value)]
    # A dataclass that is a mapping as well holds the same values twice.
    known = {id(item) for _, item in found if not isinstance(item, PLAIN)}
    return found + [(f".{name}", item) for name, item in _attributes(value).items() if id(item) not in known]


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def object_leaves(named: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return those of the named leaves of a pytree that are objects."""
    return [(name, leaf) for name, leaf in named if is_object(leaf)]


def copy_object(name: str, value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of ``value``, in which what ``memo`` holds by ``id`` is replaced by that.

    One ``memo`` for all arguments keeps what they share shared, and holds the tensors' copies. An object that cannot be
    copied and holds no tensor is returned as it is.

    Raises:
        UncopyableInputError: it holds tensors.
    """
    try:
        with pytree.quietly():
            return copy.deepcopy(value, memo)
    except Exception as error:
        inside = tensors_in(value)
        if not inside:
            return value
        raise UncopyableInputError(
            f"{name}, a {type(value).__qualname__}, holds tensors ({name}{inside[0][0]} for one) and cannot be copied "
            f"({type(error).__name__}: {error}). The eager, the float64 and the compiled run would share it and each "
            f"start from what the last one left. Give the class a __deepcopy__ that leaves out what cannot be copied, "
            f"or give the program the tensors themselves and let it make the object."
        ) from error


@dataclass(frozen=True, eq=False)
class Holder:
    """One container, or object, as it was: what it contained, and its attributes."""

    container: Any
    items: Any
    attributes: dict[str, Any]
    is_root: bool

    @classmethod
    def of(cls, value: Any, *, is_root: bool) -> Holder:
        items: Any = dict(value) if isinstance(value, dict) else None
        if isinstance(value, list | set | deque):
            items = list(value)
        return cls(value, items, _attributes(value), is_root)

    def restore(self) -> None:
        """Restore what the container held, where tensors are or were in it."""
        before, now = (self.items, self.attributes), Holder.of(self.container, is_root=self.is_root)
        if _same(before[0], now.items) and _same(before[1], now.attributes):
            return
        # A list in which the test records something keeps its contents.
        if self.is_root and is_plain_container(self.container) and self._only_grew(now.items):
            return
        if any(tensors_in(one, limit=LIMIT) for one in (*before, now.items, now.attributes)):
            self._restore(now)

    def _only_grew(self, now: Any) -> bool:
        if isinstance(now, dict):
            return all(key in now and now[key] is value for key, value in self.items.items())
        return isinstance(self.container, list | deque) and _same(self.items, now[: len(self.items)])

    def _restore(self, now: Holder) -> None:
        container = self.container
        if isinstance(container, list):
            container[:] = self.items
        elif isinstance(container, set | dict | deque):
            container.clear()
            (container.extend if isinstance(container, deque) else container.update)(self.items)
        for name in now.attributes.keys() - self.attributes.keys():
            object.__delattr__(container, name)
        for name, child in self.attributes.items():
            if now.attributes.get(name) is not child:
                object.__setattr__(container, name, child)


def _same(first: Any, second: Any) -> bool:
    """Say whether two collections of children hold the very same objects, in one order."""
    if isinstance(first, dict):
        return list(first) == list(second) and all(first[key] is second[key] for key in first)
    return first is second or (len(first) == len(second) and all(map(operator.is_, first, second)))


def snapshots(value: Any) -> list[Holder]:
    """Return what every container and object inside ``value`` holds now, to be restored after a run."""
    seen: set[int] = set()
    waiting, found = [value], []
    while waiting and len(seen) < LIMIT:
        current = waiting.pop()
        if not is_object(current) or id(current) in seen:
            continue
        seen.add(id(current))
        if not isinstance(current, tuple | frozenset):
            found.append(Holder.of(current, is_root=current is value))
        waiting += [child for _, child in _children(current)]
    return found


__all__ = [
    "LIMIT",
    "PLAIN",
    "UncopyableInputError",
    "copy_object",
    "is_machinery",
    "is_object",
    "is_plain_container",
    "object_leaves",
    "plain_values_in",
    "snapshots",
    "tensors_in",
    "walk",
]
