"""Single PTX instructions as numpy functions; anything longer is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_regional.emulation.errors import UnsupportedByEmulationError
from pytest_regional.emulation.interpreter.arithmetic import fused_multiply_add
from pytest_regional.emulation.interpreter.values import Array, TensorHandle, as_numbers, from_numbers, numpy_type

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
