"""What a kernel may do to memory, by its run on symbols, against what it does when the emulator runs it."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from .runs import Case, case, possible, touched

# Kernels store at the offset that the expression under test computes, moved by a constant where it may be negative.


@triton.jit
def one_axis(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, x, x < n)


@triton.jit
def digits(out, n, k, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + 1000 + (x % k + 100 * (x // k)), x, x < n)


@triton.jit
def negative_digits(out, n, k, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:] - 9
    tl.store(out + 1000 + (x % k + 100 * (x // k)), x, x < n)


@triton.jit
def digits_of_constants(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:] - 9
    tl.store(out + 1000 + (x % 4 + 100 * (x // 4)), x, x < n)
    tl.store(out + 1000 + (x % -4 - 100 * (x // -4)), x, x < n)


@triton.jit
def smallest_and_largest(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + tl.minimum(x, n) + 20 * tl.maximum(x - 3, n // 2), x)


@triton.jit
def choices(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + tl.where(x < n, 2 * x, tl.where(x % 3 == 0, 200 + x, 100 - x)), x)


@triton.jit
def choices_of_truths(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, x, tl.where(x < n, x % 3 == 0, x > n + 2))


@triton.jit
def shifts(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:] - 5
    tl.store(out + 200 + (x << 3) + (x >> 1), x, x < n)


@triton.jit
def unsigned_shifts(out, n, XBLOCK: tl.constexpr):
    x = (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]).to(tl.uint32)
    tl.store(out + (x >> 2) + 30 * (x % 3) + 100 * (x // 5), x, x < n)


@triton.jit
def masks_of_bits(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:] - 9
    tl.store(out + 100 + (x & 7) + 16 * (3 & x) - 64 * (x & 0), x, x < n)


@triton.jit
def truths(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    even, small, third = x % 2 == 0, x < n, x % 3 == 0
    tl.store(out + x, x, (even & small) | (third ^ even) & ~small)
    tl.store(out + 100 + x, x, even != third)
    tl.store(out + 200 + x, x, even == small)
    tl.store(out + 300 + x, x, even < small)
    tl.store(out + 400 + (even.to(tl.int32) + 2 * small.to(tl.int32) + 4 * third), x)


@triton.jit
def comparisons(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, x, x < n)
    tl.store(out + 50 + x, x, x <= n)
    tl.store(out + 100 + x, x, x > n)
    tl.store(out + 150 + x, x, x >= n)
    tl.store(out + 200 + x, x, x == n)
    tl.store(out + 250 + x, x, x != n)


@triton.jit
def absolute_values(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + tl.abs(x - n) + 40 * (-x + 20), x, x < 20)


@triton.jit
def widened(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0).to(tl.int64) * XBLOCK + tl.arange(0, XBLOCK)[:].to(tl.int64)
    tl.store(out + (x.to(tl.int16).to(tl.int32) * 2).to(tl.int64), x, x < n)


@triton.jit
def two_axes(out, rows, columns, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    y = tl.program_id(1) * YBLOCK + tl.arange(0, YBLOCK)[:, None]
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[None, :]
    tl.store(out + x + columns * y, x + y, (x < columns) & (y < rows))


@triton.jit
def columns_of_a_big_grid(out, rows, columns, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    y = (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)) * YBLOCK + tl.arange(0, YBLOCK)[:, None]
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[None, :]
    tl.store(out + x + columns * y, x + y, (x < columns) & (y < rows))


@triton.jit
def programs_counted(out, n):
    tl.store(out + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0) + n, 1)


@triton.jit
def one_axis_twice(out, n, XBLOCK: tl.constexpr):
    first, second = tl.arange(0, XBLOCK), tl.arange(0, XBLOCK)
    x = tl.program_id(0) * XBLOCK + first
    other = tl.program_id(0) * XBLOCK + second
    tl.store(out + x + 30 * other, x, (second < 3) & (x < n))
    tl.store(out + second + 30 * x, x, first != 2)


@triton.jit
def equal_sizes(out, n, XBLOCK: tl.constexpr):
    x = tl.arange(0, XBLOCK)
    tl.store(out + x[:, None] * 10 + tl.arange(0, XBLOCK)[None, :], 1)
    tl.store(out + 100 + x[:, None] * 10 + x[None, :] * n, 1)


@triton.jit
def squares(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + x[:, None] + 20 * x[None, :], 1, (x[:, None] < n) & (x[None, :] != x[:, None]))


@triton.jit
def transposed(out, n, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    y, x = tl.arange(0, YBLOCK)[:, None], tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[None, :]
    turned = tl.trans(x + 20 * y)
    tl.store(out + turned + 200 * tl.arange(0, XBLOCK)[:, None], turned, turned % 20 < n)


@triton.jit
def turned_axes(out, n, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    block = tl.arange(0, YBLOCK)[:, None, None] * 9 + tl.arange(0, XBLOCK)[None, :, None] * 3
    block = block + tl.arange(0, 2)[None, None, :]
    block = tl.permute(block, (2, 0, 1))
    tl.store(out + block + 100 * tl.arange(0, 2)[:, None, None], block, block < n)


@triton.jit
def reshaped(out, n, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    y, x = tl.arange(0, YBLOCK)[:, None], tl.arange(0, XBLOCK)[None, :]
    flat = tl.reshape(x + 20 * y, (YBLOCK * XBLOCK,))
    lanes = tl.arange(0, YBLOCK * XBLOCK)
    tl.store(out + flat + 100 * lanes, flat, lanes < n)
    back = tl.reshape(lanes, (XBLOCK, YBLOCK))
    tl.store(out + 2000 + back + 40 * tl.arange(0, XBLOCK)[:, None] + 400 * tl.arange(0, YBLOCK)[None, :], 1)


@triton.jit
def reshaped_indices(out, n, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    block = tl.reshape(x, (YBLOCK, XBLOCK // YBLOCK))
    tl.store(out + block + 50 * tl.arange(0, YBLOCK)[:, None], block, block < n)


@triton.jit
def ones_inserted(out, n, XBLOCK: tl.constexpr):
    x = tl.arange(0, XBLOCK)
    block = tl.expand_dims(tl.expand_dims(x, 0), 2)
    flat = tl.reshape(block + tl.zeros((1, XBLOCK, 1), tl.int32), (XBLOCK, 1))
    tl.store(out + tl.reshape(flat, (XBLOCK,)) + 20 * x, 1, x < n)


@triton.jit
def broadcast(out, n, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    y = tl.broadcast_to(tl.arange(0, YBLOCK)[:, None], (YBLOCK, XBLOCK))
    x = tl.broadcast_to(tl.arange(0, XBLOCK)[None, :], (YBLOCK, XBLOCK))
    tl.store(out + x + 10 * y + tl.full((YBLOCK, XBLOCK), 3, tl.int32), y, x + y < n)


@triton.jit
def repeated(out, n, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    y = tl.arange(0, YBLOCK)[:, None] + tl.program_id(0) * YBLOCK
    tl.store(out + tl.broadcast_to(y, (YBLOCK, XBLOCK)), 1, tl.arange(0, XBLOCK)[None, :] > n)


@triton.jit
def pointers_moved(out, n, XBLOCK: tl.constexpr):
    start = out + tl.program_id(0) * XBLOCK
    start += 5
    tl.store(start + tl.arange(0, XBLOCK) * n, 1)


@triton.jit
def addresses_chosen(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(tl.where(x < n, out + x, out + 100 - x), x)


@triton.jit
def updates(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.atomic_add(out + x // 2, 1, x < n)
    tl.atomic_xchg(out + 50 + tl.program_id(0), 1)
    tl.atomic_cas(out + 60 + 2 * tl.program_id(0), 0, 1)


@triton.jit
def twice(x, n):
    return 2 * x + n


@triton.jit
def calls(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + twice(twice(x, n), 1), x)


@triton.jit
def truth_of_several(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + x, x, 3 <= x < n)
    tl.store(out + 100 + x, x, (x < 2) or (x > n))
    tl.store(out + 200 + x, x, not (x < n))


OUT = torch.zeros(4000, dtype=torch.int32)
BLOCK, TILE = {"XBLOCK": 8}, {"YBLOCK": 4, "XBLOCK": 8}

EXACT = [
    case(reshaped_indices, 2, out=OUT, n=13, YBLOCK=4, XBLOCK=8),
    case(squares, 2, out=OUT, n=9, XBLOCK=4),
    case(one_axis, 3, out=OUT, n=21, **BLOCK),
    case(one_axis, 5, out=OUT, n=4, XBLOCK=1),
    case(digits, 3, out=OUT, n=21, k=5, **BLOCK),
    case(digits, 3, out=OUT, n=21, k=-5, **BLOCK),
    case(negative_digits, 3, out=OUT, n=11, k=4, **BLOCK),
    case(negative_digits, 3, out=OUT, n=11, k=-3, **BLOCK),
    case(digits_of_constants, 3, out=OUT, n=11, **BLOCK),
    case(smallest_and_largest, 2, out=OUT, n=9, **BLOCK),
    case(choices, 2, out=OUT, n=9, **BLOCK),
    case(choices_of_truths, 2, out=OUT, n=9, **BLOCK),
    case(shifts, 2, out=OUT, n=9, **BLOCK),
    case(unsigned_shifts, 2, out=OUT, n=13, **BLOCK),
    case(masks_of_bits, 3, out=OUT, n=11, **BLOCK),
    case(truths, 2, out=OUT, n=7, **BLOCK),
    case(comparisons, 2, out=OUT, n=7, **BLOCK),
    case(absolute_values, 3, out=OUT, n=7, **BLOCK),
    case(widened, 3, out=OUT, n=21, **BLOCK),
    case(two_axes, 2, 3, out=OUT, rows=10, columns=13, **TILE),
    case(two_axes, 3, 2, out=OUT, rows=4, columns=5, YBLOCK=2, XBLOCK=2),
    case(columns_of_a_big_grid, 2, 2, 2, out=OUT, rows=7, columns=5, YBLOCK=2, XBLOCK=4),
    case(columns_of_a_big_grid, 1, 3, 2, out=OUT, rows=5, columns=3, YBLOCK=1, XBLOCK=4),
    case(programs_counted, 3, 4, out=OUT, n=7),
    case(one_axis_twice, 3, out=OUT, n=21, **BLOCK),
    case(equal_sizes, out=OUT, n=3, XBLOCK=4),
    case(transposed, 2, out=OUT, n=11, **TILE),
    case(turned_axes, out=OUT, n=20, YBLOCK=4, XBLOCK=4),
    case(reshaped, out=OUT, n=19, **TILE),
    case(ones_inserted, out=OUT, n=5, **BLOCK),
    case(broadcast, out=OUT, n=7, **TILE),
    case(repeated, 3, out=OUT, n=3, **TILE),
    case(pointers_moved, 3, out=OUT, n=4, **BLOCK),
    case(addresses_chosen, 2, out=OUT, n=9, **BLOCK),
    case(updates, 3, out=OUT, n=21, **BLOCK),
    case(calls, 2, out=OUT, n=3, **BLOCK),
    case(truth_of_several, 2, out=OUT, n=9, **BLOCK),
]


@pytest.mark.parametrize("given", EXACT, ids=str)
def test_symbols_do_what_the_kernel_does(given: Case):
    assert possible(given) == touched(given)
