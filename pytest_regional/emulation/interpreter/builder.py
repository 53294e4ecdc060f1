"""The builder: what Triton's language calls for every operation, computing instead of building."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import triton.language as tl

from pytest_regional._torch.triton_language import interpreter_builder_class, interpreter_options
from pytest_regional.emulation.errors import KernelAssertionError, UnsupportedByEmulationError
from pytest_regional.emulation.interpreter import libdevice
from pytest_regional.emulation.interpreter.arithmetic import Arithmetic
from pytest_regional.emulation.interpreter.assembly import run_instruction
from pytest_regional.emulation.interpreter.atomics import Atomics
from pytest_regional.emulation.interpreter.fast_types import fast_semantic
from pytest_regional.emulation.interpreter.values import TensorHandle


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
        return libdevice.call(symbol, arguments, result_type)

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


@cache
def builder() -> Any:
    """Return the builder of this process.

    Its class puts the methods here before those of Triton's interpreter, which supplies the rest.
    """
    kind = type("EmulatingBuilder", (Arithmetic, Atomics, Calls, interpreter_builder_class()), {})
    made = kind()
    made.options = interpreter_options(debug=True, sanitize_overflow=False)
    return made


@cache
def semantic() -> Any:
    """Return Triton's type rules on top of the builder."""
    return fast_semantic(builder())
