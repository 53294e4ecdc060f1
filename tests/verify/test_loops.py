"""Loops of a kernel, run once for all rounds, against the emulator, which runs each."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from pytest_regional.verify import PROVED, REFUTED, NotVerifiableError
from pytest_regional.verify.properties import memory_safe

from .runs import Case, case, impossible, possible, question_about, touched


@triton.jit
def counted(out, n, XBLOCK: tl.constexpr):
    for r in range(n):
        tl.store(out + r * XBLOCK + tl.arange(0, XBLOCK), r)


@triton.jit
def strided(out, start, stop, STEP: tl.constexpr):
    for r in range(start, stop, STEP):
        tl.store(out + tl.program_id(0) * 100 + r, r)


@triton.jit
def reduction(values, out, rows, n, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    base = tl.arange(0, R0_BLOCK)[None, :]
    total = tl.full((XBLOCK, R0_BLOCK), 0, tl.int32)
    for offset in tl.range(0, n, R0_BLOCK):
        r = offset + base
        total = total + tl.load(values + r + n * x, (r < n) & (x < rows), other=0)
    tl.store(out + x, tl.sum(total, 1)[:, None], x < rows)


@triton.jit
def carried_integer(out, n, k):
    x = k
    for _ in range(n):
        tl.store(out + tl.program_id(0) * 200 + x, x)
        x += 3
    tl.store(out + 1000 + x, x)


@triton.jit
def carried_from_a_number(out, n):
    x = 0
    y = 50
    for _ in range(n):
        x = x + 4
        y = 2 + y
        tl.store(out + x + 60 * y, x)
    tl.store(out + x + y, x)


@triton.jit
def carried_down(out, n):
    x = 50
    for _ in range(n):
        x = x - 4
        tl.store(out + x, x)


@triton.jit
def carried_block(out, n, XBLOCK: tl.constexpr):
    x = tl.arange(0, XBLOCK)
    for r in range(2, n):
        x += XBLOCK * 2
        tl.store(out + x, r)
    tl.store(out + 500 + x, 1, x < 30)


@triton.jit
def carried_pointer(out, n, k, XBLOCK: tl.constexpr):
    place = out + tl.arange(0, XBLOCK)
    for _ in range(n):
        tl.store(place, 1)
        place += k
    tl.store(place + 500, 1)


@triton.jit
def carried_by_what_differs(out, n):
    x = 0
    for r in range(n):
        x += r
        tl.store(out + x, 1)


@triton.jit
def carried_around(out, n):
    x, y = 0, 100
    for _ in range(n):
        tl.store(out + x, 1)
        x, y = y, x + 7


@triton.jit
def carried_by_program(out, n):
    x = 0
    for _ in range(n):
        x += tl.program_id(0)
        tl.store(out + x, 1)


@triton.jit
def carried_tuple(out, n):
    pair = (0, 100)
    for _ in range(n):
        tl.store(out + pair[0] + pair[1], 1)
        pair = (pair[0] + 2, pair[1] + 20)


@triton.jit
def nested(out, n, k):
    for i in range(n):
        for j in range(1, k):
            tl.store(out + 20 * i + j, 1)
        tl.store(out + 500 + i, 1)


@triton.jit
def nested_and_carried(out, n, k):
    x = 0
    for i in range(n):
        x += 100
        y = x
        for _ in range(k):
            y += 3
            tl.store(out + y, i)
        tl.store(out + 1000 + y, 1)


@triton.jit
def carried_through(out, n, k):
    x = 0
    for _ in range(n):
        for _ in range(k):
            x += 3
            tl.store(out + x, 1)


@triton.jit
def triangle(out, n):
    for i in range(n):
        for j in range(i, n):
            tl.store(out + 20 * i + j, 1)


@triton.jit
def one_round(out, n):
    x = 5
    for r in range(3, 4):
        x += n
        tl.store(out + x + r, 1)
    tl.store(out + 100 + x, 1)


@triton.jit
def no_round(out, n):
    x = 5
    for _ in range(4, 4):
        x += n
        tl.store(out + 300, 1)
    tl.store(out + 100 + x, 1)


@triton.jit
def written_out(out, n):
    x = 0
    for r in tl.static_range(1, 4):
        x += r * n
        tl.store(out + 100 * r + x, 1)


@triton.jit
def rounds_of_a_program(out, n):
    x = 0
    for _ in range(tl.program_id(0) + n):
        x += 3
        tl.store(out + 100 * tl.program_id(0) + x, 1)
    tl.store(out + 1000 + 100 * tl.program_id(0) + x, 1)


@triton.jit
def grid_of_rounds(out, n, XBLOCK: tl.constexpr):
    for offset in range(tl.program_id(0) * XBLOCK, n, tl.num_programs(0) * XBLOCK):
        x = offset + tl.arange(0, XBLOCK)
        tl.store(out + x, x, x < n)


@triton.jit
def carried_data(keys, out, n):
    x = 0
    for r in range(n):
        x += tl.load(keys + r)
        tl.store(out + x, 1)


@triton.jit
def carried_by_what_it_stores(sums, out, n):
    x = 0
    for _ in range(n):
        tl.store(out + x, 1)
        step = tl.load(sums)
        x += step
        tl.store(sums, step * 2)


@triton.jit
def loaded_anew(counts, out, n):
    for r in range(n):
        tl.store(out + 10 * tl.load(counts) + r, 1)
        tl.store(counts, r)


@triton.jit
def wrapping(out, n):
    x = 0
    for _ in range(n):
        place = tl.broadcast_to(x, (2,))
        tl.store(out + 8 + place, 1, (place < 10) & (place > -5))
        x += 1073741824


@triton.jit
def wrapping_afterwards(out, n):
    x = 0
    for _ in range(n):
        x += 1073741824
    place = tl.broadcast_to(x, (2,))
    tl.store(out + 8 + place, 1, (place < 10) & (place > -5))


@triton.jit
def other_argument(out, other, n):
    place = out
    for _ in range(n):
        tl.store(place, 1)
        place = other


@triton.jit
def other_type(out, n):
    x = 1
    for _ in range(n):
        tl.store(out + x, 1)
        x = x.to(tl.int64) * 70000


@triton.jit
def downwards(out, n):
    for r in range(n, 0, -1):
        tl.store(out + r, 1)


OUT = torch.zeros(4000, dtype=torch.int32)

EXACT = [
    case(counted, out=OUT, n=5, XBLOCK=4),
    case(counted, out=OUT, n=5, XBLOCK=1),
    case(counted, out=OUT, n=0, XBLOCK=4),
    case(strided, 2, out=OUT, start=3, stop=20, STEP=4),
    case(strided, 2, out=OUT, start=3, stop=19, STEP=4),
    case(reduction, 2, values=torch.ones(300, dtype=torch.int32), out=OUT, rows=7, n=11, XBLOCK=4, R0_BLOCK=4),
    case(carried_integer, 2, out=OUT, n=5, k=7),
    case(carried_from_a_number, out=OUT, n=5),
    case(carried_block, out=OUT, n=5, XBLOCK=4),
    case(carried_pointer, out=OUT, n=5, k=9, XBLOCK=4),
    case(nested, out=OUT, n=4, k=5),
    case(nested_and_carried, out=OUT, n=3, k=4),
    case(triangle, out=OUT, n=5),
    case(one_round, out=OUT, n=7),
    case(no_round, out=OUT, n=7),
    case(written_out, out=OUT, n=7),
    case(rounds_of_a_program, 3, out=OUT, n=2),
]

# What is carried is unknown, within the limits of its type: too many models to count.
UNKNOWN_CARRIED = [
    case(carried_down, out=OUT, n=5),
    case(carried_by_what_differs, out=OUT, n=5),
    case(carried_around, out=OUT, n=5),
    case(carried_by_program, 3, out=OUT, n=5),
    case(carried_tuple, out=OUT, n=5),
    case(carried_through, out=OUT, n=3, k=4),
    case(carried_data, keys=torch.tensor([3, 1, 4, 1, 5], dtype=torch.int32), out=OUT, n=5),
    case(carried_by_what_it_stores, sums=torch.tensor([3], dtype=torch.int32), out=OUT, n=5),
    case(loaded_anew, counts=torch.tensor([9], dtype=torch.int32), out=OUT, n=5),
]


@pytest.mark.parametrize("given", EXACT, ids=str)
def test_one_round_stands_for_all(given: Case):
    assert possible(given) == touched(given)


@pytest.mark.parametrize("given", UNKNOWN_CARRIED, ids=str)
def test_nothing_is_left_out(given: Case):
    assert impossible(given) == []


@pytest.mark.parametrize("kernel", [wrapping, wrapping_afterwards], ids=lambda kernel: kernel.__name__)
def test_what_is_carried_may_overflow(kernel: object):
    outcome = memory_safe(question_about(case(kernel, out=OUT, n=6)))
    assert (outcome.verdict, outcome.reason.split(":")[0]) == (REFUTED, "the mask of a store overflows")
    assert memory_safe(question_about(case(kernel, out=OUT, n=1))).verdict == PROVED


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (case(other_argument, out=OUT, other=OUT, n=3), "which argument a pointer points into"),
        (case(other_type, out=OUT, n=3), "the type of a variable"),
        (case(downwards, out=OUT, n=3), "whose step is not a positive constant"),
    ],
    ids=["argument", "type", "step"],
)
def test_what_one_round_cannot_stand_for_is_refused(given: Case, reason: str):
    with pytest.raises(NotVerifiableError, match=reason):
        possible(given)
