"""Copy a model so that everything in the copy calls the copy's own modules.

``copy.deepcopy`` leaves functions as they are. A forward or a hook that was set on an *instance* and refers to the
model through a closure would call the original's modules from every copy: three trainings that share one set of
weights, of which no gradient is looked at. So functions that reach the original are rebuilt around the copied
modules; what cannot be rebuilt is refused by name.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from pytest_regional._base.text import first_line
from pytest_regional.harness.parity.objects import elements
from pytest_regional.harness.parity.state import contents, names_in
from pytest_regional.harness.training.report import BadTrainingError

REMEDY = "Patch the class instead of the instance, or annotate inside the module's own forward"

_SEQUENCES = (list, tuple, set, frozenset)
_FIXED = (tuple, set, frozenset, types.MethodType, types.BuiltinMethodType)
_OPAQUE = (type, types.ModuleType, types.CodeType)


def copy_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of ``model`` whose callables, those set on instances too, refer to the copy alone."""
    memo: dict[int, Any] = {}
    try:
        copied = copy.deepcopy(model, memo)
    except (RuntimeError, TypeError) as error:
        raise BadTrainingError(
            f"{type(model).__name__} cannot be copied ({first_line(error)}); each of the trainings that are compared "
            f"needs a copy of its own"
        ) from error
    _Rebinding(model, memo).mend()
    return copied


