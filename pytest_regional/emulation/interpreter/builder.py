"""The builder: what Triton's language calls for every operation, computing instead of building."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl

from pytest_regional._torch.triton import inductor_helpers, interpreter_builder_class, interpreter_options
from pytest_regional.emulation.device import KernelAssertionError, UnsupportedByEmulationError
from pytest_regional.emulation.interpreter import arithmetic
from pytest_regional.emulation.interpreter.accesses import Atomics
from pytest_regional.emulation.interpreter.arithmetic import Arithmetic, fused_multiply_add
from pytest_regional.emulation.interpreter.values import (
    Array,
    TensorHandle,
    as_numbers,
    block,
    fast_semantic,
    from_numbers,
    held_as_bits,
    numpy_type,
    scalar_value,
)

_OF_TRITON = {"_sum_combine": np.add, "_elementwise_max": np.fmax, "_elementwise_min": np.fmin}
_OF_INDUCTOR = {"maximum": np.maximum, "minimum": np.minimum, "_prod_accumulate": np.multiply}


def _ufunc(combine_fn: Any) -> Any:
    """Return numpy's function for a combine function of Triton's library or of Inductor's helpers, or None.

    They are compared by identity: a jitted function's hash is that of its text and of all it calls.
    """
    for library, table in ((tl.standard, _OF_TRITON), (inductor_helpers(), _OF_INDUCTOR)):
        found = table.get(combine_fn.__name__)
        if found is not None and getattr(library, combine_fn.__name__, None) is combine_fn:
            return found
    return None


def _value(constant: Any) -> Any:
    return constant.value if isinstance(constant, tl.constexpr) else constant


class Reductions:
    """What ``tl.reduce`` and ``tl.associative_scan`` do."""

    def reduce(self, operand: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
        """Combine along ``axis`` (None: all elements) pair by pair, as a tree."""
        axis, keep_dims = _value(axis), _value(keep_dims)
        operands = _as_tuple(operand)
        shape = operands[0].handle.data.shape
        arrays = [item.handle.data.reshape(-1) if axis is None else item.handle.data for item in operands]
        along = 0 if axis is None else axis % len(shape)
        results = _reduced(combine_fn, operands, [np.moveaxis(array, along, 0) for array in arrays])
        if keep_dims:
            results = [r.reshape((1,) * len(shape)) if axis is None else np.expand_dims(r, along) for r in results]
        return _like(operand, [_tensor(r, item.dtype) for r, item in zip(results, operands, strict=True)])

    def scan(self, operand: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:
        """Combine every element with those before it, in steps that double."""
        axis, reverse = _value(axis), _value(reverse)
        operands = _as_tuple(operand)
        types = [item.dtype for item in operands]
        turned = slice(None, None, -1 if reverse else 1)
        arrays = [np.moveaxis(item.handle.data, axis, 0)[turned] for item in operands]
        step = 1
        while step < arrays[0].shape[0]:
            # Whole blocks are combined, since a block's length is a power of two; the first elements are thrown away.
            combined = _combined(combine_fn, types, [np.roll(a, step, 0) for a in arrays], arrays)
            arrays = [np.concatenate([a[:step], c[step:]]) for a, c in zip(arrays, combined, strict=True)]
            step *= 2
        results = [np.moveaxis(array[turned], 0, axis) for array in arrays]
        return _like(operand, [_tensor(r, item.dtype) for r, item in zip(results, operands, strict=True)])


def _reduced(combine_fn: Any, operands: Sequence[Any], arrays: list[Array]) -> list[Array]:
    ufunc = _ufunc(combine_fn)
    dtype = operands[0].dtype
    if ufunc is not None and len(arrays) == 1 and not held_as_bits(dtype) and dtype != tl.int1:
        return [np.asarray(ufunc.reduce(arrays[0], axis=0, dtype=arrays[0].dtype))]
    types = [item.dtype for item in operands]
    while (length := arrays[0].shape[0]) > 1:
        half = length // 2
        combined = _combined(combine_fn, types, [a[:half] for a in arrays], [a[half : 2 * half] for a in arrays])
        arrays = [
            np.concatenate([c, a[2 * half :]]) if length % 2 else c for c, a in zip(combined, arrays, strict=True)
        ]
    return [array[0] for array in arrays]


def _combined(combine_fn: Any, types: Sequence[Any], left: Sequence[Array], right: Sequence[Array]) -> list[Array]:
    wrapped = [block(a, t) for a, t in zip((*left, *right), (*types, *types), strict=True)]
    results = _as_tuple(combine_fn(*wrapped))
    datas = [r.handle.data if isinstance(r, tl.core.tensor) else np.asarray(r) for r in results]
    pairs = zip(datas, left, strict=True)
    return [np.broadcast_to(data.astype(like.dtype, copy=False), like.shape) for data, like in pairs]


def _tensor(array: Array, scalar: Any) -> Any:
    return block(array, scalar.scalar) if array.ndim else scalar_value(array, scalar.scalar)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, tl.core.tuple)) else (value,)


def _like(operand: Any, results: list[Any]) -> Any:
    return tuple(results) if isinstance(operand, (tuple, tl.core.tuple)) else results[0]


_INSTRUCTION = re.compile(r"\s*([a-z0-9]+)((?:\.[a-z0-9]+)*)\s+\$0((?:\s*,\s*\$\d+)*)\s*;?\s*")

_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "fma": fused_multiply_add,
    "mul": np.multiply,
    "add": np.add,
    "sub": np.subtract,
    "div": np.divide,
    "min": np.fmin,
    "max": np.fmax,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "abs": np.abs,
    "neg": np.negative,
    "mov": np.asarray,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
}

_FLOATS = {"f32", "f64", "f16"}
_BITS = {"and", "or", "xor", "not", "mov"}
_WIDE = {"wide", "hi", "sat"}


def run_instruction(text: str, operands: Sequence[Any], result_types: Sequence[Any], pack: int) -> Any:
    """Run one PTX instruction on the operands' handles.

    Raises:
        UnsupportedByEmulationError: for anything but one instruction of the table with one result.
    """
    found = _INSTRUCTION.fullmatch(text)
    if found is None or found[1] not in _FUNCTIONS or len(result_types) != 1 or pack != 1 or not _plain(found):
        raise UnsupportedByEmulationError(f"inline assembly {text!r} (single PTX instructions of a table only)")
    numbers = [int(number) - 1 for number in re.findall(r"\$(\d+)", found[3])]
    scalar = result_types[0].scalar
    arguments = [as_numbers(operands[number].data, operands[number].dtype.scalar) for number in numbers]
    result = np.asarray(_FUNCTIONS[found[1]](*arguments))
    return TensorHandle(
        from_numbers(result, scalar) if scalar.is_floating() else result.astype(numpy_type(scalar)), scalar
    )


def _plain(found: re.Match[str]) -> bool:
    """Say whether the instruction's suffixes leave the table's meaning: a float type, or bits."""
    suffixes = set(found[2].split(".")[1:])
    if suffixes & _WIDE:
        return False
    return bool(suffixes & _FLOATS) or found[1] in _BITS or (found[1] in {"add", "sub"} and bool(suffixes))


class _Assembled:
    """Results of inline assembly, as Triton's language asks for them."""

    def __init__(self, results: list[Any]) -> None:
        self.results = results

    def get_result(self, index: int) -> Any:
        """Return one of them."""
        return self.results[index]


