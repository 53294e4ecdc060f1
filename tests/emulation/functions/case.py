"""One function of the coverage table, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
FLOATS = ("f32", "f64", "bf16")
HALVES = ("f32", "f64", "bf16", "f16")
SINGLE = ("f32",)
WIDE = ("f32", "f64")


@dataclass(frozen=True)
class Defect:
    """What PyTorch itself gets wrong in a case: a script of ``docs/findings``, and the first version without it.

    ``forward=False`` is a defect of the backward alone.
    """

    finding: str
    mended: tuple[int, int]
    dtypes: tuple[str, ...] = tuple(DTYPES)
    forward: bool = True


@dataclass(frozen=True)
class Case:
    """A function, its inputs, and what it is to do.

    ``inputs`` draws float32 and integer tensors from the seeded generator; floating ones are rounded to the dtype under
    test, and the float64 reference gets the rounded values. ``again`` are inputs of a second call of the same compiled
    function. ``terms`` is how many numbers the longest sum in it adds up, for another order of summing costs more than
    four times eager's own error. ``kernels=False`` says that Inductor calls library functions only; otherwise Triton
    kernels must have been generated and launched. ``reference`` is what eager runs where it cannot run the function
    itself on CPU. ``check`` judges the outputs, given the inputs, where there is no reference. ``anchored=False`` is
    for draws of random numbers, which are others in float64. ``raises`` is a part of the message of the expected error.
    ``before`` says what torch older than ``since`` does with it.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    backward: bool = False
    dtypes: tuple[str, ...] = FLOATS
    configs: Mapping[str, Any] = field(default_factory=dict)
    dynamo: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    again: Callable[[], Sequence[Any]] | None = None
    reference: Callable[..., Any] | None = None
    check: Callable[[Sequence[torch.Tensor], Sequence[Any]], None] | None = None
    raises: str | None = None
    anchored: bool = True
    kernels: bool = True
    terms: int = 1
    since: tuple[int, int] = (2, 11)
    before: str = "does not have it"
    defect: Defect | None = None
