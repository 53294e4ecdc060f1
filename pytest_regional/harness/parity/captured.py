"""What is kept of a tensor once the program that made it has ended: its value, and everything that describes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch

from pytest_regional._torch import fx_graphs
from pytest_regional.harness.parity.inputs import is_plainly_strided
from pytest_regional.harness.parity.objects import (
    PLAIN,
    NotComparableError,
    dense_value,
    is_object,
    parts_of,
    tensors_in,
    walk,
)
from pytest_regional.harness.parity.state import same_bytes


@dataclass(frozen=True, eq=False)
class Captured:
    """A tensor, or an array of numpy, as it was at one moment."""

    value: torch.Tensor  # a dense copy of the elements
    dtype: torch.dtype
    shape: tuple[Any, ...]
    stride: tuple[int, ...] | None
    device: torch.device
    requires_grad: bool
    layout: torch.layout
    kind: str
    dense: bool
    storage: Any  # the original memory, or None
    #: what else its values consist of, and attributes that were set on it, by what follows its name in reports
    parts: Mapping[str, Any] = field(default_factory=dict)
    #: why it holds no value; empty where it is only a shell, whose insides are captured as well
    no_value: str | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor, *, attributes: bool = False) -> Captured:
        """Copy ``tensor``'s value and note its description, with ``attributes`` those set on it by Python code."""
        plain, why = is_plainly_strided(tensor), None
        try:
            value, parts = dense_value(tensor), parts_of(tensor)
        except NotComparableError as error:
            value, parts, why = torch.empty(0), {}, str(error)
        if (attributes and not tensor.is_nested) or why is not None:  # it may consist of what attributes hold
            # What ``torch._dynamo.mark_dynamic`` and the like leave on a tensor is left out (2.11 to 2.15).
            dynamos = ("_dynamo_", "_has_dynamo_")
            parts |= {f".{name}": one for name, one in vars(tensor).items() if not name.startswith(dynamos)}
        shape = tuple(tuple(one.shape) for one in tensor.unbind()) if tensor.is_nested else tuple(tensor.shape)
        return cls(
            value=value,
            dtype=tensor.dtype,
            shape=shape,
            stride=tuple(tensor.stride()) if plain else None,
            device=tensor.device,
            requires_grad=tensor.requires_grad,
            layout=tensor.layout,
            kind="Parameter" if isinstance(tensor, torch.nn.Parameter) else type(tensor).__name__,
            dense=plain and _is_dense(tensor),
            storage=tensor.untyped_storage() if plain and tensor.untyped_storage().nbytes() else None,
            parts={name: cls.of(one) if isinstance(one, torch.Tensor) else one for name, one in parts.items()},
            no_value=why,
        )

    def described_stride(self) -> tuple[int, ...] | None:
        """Return the strides that matter: none of an empty tensor, and not those of dimensions of size one."""
        if self.stride is None or 0 in self.shape:
            return None
        return tuple(stride for size, stride in zip(self.shape, self.stride, strict=True) if size > 1)

    def same_as(self, other: Captured) -> bool:
        """Say whether both hold the same bytes, described alike."""
        if self.shape != other.shape or self.parts.keys() != other.parts.keys():
            return False
        pairs = ((one, other.parts[name]) for name, one in self.parts.items())
        return same_bytes(self.value, other.value) and all(_same_part(*pair) for pair in pairs)


def _same_part(first: Any, second: Any) -> bool:
    if isinstance(first, Captured):
        return isinstance(second, Captured) and first.same_as(second)
    return first is second or (type(first) is type(second) and isinstance(first, PLAIN) and bool(first == second))


def _is_shell(tensor: torch.Tensor) -> bool:
    """Say whether ``tensor`` is a subclass around other tensors, which its captures are made of."""
    return hasattr(tensor, "__tensor_flatten__") and not tensor.is_nested


def capture(leaf: Any) -> Any:
    """Return what is kept of one leaf of what a program returned."""
    if isinstance(leaf, torch.Tensor):
        if _is_shell(leaf):
            return replace(Captured.of(leaf), value=torch.empty(0), parts={}, no_value="")
        return Captured.of(leaf, attributes=True)
    if isinstance(leaf, numpy.ndarray | numpy.generic):
        try:
            tensor = torch.from_numpy(numpy.array(leaf))
        except TypeError:  # dtypes that torch has not
            return leaf
        return replace(Captured.of(tensor), kind=type(leaf).__name__, dense=False)
    return leaf


