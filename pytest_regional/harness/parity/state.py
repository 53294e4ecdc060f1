"""The state a program carries besides its inputs: parameters, buffers, captured tensors, plain attributes.

Every execution of a program must start from the same state, and the module must not be copied for it, because compiled
callables hold the original. So values are saved, the program runs, and :func:`preserved` puts them back.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pytest_regional.harness.parity.objects import (
    LIMIT,
    is_object,
    is_plain_container,
    snapshots,
    tensors_in,
    walk,
)

LOW_PRECISION_TO_FP64 = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
_PLAIN = (bool, int, float, complex, str, bytes)
_HELPER_DEPTH = 3
#: What ``torch.nn.Module`` keeps its own parameters, buffers and submodules in: reached by their names.
_REGISTERED = ("_parameters", "_buffers", "_modules")
_CAPTURED = "captured tensor "
_MODULE_INTERNALS = frozenset(vars(torch.nn.Module()))


@dataclass(frozen=True, eq=False)
class StateTensor:
    """One tensor the program can read or change without being given it; ``label`` is how reports name it."""

    label: str
    tensor: torch.Tensor


@dataclass(frozen=True, eq=False)
class ProgramState:
    """All tensors and modules reachable from a callable, found by :func:`find_state`."""

    tensors: tuple[StateTensor, ...]
    modules: tuple[tuple[str, torch.nn.Module], ...]
    objects: tuple[tuple[str, Any], ...] = ()

    def now(self) -> dict[str, torch.Tensor]:
        """Return the tensors by label as they are by now: attributes and objects may hold others than before."""
        named = {entry.label: entry.tensor for entry in self.tensors}
        known = {id(tensor) for tensor in named.values()}
        held = [item for prefix, module in self.modules for item in _module_tensors(prefix, module)]
        for label, value in self.objects:
            inside = tensors_in(value, label, LIMIT)
            # What was added to a plain list may be a test's notes.
            held += [item for item in inside if item[0] in named or not is_plain_container(value)]
        # A tensor that was there before keeps its one label, though several names may lead to it.
        return {**named, **{label: tensor for label, tensor in held if id(tensor) not in known}}

    def is_state(self, tensor: torch.Tensor) -> bool:
        """Say whether ``tensor`` itself is one of the state's tensors (and so must not be copied)."""
        return any(entry.tensor is tensor for entry in self.tensors)


def find_state(fn: Any, held: Iterable[tuple[str, Any]] = ()) -> ProgramState:
    """Return the state of a function, module, bound method, partial or callable object.

    A module given itself (or as the owner of a bound method) names its parameters plainly; anything reached through a
    variable or an attribute carries that name as a prefix. What a module reaches through callables that were set on the
    instance, through its hooks, or keeps in a list or dictionary without registering it, is state as well. ``held`` are
    modules and callables that the program is given as arguments, with their names.
    """
    found: dict[int, StateTensor] = {}
    modules: dict[int, tuple[str, torch.nn.Module]] = {}
    objects: dict[int, tuple[str, Any]] = {}
    seen: set[int] = set()
    own = [(f"{_CAPTURED}{name}", value) for name, value in _held_objects(fn)]
    inside = [item for label, value in own for item in _inside(label, value, objects)]
    given = (("", fn), *held)
    reached = [item for name, value in given for item in _reachable(value, name, _HELPER_DEPTH, seen)]
    # Modules by the shortest way; then objects: a label by which a tensor is found again after the run is its label.
    pending = [*(item for item in reached if isinstance(item[1], torch.nn.Module)), *inside, *reached]
    while pending:
        label, value = pending.pop(0)
        prefix = label.removeprefix(_CAPTURED)
        if not isinstance(value, torch.nn.Module):
            found.setdefault(id(value), StateTensor(f"{_CAPTURED}{prefix}", value))
            continue
        for name, module in value.named_modules(prefix=prefix):
            if id(module) not in modules:
                modules[id(module)] = name, module
                seen.add(id(module))
                pending += _unregistered(name, module, seen)
    named: dict[int, StateTensor] = {}
    for prefix, module in modules.values():
        for label, tensor in _module_tensors(prefix, module):
            named.setdefault(id(tensor), StateTensor(label, tensor))
        for label, value in _attribute_objects(prefix, module):
            for where, tensor in _inside(label, value, objects):
                if isinstance(tensor, torch.Tensor):
                    named.setdefault(id(tensor), StateTensor(where, tensor))
    return ProgramState(tuple({**found, **named}.values()), tuple(modules.values()), tuple(objects.values()))


