"""Reductions, scans, sorting and rearranging."""

import pytest
import torch
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers

from .launching import run

ROWS, COLUMNS = 4, 16


@triton.jit
def add_up(a, b):
    return a + b


@triton.jit
def smaller_product(a, b):
    return tl.where(a < b, a, b) * 1


@triton.jit
def weighted(value_1, weight_1, value_2, weight_2):
    weight = weight_1 + weight_2
    return (value_1 * weight_1 + value_2 * weight_2) / weight, weight


@triton.jit
def reduce_rows(a, sums, products, highest, anything, R: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    x = tl.load(a + i * C + j)
    rows = tl.arange(0, R)
    tl.store(sums + rows, tl.reduce(x, 1, add_up))
    tl.store(products + rows, triton_helpers.prod(x, 1))
    tl.store(highest + rows, triton_helpers.max2(x, 1))
    tl.store(anything + rows, triton_helpers.any(x > 1.5, 1))


# Numpy takes these over by identity; these copies run as written.
maximum = triton.jit(triton_helpers.maximum.fn)
product = triton.jit(triton_helpers._prod_accumulate.fn)


@triton.jit
def reduce_as_written(a, products, highest, R: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    x = tl.load(a + i * C + j)
    rows = tl.arange(0, R)
    tl.store(products + rows, tl.reduce(x, 1, product))
    tl.store(highest + rows, tl.reduce(x, 1, maximum))


@triton.jit
def reduce_everything(a, out, N: tl.constexpr):
    tl.store(out, tl.sum(tl.load(a + tl.arange(0, N))))
    tl.store(out + 1, tl.max(tl.load(a + tl.arange(0, N))))


@triton.jit
def keep_axis(a, out, R: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    x = tl.load(a + i * C + j)
    tl.store(out + i * C + j, x - tl.sum(x, 1, keep_dims=True))


@triton.jit
def means(a, w, out, R: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    mean, _weight = tl.reduce((tl.load(a + i * C + j), tl.load(w + i * C + j)), 1, weighted)
    tl.store(out + tl.arange(0, R), mean)


@triton.jit
def positions(a, left_low, left_high, R: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    x = tl.load(a + i * C + j)
    tl.store(left_low + tl.arange(0, R), tl.argmin(x, 1))
    tl.store(left_high + tl.arange(0, R), tl.argmax(x, 1))


@triton.jit
def positions_of_inductor(a, low, high, R: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    x = tl.load(a + i * C + j)
    index = tl.broadcast_to(j, x.shape)
    tl.store(low + tl.arange(0, R), triton_helpers.min_with_index(x, index, 1)[1])
    tl.store(high + tl.arange(0, R), triton_helpers.max_with_index(x, index, 1)[1])


@triton.jit
def scans(a, sums, lowest, backwards, R: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    x = tl.load(a + i * C + j)
    tl.store(sums + i * C + j, tl.associative_scan(x, 1, add_up))
    tl.store(lowest + i * C + j, tl.associative_scan(x, 1, smaller_product))
    tl.store(backwards + i * C + j, tl.cumsum(x, 1, reverse=True))


@triton.jit
def sorted_rows(a, up, down, R: tl.constexpr, C: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    x = tl.load(a + i * C + j)
    tl.store(up + i * C + j, tl.sort(x))
    tl.store(down + i * C + j, tl.sort(x, descending=True))


@triton.jit
def counted(a, out, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(a + tl.arange(0, N)), BINS))


@triton.jit
def rearranged(a, gathered, joined, both, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i)
    tl.store(gathered + i, tl.gather(x, (N - 1 - i).to(tl.int32), 0))
    pair = tl.join(x, x * 10)
    first, second = pair.split()
    tl.store(joined + i, second - first)
    tl.store(both + tl.arange(0, 2 * N), tl.interleave(first, second))


@pytest.fixture
def block():
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


def test_rows(block):
    sums, products, highest = (torch.zeros(ROWS) for _ in range(3))
    anything = torch.zeros(ROWS, dtype=torch.bool)
    block[1, 3] = float("nan")
    run(reduce_rows, a=block, sums=sums, products=products, highest=highest, anything=anything, R=ROWS, C=COLUMNS)
    for result, expected in ((sums, block.sum(1)), (products, block.prod(1)), (highest, block.amax(1))):
        torch.testing.assert_close(result, expected, equal_nan=True)
    assert torch.equal(anything, (block > 1.5).any(1))


def test_known_functions_of_inductor_give_what_their_source_gives(block):
    block[2, 5], block[3, 0] = float("nan"), float("inf")
    quick, written = ({name: torch.zeros(ROWS) for name in ("products", "highest")} for _ in range(2))
    anything = torch.zeros(ROWS, dtype=torch.bool)
    run(reduce_rows, a=block, sums=torch.zeros(ROWS), anything=anything, R=ROWS, C=COLUMNS, **quick)
    run(reduce_as_written, a=block, R=ROWS, C=COLUMNS, **written)
    torch.testing.assert_close(quick, written, equal_nan=True)


def test_everything():
    numbers, out = torch.arange(32.0), torch.zeros(2)
    run(reduce_everything, a=numbers, out=out, N=32)
    assert out.tolist() == [496.0, 31.0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_integers(dtype):
    numbers, out = torch.arange(32, dtype=dtype), torch.zeros(2, dtype=dtype)
    run(reduce_everything, a=numbers, out=out, N=32)
    assert out.tolist() == [496, 31]


def test_bfloat16_is_rounded_at_every_step():
    numbers, out = torch.ones(512, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)
    numbers[0] = 1024
    run(reduce_everything, a=numbers, out=out, N=512)
    assert out[1] == 1024
    assert abs(out[0].item() - 1535) <= 8


def test_an_axis_kept(block):
    out = torch.zeros_like(block)
    run(keep_axis, a=block, out=out, R=ROWS, C=COLUMNS)
    torch.testing.assert_close(out, block - block.sum(1, keepdim=True))


def test_two_values_at_once(block):
    weights, out = torch.rand(ROWS, COLUMNS) + 0.5, torch.zeros(ROWS)
    run(means, a=block, w=weights, out=out, R=ROWS, C=COLUMNS)
    torch.testing.assert_close(out, (block * weights).sum(1) / weights.sum(1))


@pytest.mark.parametrize("kernel", [positions, positions_of_inductor])
def test_of_equal_elements_the_first_is_found(kernel, block):
    block = (block * 2).round()
    names = ("left_low", "left_high") if kernel is positions else ("low", "high")
    low, high = (torch.zeros(ROWS, dtype=torch.int64) for _ in range(2))
    run(kernel, a=block, **dict(zip(names, (low, high), strict=True)), R=ROWS, C=COLUMNS)
    assert torch.equal(low, block.argmin(1))
    assert torch.equal(high, block.argmax(1))


def test_nan_is_the_extreme_of_inductor(block):
    block[0, 3] = block[0, 7] = block[2, 0] = float("nan")
    low, high = (torch.zeros(ROWS, dtype=torch.int64) for _ in range(2))
    run(positions_of_inductor, a=block, low=low, high=high, R=ROWS, C=COLUMNS)
    assert torch.equal(low, block.argmin(1))
    assert torch.equal(high, block.argmax(1))


def test_scans(block):
    results = [torch.zeros_like(block) for _ in range(3)]
    run(scans, a=block, **dict(zip(("sums", "lowest", "backwards"), results, strict=True)), R=ROWS, C=COLUMNS)
    expected = [block.cumsum(1), block.cummin(1).values, block.flip(1).cumsum(1).flip(1)]
    for result, exact in zip(results, expected, strict=True):
        torch.testing.assert_close(result, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float64], ids=str)
def test_sorting(block, dtype):
    block = (block * 100).to(dtype)
    up, down = torch.zeros_like(block), torch.zeros_like(block)
    run(sorted_rows, a=block, up=up, down=down, R=ROWS, C=COLUMNS)
    assert torch.equal(up, block.sort(1).values)
    assert torch.equal(down, block.sort(1, descending=True).values)


def test_histogram_drops_what_is_outside():
    numbers = torch.tensor([0, 1, 1, 3, 3, 3, 4, 9], dtype=torch.int32)
    out = torch.zeros(4, dtype=torch.int32)
    run(counted, a=numbers, out=out, N=8, BINS=4)
    assert out.tolist() == [1, 2, 0, 3]


def test_rearranging():
    numbers = torch.arange(8.0)
    gathered, joined, both = torch.zeros(8), torch.zeros(8), torch.zeros(16)
    run(rearranged, a=numbers, gathered=gathered, joined=joined, both=both, N=8)
    assert torch.equal(gathered, numbers.flip(0))
    assert torch.equal(joined, numbers * 9)
    assert torch.equal(both, torch.stack([numbers, numbers * 10], 1).reshape(-1))
