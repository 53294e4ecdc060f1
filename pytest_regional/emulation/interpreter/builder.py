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

from pytest_regional._torch.triton import interpreter_builder_class, interpreter_options
from pytest_regional.emulation.device import KernelAssertionError, UnsupportedByEmulationError
from pytest_regional.emulation.interpreter import arithmetic
from pytest_regional.emulation.interpreter.accesses import Atomics
from pytest_regional.emulation.interpreter.arithmetic import Arithmetic, fused_multiply_add
from pytest_regional.emulation.interpreter.reductions import Reductions
from pytest_regional.emulation.interpreter.values import (
    Array,
    TensorHandle,
    as_numbers,
    fast_semantic,
    from_numbers,
    numpy_type,
)

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

    def create_bf16(self, value: float) -> Any:
        """Return a bfloat16 constant."""
        return self.get_bf16(value)

    def get_bf16(self, value: float) -> Any:
        """Return a bfloat16 constant."""
        from pytest_regional.emulation.interpreter.values import from_numbers

        return TensorHandle(from_numbers(np.array([value], dtype=np.float32), tl.bfloat16), tl.bfloat16)

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