class _Rebinding:
    """Replaces what the copies made so far still hold of the original; ``memo`` is deepcopy's."""

    def __init__(self, model: torch.nn.Module, memo: dict[int, Any]) -> None:
        self.memo = memo
        self.parts = {id(part): part for part in (*model.modules(), *model.parameters(), *model.buffers())}
        #: What copied modules, and the dictionaries of hooks and such in them, are called in messages.
        self.names: dict[int, str] = {}
        for name, module in model.named_modules():
            copied = memo.get(id(module))
            self.names[id(copied)] = name
            if copied is not None:
                self.names |= {id(held): f"{name}.{key}".strip(".") for key, held in vars(copied).items()}
        self.made: dict[int, Any] = {}
        self.copies: set[int] = set()
        self.where = ""

    def mend(self) -> None:
        """Go through everything that was copied, and what is copied on the way, once."""
        seen = {id(self.memo)}
        while pending := [(key, copied) for key, copied in self.memo.items() if key not in seen]:
            seen.update(key for key, _ in pending)
            self.copies.update(id(copied) for _, copied in pending if not isinstance(copied, _FIXED))
            for _, copied in pending:
                self._mend(copied)

    def _mend(self, holder: Any) -> None:
        prefix = self.names.get(id(holder), "")
        for name, value in _items(holder):
            self.where = f"{prefix}.{name}".strip(".")
            bound = self._bound(value)
            if bound is not value:
                held = holder if isinstance(holder, dict | list) else vars(holder)
                held[name] = bound
        if isinstance(holder, functools.partial):
            values = self._bound(holder.func), self._bound(holder.args), self._mapping(holder.keywords)
            holder.__setstate__((*values, vars(holder)))  # type: ignore[attr-defined]

    def _bound(self, value: Any) -> Any:
        """Return what stands for ``value`` in the copy: ``value`` itself where it reaches nothing that was copied."""
        if id(value) in self.copies:
            return value
        if id(value) in self.made:
            return self.made[id(value)]
        if not self._reaches(value):
            return value
        for kind, bind in self._binders():
            if isinstance(value, kind):
                return bind(value)
        return self._copy_of(value)

    def _binders(self) -> Iterator[tuple[Any, Callable[[Any], Any]]]:
        yield types.FunctionType, self._function
        yield types.MethodType, lambda it: types.MethodType(self._bound(it.__func__), self._bound(it.__self__))
        yield types.BuiltinMethodType, lambda it: getattr(self._bound(it.__self__), it.__name__)
        yield weakref.ref, lambda it: weakref.ref(self._bound(it()))
        # deepcopy leaves the functions in these alone, and they cannot be changed afterwards.
        yield tuple, lambda items: _tuple_like(items, map(self._bound, elements(items)))
        yield (set, frozenset), lambda items: type(items)(map(self._bound, elements(items)))

    def _copy_of(self, value: Any) -> Any:
        """Return the copy of an object, made now if it was reached through a function alone."""
        try:
            copied = copy.deepcopy(value, self.memo)
        except Exception as error:
            raise BadTrainingError(
                f"{self.where} refers to the original model through a {type(value).__name__}, which cannot be copied "
                f"({first_line(error)}): every copy would call the original's modules. {REMEDY}"
            ) from error
        self.copies.add(id(copied))
        return copied

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        for name in self._globals_of(function):
            raise BadTrainingError(
                f"{self.where} calls {function.__qualname__}, which refers to the original model through the global "
                f"variable {name}: every copy would call the original's modules. {REMEDY}"
            )
        cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
        # Known before it is filled: a closure may hold itself.
        self.made[id(function)] = made
        functools.update_wrapper(made, function, updated=())
        made.__defaults__ = self._bound(function.__defaults__)
        made.__kwdefaults__ = self._mapping(function.__kwdefaults__)
        made.__dict__.clear()
        made.__dict__.update(self._mapping(vars(function)) or {})
        for old, new in zip(function.__closure__ or (), cells, strict=True):
            if new is not old and not contents(new):
                new.cell_contents = self._bound(old.cell_contents)
        return made

    def _cell(self, cell: types.CellType) -> types.CellType:
        """Return a new cell for one that reaches the original; all others stay shared, as deepcopy shares them."""
        if id(cell) not in self.made:
            self.made[id(cell)] = types.CellType() if any(map(self._reaches, contents(cell))) else cell
        made: types.CellType = self.made[id(cell)]
        return made

    def _mapping(self, values: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return None if values is None else {name: self._bound(value) for name, value in values.items()}

    def _globals_of(self, function: types.FunctionType) -> list[str]:
        """Return the global variables of ``function`` that hold a part of the model, at once or in a container."""
        held = ((name, function.__globals__.get(name)) for name in sorted(names_in(function.__code__)))
        return [name for name, value in held if any(id(one) in self.parts for one in _near(value))]

    def _reaches(self, value: Any) -> bool:
        """Say whether anything that was copied can be got at through ``value``; a copy is mended by itself."""
        seen: set[int] = set()
        pending = [value]
        while pending:
            one = pending.pop()
            if id(one) in self.memo and one is not self.memo:
                return True
            if isinstance(one, types.FunctionType) and self._globals_of(one):
                return True
            if id(one) not in seen and id(one) not in self.copies and not isinstance(one, _OPAQUE):
                seen.add(id(one))
                pending += _children(one)
        return False


def _children(value: Any) -> list[Any]:
    """Return what ``value`` holds and could call."""
    if isinstance(value, types.FunctionType):
        captured = [held for cell in value.__closure__ or () for held in contents(cell)]
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        return [*captured, *defaults, *vars(value).values()]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, types.BuiltinMethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, weakref.ref):
        return [value()]
    if isinstance(value, dict):
        return list(value.values())
    held = elements(value) if isinstance(value, _SEQUENCES) else []
    return [*held, *(vars(value).values() if hasattr(value, "__dict__") else ())]


def _near(value: Any) -> Iterable[Any]:
    """Return a global variable's value, or what it holds at once: to follow them all would lead everywhere."""
    if isinstance(value, types.MethodType):
        return (value.__self__,)
    if isinstance(value, dict):
        return value.values()
    return elements(value) if isinstance(value, _SEQUENCES) else (value,)


def _items(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, dict):
        return list(holder.items())
    if isinstance(holder, list):
        return list(enumerate(elements(holder)))
    return list(vars(holder).items()) if hasattr(holder, "__dict__") and not isinstance(holder, _OPAQUE) else []


def _tuple_like(old: tuple[Any, ...], items: Iterable[Any]) -> tuple[Any, ...]:
    made = tuple.__new__(type(old), items)
    if hasattr(old, "__dict__"):
        vars(made).update(vars(old))
    return made
