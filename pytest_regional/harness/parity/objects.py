"""Objects that hold tensors and are no pytree: copies of them; and tensors as comparable values, of any dtype.

A program that is given such an object changes it, so each run needs its own: :func:`copy_object`. An object that the
program holds itself (in a closure, in an attribute of a module) cannot be exchanged; ``state`` puts back what is in it.
"""

from __future__ import annotations

import copy
import enum
import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pytest_regional._base.errors import RegionalError, RegionalValueError
from pytest_regional._base.text import first_line
from pytest_regional._torch import fx_graphs
from pytest_regional._torch.process_state import MACHINERY

PLAIN = (bool, int, float, complex, str, bytes)
_WHOLE = (
    *(torch.Tensor, torch.nn.Module, torch.Generator, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(type(None), *PLAIN, type, enum.Enum, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(types.ModuleType, types.GeneratorType, types.CodeType, types.FrameType),
    *(functools.partial, type(functools.lru_cache(len))),
)
_CONTAINERS = (Mapping, list, tuple, set, frozenset, deque)
#: Objects of these packages belong to the machinery around a program, never to its state.
_MACHINERY = (
    *("_pytest", "_thread", "hypothesis", "logging", "pluggy", "pytest", "pytest_regional", "threading", "triton"),
    *("unittest", "weakref"),
    *MACHINERY,
)
#: How many values are looked at: of one object, and of all that a program reaches.
LIMIT = 20_000


def is_object(value: Any) -> bool:
    """Say whether ``value`` may hold state: an instance with attributes, or a container; but no tensor, no module."""
    if isinstance(value, _WHOLE) or is_machinery(value):
        return False
    return isinstance(value, _CONTAINERS) or hasattr(value, "__dict__") or bool(attributes_of(value))


def is_opaque(value: Any) -> bool:
    """Say whether ``value`` may change and hides its state: an iterator, a buffer, an array of another library's."""
    if isinstance(value, types.GeneratorType):
        return True
    if isinstance(value, _WHOLE) or is_object(value) or is_machinery(value) or callable(value) or type(value) is object:
        return False
    equal: Any = type(value).__eq__
    is_value = equal is not object.__eq__ and type(value).__hash__ is not None
    return not is_value and not type(value).__module__.startswith("torch")


def elements(value: Any) -> list[Any]:
    """Return what is in a list, tuple, set or deque, whatever its class makes of iterating and of its length."""
    kind = _kind_of(value)
    return [*(iter(value) if kind is None else kind.__iter__(value))]


def size_of(value: Any) -> int:
    """Return how many items are in a list, tuple, set, deque or dictionary; 0 of anything else."""
    kind = _kind_of(value)
    return 0 if kind is None else kind.__len__(value)


def _kind_of(value: Any) -> Any:
    return next((kind for kind in (list, tuple, dict, set, frozenset, deque) if isinstance(value, kind)), None)


def is_machinery(value: Any) -> bool:
    """Say whether ``value`` belongs to the test around a program or to a compiler: a harness, a mock, a graph."""
    return is_machinery_name(type(value).__module__)


@functools.lru_cache(maxsize=4096)
def is_machinery_name(module: str) -> bool:
    """Say whether the module of this name is part of the test around a program, or of a compiler."""
    return f"{module}.".startswith(tuple(f"{package}." for package in _MACHINERY))


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


def tensors_in(value: Any, path: str = "") -> list[tuple[str, torch.Tensor]]:
    """Return every tensor inside ``value`` with its path; those of modules are the modules' business."""
    return [(where, leaf) for where, leaf in walk(value, path) if isinstance(leaf, torch.Tensor)]


def leaves_in(value: Any, name: str) -> dict[str, Any]:
    """Return what is inside a value by name, and under its own name the type of a container or object."""
    itself = {name: f"a {type(value).__name__}"} if is_object(value) else {}
    return itself | dict(walk(value, name, LIMIT))


def _children(value: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        found += [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, _CONTAINERS):
        found += [(f"[{index}]", item) for index, item in enumerate(elements(value))]
    # A dataclass that is a mapping as well holds the same values twice.
    known = {id(item) for _, item in found if not isinstance(item, PLAIN)}
    attributes = ((name, item) for name, item in attributes_of(value).items() if id(item) not in known)
    return found + [(f".{name}", item) for name, item in attributes if not name.startswith(("_dynamo", "_torchdynamo"))]


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes that an object has itself, in its dictionary or in slots."""
    found = dict(getattr(value, "__dict__", ()))
    for name in slots_of(type(value)):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    return found


def _slots_of(cls: Any) -> tuple[str, ...]:
    slots = (base.__dict__.get("__slots__", ()) for base in cls.__mro__)
    names = (name for some in slots for name in ((some,) if isinstance(some, str) else some))
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


#: Returns the names of the slots of a class and its bases.
slots_of: Callable[[Any], tuple[str, ...]] = functools.lru_cache(maxsize=4096)(_slots_of)


def copy_object(name: str, value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of ``value``, in which what ``memo`` holds by ``id`` is replaced by that.

    One ``memo`` for all arguments keeps what they share shared, and holds the tensors' copies. An object that cannot be
    copied and holds no tensor is returned as it is.
    """
    try:
        with fx_graphs.quietly():
            return copy.deepcopy(value, memo)
    except Exception as error:
        inside = tensors_in(value)
        if not inside:
            return value
        raise RegionalValueError(
            f"{name}, a {type(value).__qualname__}, holds tensors ({name}{inside[0][0]} for one) and cannot be copied "
            f"({type(error).__name__}: {error}). The eager, the float64 and the compiled run would share it and each "
            f"start from what the last one left. Give the class a __deepcopy__ that leaves out what cannot be copied, "
            f"or give the program the tensors themselves and let it make the object."
        ) from error


#: Dtypes that hold bits and know no operators, not even a copy.
_BITS = frozenset(
    getattr(torch, name)
    for name in (
        "float4_e2m1fn_x2",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
        *("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    )
    if hasattr(torch, name)
)
_INDICES = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class NotComparableError(RegionalError, ValueError, TypeError):
    """A value, or the elements of a tensor, that nothing can be compared with; the message says why."""


def has_arithmetic(tensor: torch.Tensor) -> bool:
    """Say whether operators compute with the elements of ``tensor``, as those of the float64 run do."""
    return not (tensor.dtype in _BITS or tensor.is_quantized or tensor.is_nested)


def dense_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of ``tensor``'s elements, strided: numbers, or bytes where the dtype knows no operators.

    Raises:
        NotComparableError: it has no elements, or PyTorch has no way to read them.
    """
    if tensor.device.type == "meta":
        raise NotComparableError("on the meta device, where tensors have no values")
    try:
        return _elements(tensor.detach())
    except (RuntimeError, TypeError) as error:
        kind = type(tensor).__name__
        raise NotComparableError(f"a {kind} of {tensor.dtype} cannot be read: {first_line(error)}") from error


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_nested:
        parts = [_elements(part).reshape(-1) for part in tensor.unbind()]
        return torch.cat(parts) if parts else torch.empty(0, dtype=tensor.dtype)
    if tensor.is_quantized:
        if tensor.dtype not in (torch.qint8, torch.quint8, torch.qint32):
            raise TypeError("several elements share a byte")
        return tensor.int_repr()
    if tensor.dtype in _BITS:
        return tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.int16).clone()
    if tensor.layout != torch.strided:
        return tensor.to_dense().clone()
    if type(tensor) is not torch.Tensor and not hasattr(tensor, "__tensor_flatten__"):
        tensor = tensor.as_subclass(torch.Tensor)
    return tensor.clone()


def parts_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return, by what gives it, what describes the values besides the elements: which are stored, and the scale."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return {".is_coalesced()": tensor.is_coalesced(), ".coalesce().indices()": tensor.coalesce().indices()}
    if tensor.layout in _INDICES:
        return {f".{name}()": getattr(tensor, name)() for name in _INDICES[tensor.layout]}
    if not tensor.is_quantized:
        return {}
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        names = ["q_scale", "q_zero_point"]
    else:
        names = ["q_per_channel_axis", "q_per_channel_scales", "q_per_channel_zero_points"]
    return {f".{name}()": getattr(tensor, name)() for name in ("qscheme", *names)}
