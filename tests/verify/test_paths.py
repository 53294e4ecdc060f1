"""Branches of a kernel, taken both ways one after the other, against the emulator, which takes one."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from pytest_regional.verify import PROVED, REFUTED, NotVerifiableError
from pytest_regional.verify.properties import WRITE, memory_safe, race_free

from .runs import Case, case, impossible, possible, question_about, touched


@triton.jit
def first_program(out, n):
    if tl.program_id(0) == 0:
        tl.store(out + n, 1)
    tl.store(out + 20 + tl.program_id(0), 1)


@triton.jit
def early_store(out, n):
    p = tl.program_id(0)
    if p < n:
        tl.store(out + p, 1)
        return
    tl.store(out + 100 + p, 1)


@triton.jit
def programs_divided(out, other, n, XBLOCK: tl.constexpr):
    p = tl.program_id(0)
    if p % 2 == 0:
        x = p // 2 * XBLOCK + tl.arange(0, XBLOCK)
        tl.store(out + x, 1, x < n)
    elif p == 1:
        x = tl.arange(0, XBLOCK * 2)
        tl.store(other + x, 1, x < n)
    else:
        x = (p - 3) * XBLOCK + tl.arange(0, XBLOCK)
        tl.store(other + 50 + x, 1, x > n)


@triton.jit
def axes_by_program(out, n, XBLOCK: tl.constexpr):
    # Both sides make an index of the same size, of different programs.
    if tl.program_id(2) == 0:
        x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    else:
        x = tl.program_id(1) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + x + 100 * tl.program_id(0) + 1000 * tl.program_id(2), 1, x < n)


@triton.jit
def loops_by_program(out, n, k):
    x = 0
    if tl.program_id(0) == 0:
        for _ in range(n):
            x += 2
    else:
        for _ in range(k):
            x += 2
    tl.store(out + x, 1)


@triton.jit
def loops_after_a_branch_in_a_loop(out, n, k):
    x, y = 0, 0
    for r in range(n):
        if r == 1:
            for _ in range(k):
                tl.store(out + 300 + r, 1)
    for _ in range(n):
        x += 2
    for _ in range(k):
        y += 3
    tl.store(out + x + 20 * y, 1)


@triton.jit
def branch_by_round(out, n):
    x = 0
    for r in range(n):
        if r % 2 == 0:
            x += 1
        else:
            x += 5
        tl.store(out + x, 1)
    tl.store(out + 50 + x, 1)


@triton.jit
def branch_by_what_is_carried(out, n):
    x = 1
    for _ in range(n):
        if x > 3:
            x += 10
        else:
            x += 1
        tl.store(out + x, 1)


@triton.jit
def branch_by_data(keys, out, n):
    x = 0
    for _ in range(n):
        if tl.load(keys) > 3:
            x += 10
        else:
            x += 1
        tl.store(keys, x)
        tl.store(out + x, 1)


@triton.jit
def branch_by_program(out, n):
    x = 0
    for _ in range(n):
        if tl.program_id(0) == 0:
            x += 2
        else:
            x += 3
        tl.store(out + 40 * tl.program_id(0) + x, 1)


@triton.jit
def store_in_some_rounds(out, n):
    for r in range(n):
        if r > 2:
            tl.store(out + r, 1)
        tl.store(out + 50 + r, 1)


@triton.jit
def chosen_by_size(out, n):
    place = 3 if n > 4 else 5
    tl.store(out + place, 1)


@triton.jit
def both_and_either(out, n, k):
    p = tl.program_id(0)
    if p > 0 and p < n:
        tl.store(out + p, 1)
    if p == 0 or p > k:
        tl.store(out + 20 + p, 1)
    if not p > k:
        tl.store(out + 40 + p, 1)


@triton.jit
def one_line(out, n):
    p = tl.program_id(0)
    for turn in tl.static_range(2):
        if p == turn * n:
            tl.store(out + p, 1)


@triton.jit
def many(out, n):
    x = 0
    for bit in tl.static_range(7):
        if tl.program_id(0) % (2 + bit) == 0:
            x += 1
    tl.store(out + x, 1)


OUT = torch.zeros(4000, dtype=torch.int32)

EXACT = [
    case(one_line, 5, out=OUT, n=3),
    case(first_program, 3, out=OUT, n=7),
    case(early_store, 5, out=OUT, n=2),
    case(programs_divided, 5, out=OUT, other=OUT, n=7, XBLOCK=4),
    case(axes_by_program, 3, 3, 2, out=OUT, n=7, XBLOCK=4),
    case(loops_by_program, 2, out=OUT, n=7, k=4),
    case(store_in_some_rounds, out=OUT, n=6),
    case(chosen_by_size, out=OUT, n=6),
    case(chosen_by_size, out=OUT, n=3),
    case(both_and_either, 6, out=OUT, n=3, k=4),
    case(branch_by_program, 3, out=OUT, n=4),
]

SUPERSETS = [
    case(loops_after_a_branch_in_a_loop, out=OUT, n=4, k=3),
    case(branch_by_round, out=OUT, n=5),
    case(branch_by_what_is_carried, out=OUT, n=6),
    case(branch_by_data, keys=torch.tensor([1], dtype=torch.int32), out=OUT, n=6),
]


@pytest.mark.parametrize("given", EXACT, ids=str)
def test_both_sides_stand_for_one(given: Case):
    assert possible(given) == touched(given)


@pytest.mark.parametrize("given", SUPERSETS, ids=str)
def test_nothing_is_left_out(given: Case):
    assert impossible(given) == []


def test_stores_on_either_side_are_safe():
    given = case(early_store, 5, out=torch.zeros(105, dtype=torch.int32), n=2)
    assert memory_safe(question_about(given)).verdict == race_free(question_about(given)).verdict == PROVED
    given = case(early_store, 5, out=torch.zeros(104, dtype=torch.int32), n=2)
    outcome = memory_safe(question_about(given))
    assert (outcome.verdict, outcome.counterexample.programs) == (REFUTED, ((4, 0, 0),))


def test_what_is_done_on_either_side_is_one_access():
    accesses = question_about(case(first_program, 3, out=OUT, n=7)).run.accesses
    assert [len(access.conditions) for access in accesses if access.kind == WRITE] == [1, 0]


def test_too_many_paths_are_refused():
    with pytest.raises(NotVerifiableError, match="more than 64 paths"):
        question_about(case(many, 3, out=OUT, n=1))
