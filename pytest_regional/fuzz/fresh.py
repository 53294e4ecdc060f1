"""Other inputs of the same kind: other values, memory layouts, and sizes where they are dynamic."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from pytest_regional.fuzz.arguments import LAYOUTS, TensorInput
from pytest_regional.fuzz.building import check
from pytest_regional.fuzz.program import Program, ProgramError
from pytest_regional.harness.parity.inputs import fresh_inputs

#: Layouts whose tensors can stand in for each other as far as operators go; an expanded one cannot be written to.
_FREE: tuple[Any, ...] = tuple(layout for layout in LAYOUTS if layout not in ("expanded", "channels_last"))


def fresh_program_inputs(program: Program, device: Any, seed: int, layout: int, size: int) -> tuple[torch.Tensor, ...]:
    """Return inputs of ``program`` drawn with another seed, laid out and sized otherwise where it runs with them."""
    for changed in (
        [_resized(_laid_out(argument, layout), size) for argument in program.arguments],
        [_laid_out(argument, layout) for argument in program.arguments],
    ):
        with contextlib.suppress(ProgramError, RuntimeError, ValueError):
            other = replace(program, arguments=tuple(changed))
            check(other)
            return other.inputs(device, seed)
    return program.inputs(device, seed)


def _laid_out(argument: TensorInput, layout: int) -> TensorInput:
    movable = layout and argument.layout in _FREE and argument.alias_of is None
    return replace(argument, layout=_FREE[layout % len(_FREE)]) if movable else argument


def _resized(argument: TensorInput, size: int) -> TensorInput:
    # A dynamic size never becomes 0 or 1, which compilers take for constants; equal sizes stay equal.
    shape = tuple(
        2 + (old + size - 2) % 14 if dim in argument.dynamic else old for dim, old in enumerate(argument.shape)
    )
    return replace(argument, shape=shape)


def fresh_arguments(
    inputs: tuple[Any, ...], dynamic: Mapping[int, Collection[int]], seed: int, layout: int, size: int
) -> tuple[Any, ...]:
    """Return arguments like ``inputs``, tensors with other values, and other sizes in the ``dynamic`` dimensions."""
    fresh = fresh_inputs(inputs, seed)
    return tuple(
        _changed(value, tuple(dynamic.get(position, ())), layout, size) if isinstance(value, torch.Tensor) else value
        for position, value in enumerate(fresh)
    )


def _changed(value: torch.Tensor, dims: tuple[int, ...], layout: int, size: int) -> torch.Tensor:
    made = value.detach()
    for dim in dims:
        wanted = 2 + (made.shape[dim] + size - 2) % 14
        rows = torch.arange(wanted, device=made.device) % made.shape[dim]
        made = made.index_select(dim, rows)
    if layout % 2 and made.dim() and made.is_contiguous():
        made = torch.stack([made, made], -1)[..., 0]
    same = not dims and made.stride() == value.stride()
    return value if same else made.requires_grad_(value.requires_grad)


__all__ = ["fresh_arguments", "fresh_program_inputs"]