def _is_dense(tensor: torch.Tensor) -> bool:
    """Say whether the elements fill one block of memory without gaps or overlaps, in some order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


class FlatOutputs:
    """What a program returned, leaf by leaf; ``root`` is what paths begin with."""

    def __init__(self, tree: Any, root: str = "output") -> None:
        #: ``(path, leaf)``; tensor subclasses, dataclass instances and other objects are opened up. Of a tensor
        #: subclass the shell is a leaf as well.
        self.leaves: list[tuple[str, Any]] = []
        #: Paths of leaves inside objects that are neither pytrees nor dataclasses, such as a cache.
        self.in_objects: set[str] = set()
        self._opened: list[str] = []
        paths, spec = fx_graphs.flatten_with_path(tree)
        for path, leaf in paths:
            self._open(f"{root}{fx_graphs.key_string(path)}", leaf)
        self.structure = (spec, *self._opened)  # equal for equal containers around the leaves

    def _open(self, path: str, leaf: Any) -> None:
        """Add ``leaf``, or what is inside of it."""
        if isinstance(leaf, torch.Tensor) and _is_shell(leaf):
            self.leaves.append((path, leaf))
            self._opened.append(f"{path}: {type(leaf).__name__}")
            for name in leaf.__tensor_flatten__()[0]:
                self._open(f"{path}.{name}", getattr(leaf, name))
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            self._opened.append(f"{path}: {type(leaf).__name__}")
            for one in dataclasses.fields(leaf):
                inner = FlatOutputs(getattr(leaf, one.name), f"{path}.{one.name}")
                self._opened.append(f"{path}.{one.name}: {inner.structure}")
                self.leaves += inner.leaves
                self.in_objects |= inner.in_objects
        elif is_object(leaf) and tensors_in(leaf) and not isinstance(leaf, set | frozenset):
            inside = list(walk(leaf, path))
            self._opened.append(f"{path}: {type(leaf).__name__} of {[where for where, _ in inside]}")
            self.leaves += inside
            self.in_objects.update(where for where, _ in inside)
        else:
            self.leaves.append((path, leaf))


@dataclass(frozen=True)
class Aliasing:
    """Whose memory an output uses: ``same_as`` names what it is the very object of, ``shares`` all memory mates.

    Two tensors are mates if an element of one is an element of the other. Separate parts of one storage are none:
    nothing that is written to one of them shows in the other.
    """

    same_as: str | None
    shares: frozenset[str]

    def __str__(self) -> str:
        if self.same_as is not None:
            return f"is {self.same_as} itself"
        return f"shares memory with {', '.join(sorted(self.shares))}" if self.shares else "has its own memory"


def find_aliases(outputs: list[tuple[str, Any]], others: list[tuple[str, torch.Tensor]]) -> dict[str, Aliasing]:
    """Return for each tensor output which inputs, state tensors and earlier outputs it is or shares memory with."""
    known = list(others)
    aliases: dict[str, Aliasing] = {}
    for path, leaf in outputs:
        if not isinstance(leaf, torch.Tensor):
            continue
        same = next((name for name, other in known if other is leaf), None)
        aliases[path] = Aliasing(same, frozenset(name for name, other in known if _overlap(leaf, other)))
        known.append((path, leaf))
    return aliases


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Say whether two tensors have a byte of memory in common.

    Those that lie between each other, such as columns of a matrix, are told apart up to 64 MiB.
    """
    if not (is_plainly_strided(first) and is_plainly_strided(second)) or not first.numel() or not second.numel():
        return False
    storage = first.untyped_storage()
    if not storage.nbytes() or storage is not second.untyped_storage():  # a storage that was resized to 0 has no bytes
        return False
    (begin, end), (other_begin, other_end) = _extent(first), _extent(second)
    if end <= other_begin or other_end <= begin:
        return False
    start, stop = min(begin, other_begin), max(end, other_end)
    if (_is_dense(first) and _is_dense(second)) or stop - start > 2**26:
        return True
    return bool((_bytes_of(first, start, stop) & _bytes_of(second, start, stop)).any())


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the one behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin, size = tensor.storage_offset(), tensor.element_size()
    return begin * size, (begin + last + 1) * size


def _bytes_of(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return for each byte of a storage between ``start`` and ``stop`` whether it belongs to ``tensor``."""
    size = tensor.element_size()
    marks = torch.zeros(stop - start, dtype=torch.bool)
    offset = tensor.storage_offset() * size - start
    marks.as_strided((*tensor.shape, size), (*(stride * size for stride in tensor.stride()), 1), offset).fill_(True)
    return marks