def _held_objects(fn: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that a callable holds itself: in closures and globals, as arguments of a partial, as owner."""
    if not isinstance(fn, torch.nn.Module):
        yield from ((name or "self", value) for name, value in (*_children(fn), ("", fn)) if is_object(value))


def _attribute_objects(prefix: str, module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name not in _MODULE_INTERNALS and is_object(value):
            yield f"attribute {prefix}.{name}" if prefix else f"attribute {name}", value


def _inside(label: str, value: Any, objects: dict[int, tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield tensors and modules inside an object; note it in ``objects`` where it may hold tensors now or later."""
    if id(value) in objects:
        return
    inside = [item for item in walk(value, label, LIMIT) if isinstance(item[1], torch.Tensor | torch.nn.Module)]
    if inside or not is_plain_container(value):
        objects.setdefault(id(value), (label, value))
    yield from inside


def _unregistered(prefix: str, module: torch.nn.Module, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield modules and tensors that ``module`` reaches past its own parameters, buffers and submodules."""
    for name, value in vars(module).items():
        if name not in _REGISTERED and isinstance(value, (Callable, list, tuple, dict)):  # type: ignore[arg-type]
            yield from _reachable(value, f"{prefix}.{name}".strip("."), _HELPER_DEPTH, seen)


def _module_tensors(prefix: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    dot = f"{prefix}." if prefix else ""
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        yield f"parameter {dot}{name}", parameter
    for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
        yield f"buffer {dot}{name}", buffer
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            yield f"attribute {dot}{name}", value


def _reachable(value: Any, prefix: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    if isinstance(value, torch.nn.Module | torch.Tensor):
        yield prefix, value
        return
    for name, child in _children(value):
        yield from _reachable(child, f"{prefix}.{name}" if prefix and name else prefix or name, depth - 1, seen)


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        arguments = [(str(index), argument) for index, argument in enumerate(value.args)]
        return [("", value.func), *arguments, *value.keywords.items()]
    if isinstance(value, types.MethodType):
        return [("", value.__self__), ("", value.__func__)]
    if isinstance(value, types.FunctionType):
        return _function_variables(value)
    if isinstance(value, list | tuple):
        return [(str(index), item) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return [(str(key), item) for key, item in value.items()]
    if _is_plain_object(value):
        return list(vars(value).items())
    return []


def _is_plain_object(value: Any) -> bool:
    if isinstance(value, type | types.ModuleType):
        return False
    return (dataclasses.is_dataclass(value) or callable(value)) and hasattr(value, "__dict__")


def _function_variables(function: types.FunctionType) -> list[tuple[str, Any]]:
    variables: list[tuple[str, Any]] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with _empty_cell_ignored():
            variables.append((name, cell.cell_contents))
    for name in _global_names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, torch.nn.Module | torch.Tensor) or _holds_tensors(value):
            variables.append((name, value))
    if hasattr(function, "__wrapped__"):
        variables.append(("", function.__wrapped__))
    return variables


def _holds_tensors(value: Any) -> bool:
    return is_object(value) and bool(tensors_in(value, limit=LIMIT))


@contextmanager
def _empty_cell_ignored() -> Iterator[None]:
    try:
        yield
    except ValueError:  # A closure variable that is not assigned yet holds nothing to preserve.
        return


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


@dataclass(eq=False)
class _SavedTensor:
    tensor: torch.Tensor
    alias: torch.Tensor
    value: torch.Tensor
    grad: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _SavedTensor:
        # ``.data`` and not ``.detach()``: it has its own version counter, so putting values back is invisible.
        alias = tensor.data
        return cls(tensor, alias, alias.clone(), tensor.grad if tensor.is_leaf else None)

    def restore(self) -> None:
        if self.tensor.is_leaf:
            self.tensor.grad = None
        if self.tensor.dtype != self.alias.dtype or not _same_memory(self.tensor.data, self.alias):
            self.tensor.data = self.alias
        if not same_bytes(self.alias, self.value):
            self.alias.copy_(self.value)
        if self.tensor.is_leaf:
            self.tensor.grad = self.grad


@contextmanager
def preserved(state: ProgramState) -> Iterator[set[str]]:
    """Run the body with all gradients None, then put values, gradients and plain attributes back.

    Yields a set that holds, once the body has ended, the names of plain Python attributes that the body changed.
    """
    saved = [_SavedTensor.of(entry.tensor) for entry in state.tensors]
    attributes = [_Attributes(name, module) for name, module in state.modules]
    holders = [holder for _, value in state.objects for holder in snapshots(value)]
    changed: set[str] = set()
    for entry in saved:
        if entry.tensor.is_leaf:
            entry.tensor.grad = None
    try:
        yield changed
    finally:
        for attribute in attributes:
            changed |= attribute.restore()
        for holder in holders:
            holder.restore()
        for entry in saved:
            entry.restore()


class _Attributes:
    """The plain attributes, parameters and buffers of one module, as they were when this object was made."""

    def __init__(self, prefix: str, module: torch.nn.Module) -> None:
        self.prefix, self.module = prefix, module
        self.plain = {n: v for n, v in vars(module).items() if v is None or isinstance(v, (*_PLAIN, torch.Tensor))}
        self.registered = dict(_registered(module))

    def restore(self) -> set[str]:
        attributes = vars(self.module)
        changed = {n for n, v in self.plain.items() if n not in attributes or attributes[n] is not v}
        added = {n for n, v in attributes.items() if n not in self.plain and isinstance(v, torch.Tensor)}
        for name in changed:
            attributes[name] = self.plain[name]
        for name in added:
            del attributes[name]
        self._restore_registered()
        tensors = {n for n in changed if isinstance(self.plain[n], torch.Tensor)}
        return {f"{self.prefix}.{name}" if self.prefix else name for name in (changed | added) - tensors}

    def _restore_registered(self) -> None:
        now = dict(_registered(self.module))
        for name, tensor in self.registered.items():
            if now.get(name) is not tensor:
                setattr(self.module, name, tensor)


def _registered(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


@contextmanager
def promoted(state: ProgramState) -> Iterator[None]:
    """Hold every low-precision tensor of ``state`` in float64 in the body; :func:`preserved` around it undoes that.

    The tensors keep their identity (only ``.data`` is exchanged), so tied weights and captured tensors follow along.
    """
    for entry in state.tensors:
        wide = LOW_PRECISION_TO_FP64.get(entry.tensor.dtype)
        if wide is not None:
            entry.tensor.data = entry.tensor.data.to(wide)
    yield


def _same_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    return bool(
        first.data_ptr() == second.data_ptr() and first.shape == second.shape and first.stride() == second.stride()
    )


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a dense tensor as a ``(numel, itemsize)`` matrix of bytes, NaN payloads included."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # A single element is contiguous whatever its stride says, and a view as bytes wants 1.
    flat = flat.as_strided((flat.numel(),), (1,))
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    return flat.view(torch.uint8).reshape(tensor.numel(), -1) if tensor.numel() else flat.new_empty(0, 0)


def same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Say whether two tensors have one dtype, one shape and the same bytes."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.layout != torch.strided:
        first, second = first.to_dense(), second.to_dense()
    return bool(torch.equal(raw_bytes(first), raw_bytes(second)))