class Calls:
    """The ``create_*`` methods that leave Triton's language: libraries, assembly, assertions, output."""

    grid_idx: tuple[int, int, int]

    def create_extern_elementwise(
        self, library: str, path: str, symbol: str, arguments: Any, result_type: Any, is_pure: bool
    ) -> Any:
        """Call a function of CUDA's math library."""
        return arithmetic.call(symbol, arguments, result_type)

    def create_inline_asm(
        self, text: str, constraints: str, values: Any, types: Any, is_pure: bool, pack: int
    ) -> _Assembled:
        """Run a single instruction."""
        return _Assembled([run_instruction(text, values, types, pack)])

    def create_assert(self, condition: Any, message: Any, *_: Any) -> None:
        """Raise KernelAssertionError if the condition fails anywhere."""
        if not np.all(condition.data):
            failed = int(condition.data.size - np.count_nonzero(condition.data))
            raise KernelAssertionError(
                f"device_assert failed in program {self.grid_idx} for {failed} of {condition.data.size} elements: "
                f"{message}"
            )

    def create_assume(self, condition: Any) -> None:
        """Raise KernelAssertionError if what the compiler is told to rely on does not hold."""
        if not np.all(condition.data):
            raise KernelAssertionError(f"tl.assume does not hold in program {self.grid_idx}")

    def create_print(self, prefix: str, as_hex: bool, values: Any, *_: Any) -> None:
        """Print, as ``tl.device_print`` in a kernel."""
        for value in values:
            shown = np.vectorize(hex)(value.data) if as_hex and value.data.dtype.kind in "iu" else value.data
            print(f"{self.grid_idx} {prefix}{shown}")

    def create_barrier(self, *_: Any) -> None:
        """Do nothing: a program is one thread here."""

    def get_bf16(self, value: float) -> Any:
        """Return a bfloat16 constant."""
        return TensorHandle(from_numbers(np.array([value], dtype=np.float32), tl.bfloat16), tl.bfloat16)

    create_bf16 = get_bf16

    def get_cache_policy(self, *_: Any) -> None:
        """Return nothing: there are no caches."""

    def __getattr__(self, name: str) -> Any:
        """Refuse, by name, what neither these classes nor Triton's interpreter know."""
        if name.startswith(("create_", "get_")):
            raise UnsupportedByEmulationError(f"Triton operation {name}, which the interpreter does not have")
        raise AttributeError(name)


@dataclass(frozen=True)
class Interpretation:
    """What the operations of a kernel do.

    Attributes:
        builder: what Triton's language calls for every operation.
        semantic: Triton's type rules on top of it.
        meaning: the ``ast.NodeTransformer`` that rewrites a kernel's text, with its ``helpers``; None for the usual.
    """

    builder: Any
    semantic: Any
    meaning: Any = None


@cache
def _computing() -> Interpretation:
    """Return that of this process, which computes.

    Its builder's class puts the methods here before those of Triton's interpreter, which supplies the rest.
    """
    kind = type("EmulatingBuilder", (Arithmetic, Atomics, Reductions, Calls, interpreter_builder_class()), {})
    made = kind()
    made.options = interpreter_options(debug=True, sanitize_overflow=False)
    return Interpretation(made, fast_semantic(made))


_others: list[Interpretation] = []


def interpretation() -> Interpretation:
    """Return the one in force."""
    return _others[-1] if _others else _computing()


@contextlib.contextmanager
def interpreted_as(other: Interpretation) -> Iterator[None]:
    """Have operations do what ``other`` says; only where no other thread runs a kernel."""
    _others.append(other)
    try:
        yield
    finally:
        _others.pop()


def builder() -> Any:
    """Return what Triton's language calls for every operation."""
    return interpretation().builder


def semantic() -> Any:
    """Return Triton's type rules on top of the builder."""
    return interpretation().semantic
