"""Faults of values: a region hands over what is right in the wrong way, or what is right for another call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from tests.faults.planting import Mutant, Patch
from tests.faults.rewriting import (
    Call,
    alike,
    calls,
    exchanged,
    is_float,
    results,
)

INTERLEAVED = "suites/regions/test_interleaved.py"
EFFECTS = "suites/regions/test_effects.py"
STRIDES = "suites/regions/test_strides.py"
BOUNDARIES = "suites/regions/test_values_across_borders.py"
SIZES = "suites/regions/test_symbolic_sizes.py"
VALUES = "suites/regions/test_values.py"
NORM = "suites/models/test_norm_residual_silu.py"
MOE = "suites/models/test_moe.py"
LLAMA = "suites/models/test_llama.py"
aten = torch.ops.aten


# Calls


def _results_exchanged(right: Call) -> Call:
    return lambda *arguments: exchanged(right(*arguments))


def _arguments_exchanged(right: Call) -> Call:
    return lambda *arguments: right(*exchanged(arguments))


def _first_input_kept(right: Call) -> Call:
    kept: list[torch.Tensor] = []

    def call(*arguments: Any) -> Sequence[Any]:
        changed = list(arguments)
        number = next((i for i, value in enumerate(changed) if is_float(value)), None)
        if number is not None:
            kept.append(changed[number].detach().clone())
            if alike(kept[0], changed[number]):
                changed[number] = kept[0]
        return right(*changed)

    return call


def _first_sizes_kept(right: Call) -> Call:
    kept: list[int] = []

    def call(*arguments: Any) -> Sequence[Any]:
        sizes = [value for value in arguments if type(value) is int]
        kept.extend(sizes[len(kept) :])
        remaining = iter(kept)
        return right(*[next(remaining) if type(value) is int else value for value in arguments])

    return call


def _input_overwritten(right: Call) -> Call:
    def call(*arguments: Any) -> Sequence[Any]:
        made = right(*arguments)
        pair = next(((a, m) for m in made for a in arguments if is_float(a) and alike(a, m)), None)
        if pair and pair[0].untyped_storage()._cdata != pair[1].untyped_storage()._cdata:
            pair[0].detach().data.copy_(pair[1].detach())
        return made

    return call


def _same_memory_each_time(right: Call) -> Call:
    kept: list[torch.Tensor] = []

    def call(*arguments: Any) -> Sequence[Any]:
        made = list(right(*arguments))
        if made and is_float(made[0]) and not made[0].requires_grad:
            if kept and alike(kept[0], made[0]):
                kept[0].copy_(made[0])
                made[0] = kept[0]
            elif not kept:
                kept.append(made[0])
        return made

    return call


def _aliases_cloned(right: Call) -> Call:
    def call(*arguments: Any) -> Sequence[Any]:
        given = {value.untyped_storage()._cdata for value in arguments if isinstance(value, torch.Tensor)}
        return [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in given
            else value
            for value in right(*arguments)
        ]

    return call


def _turned(value: torch.Tensor) -> torch.Tensor:
    """Lay a matrix out by columns where it was by rows."""
    if value.dim() < 2 or not value.is_contiguous() or min(value.shape[-2:]) < 2:
        return value
    return value.transpose(-1, -2).contiguous().transpose(-1, -2)


def _widened(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


def _tail_off(value: torch.Tensor) -> torch.Tensor:
    if value.numel() < 3 or value.numel() % 4 == 0:
        return value
    changed = value.clone()
    changed[(-1,) * value.dim()] *= 1.01
    return changed


def _nan_lost(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value.isnan(), torch.zeros_like(value), value)


def _own_draws(right: Call) -> Call:
    def call(*arguments: Any) -> Sequence[Any]:
        before = torch.get_rng_state()
        torch.manual_seed(0)
        try:
            return right(*arguments)
        finally:
            torch.set_rng_state(before)

    return call


def _one_draw_more(right: Call) -> Call:
    def call(*arguments: Any) -> Sequence[Any]:
        torch.rand(())
        return right(*arguments)

    return call


def _reseeded(right: Call) -> Call:
    def call(*arguments: Any) -> Sequence[Any]:
        torch.manual_seed(0)
        return right(*arguments)

    return call


_waiting: list[tuple[Any, ...]] = []


def _arguments_in_one_place(right: Call) -> Call:
    def call(*arguments: Any) -> Sequence[Any]:
        _waiting[:] = [arguments]
        time.sleep(0.001)
        return right(*_waiting[0])

    return call


FAULTS = (
    Mutant(
        "threads_mixed",
        "the arguments of a region's call wait in one place for all threads",
        ("threads",),
        ("suites/regions/test_threads.py",),
        calls(_arguments_in_one_place),
        errors=("*",),
    ),
    Mutant(
        "results_exchanged",
        "the first two results of a region that look alike are exchanged",
        ("parity",),
        (INTERLEAVED, BOUNDARIES, "suites/regions/test_nesting.py", MOE, LLAMA),
        calls(_results_exchanged),
    ),
    Mutant(
        "arguments_exchanged",
        "the first two inputs of a region that look alike are exchanged",
        ("parity",),
        (INTERLEAVED, NORM, BOUNDARIES, LLAMA),
        calls(_arguments_exchanged),
    ),
    Mutant(
        "first_input_kept",
        "a region computes with the first input of its first call, for ever",
        ("parity", "region_boundary"),
        (INTERLEAVED, NORM),
        calls(_first_input_kept),
    ),
    Mutant(
        "first_size_kept",
        "a region takes the sizes of its first call for those of all",
        ("caches", "parity", "compiles"),
        (SIZES,),
        calls(_first_sizes_kept),
        errors=("*",),
        modes=("caches",),
    ),
    Mutant(
        "input_overwritten",
        "a region writes its result into an input that looks like it, which others may still read",
        ("parity",),
        (INTERLEAVED, EFFECTS, NORM),
        calls(_input_overwritten),
    ),
    Mutant(
        "result_memory_reused",
        "a region returns the same memory from every call",
        ("parity", "warm", "results_kept"),
        (INTERLEAVED, "suites/regions/test_nesting.py", "suites/regions/test_nested_compile_region.py", NORM),
        calls(_same_memory_each_time),
        needs=("family:call", "family:nested", "block:called several times", "region:feeds a region"),
    ),
    Mutant(
        "alias_broken",
        "a result of a region that is a view of its input is a copy instead",
        ("region_boundary", "parity"),
        (BOUNDARIES, STRIDES, EFFECTS, "suites/regions/test_lifetimes.py"),
        calls(_aliases_cloned),
    ),
    Mutant(
        "strides_changed",
        "matrices leave a region laid out by columns",
        ("region_boundary", "parity"),
        (INTERLEAVED, STRIDES, BOUNDARIES),
        results(_turned),
        errors=("*",),
    ),
    Mutant(
        "strides_not_restored",
        "strides that Inductor chose leave the region",
        ("region_boundary", "parity", "compiles"),
        (STRIDES,),
        (Patch("compile_regions:restore_strides", lambda original: lambda call, actual: []),),
        errors=("*",),
        needs=("region",),
        modes=("emulated",),
    ),
    Mutant(
        "result_widened",
        "results of low precision leave a region as float32",
        ("region_boundary", "parity", "compiles"),
        (NORM, BOUNDARIES),
        results(_widened),
        errors=("*",),
    ),
    Mutant(
        "tail_of_loop_wrong",
        "the last element is off by one per cent where the number of elements is no multiple of four",
        ("parity",),
        (VALUES,),
        results(_tail_off),
    ),
    Mutant(
        "nan_lost",
        "a region returns zero where it should return NaN",
        ("parity",),
        (VALUES,),
        results(_nan_lost),
        needs=("input:nonfinite",),
    ),
    Mutant(
        "own_draws",
        "a region draws its random numbers from a generator of its own",
        ("parity",),
        (EFFECTS,),
        calls(_own_draws),
        needs=("draws",),
    ),
    Mutant(
        "one_draw_more",
        "a region draws one number too many, so that all later draws are others",
        ("parity",),
        (EFFECTS,),
        calls(_one_draw_more),
        needs=("draws",),
    ),
    Mutant(
        "reseeded",
        "a region seeds the random generator, whether it draws or not",
        ("parity",),
        (BOUNDARIES,),
        calls(_reseeded),
    ),
)
