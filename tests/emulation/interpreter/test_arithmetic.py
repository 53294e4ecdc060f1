"""Arithmetic of every type against torch."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from .launching import run

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
N = 256


@triton.jit
def four_operations(a, b, sums, differences, products, quotients, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(sums + i, x + y)
    tl.store(differences + i, x - y)
    tl.store(products + i, x * y)
    tl.store(quotients + i, x / y)


@triton.jit
def integer_operations(a, b, sums, products, quotients, remainders, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(sums + i, x + y)
    tl.store(products + i, x * y)
    tl.store(quotients + i, x // y)
    tl.store(remainders + i, x % y)


@triton.jit
def bit_operations(a, b, conjunction, exclusive, inverse, left, right, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(conjunction + i, x & y)
    tl.store(exclusive + i, x ^ y)
    tl.store(inverse + i, ~x)
    tl.store(left + i, x << 3)
    tl.store(right + i, x >> 2)


@triton.jit
def comparisons(a, b, less, equal, unequal, at_least, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(less + i, x < y)
    tl.store(equal + i, x == y)
    tl.store(unequal + i, x != y)
    tl.store(at_least + i, x >= y)


@triton.jit
def smallest_and_largest(a, b, low, high, low_nan, high_nan, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(low + i, tl.minimum(x, y))
    tl.store(high + i, tl.maximum(x, y))
    tl.store(low_nan + i, tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL))
    tl.store(high_nan + i, tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def unary(a, exponential, logarithm, root, magnitude, floor, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i)
    tl.store(exponential + i, tl.exp(x))
    tl.store(logarithm + i, tl.log(tl.abs(x)))
    tl.store(root + i, tl.sqrt(tl.abs(x)))
    tl.store(magnitude + i, tl.abs(x))
    tl.store(floor + i, tl.floor(x))


@triton.jit
def fused(a, b, c, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.fma(tl.load(a + i), tl.load(b + i), tl.load(c + i)))


@triton.jit
def high_products(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.umulhi(tl.load(a + i), tl.load(b + i)))


@triton.jit
def matrix_product(a, b, out, PRECISION: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    product = tl.dot(tl.load(a + i * N + j), tl.load(b + i * N + j), input_precision=PRECISION)
    tl.store(out + i * N + j, product)


@triton.jit
def multiplied_index(out, n, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK) + n
    tl.store(out + tl.arange(0, BLOCK), (index * n).to(tl.int64))


@triton.jit
def one_bit(a, b, total, product, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i).to(tl.int1), tl.load(b + i).to(tl.int1)
    tl.store(total + i, x ^ y)
    tl.store(product + i, x & y)


def numbers(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(N, generator=generator, dtype=torch.float64).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(max(limits.min, -100), 100, (N,), generator=generator).to(dtype)


def like(tensor: torch.Tensor, count: int, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    return [torch.zeros_like(tensor, dtype=dtype or tensor.dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_rounded_after_every_operation(dtype):
    a, b = numbers(dtype, 0), numbers(dtype, 1)
    results = like(a, 4)
    run(
        four_operations,
        a=a,
        b=b,
        **dict(zip(("sums", "differences", "products", "quotients"), results, strict=True)),
        N=N,
    )
    wide = a.double(), b.double()
    expected = [wide[0] + wide[1], wide[0] - wide[1], wide[0] * wide[1], wide[0] / wide[1]]
    for result, exact in zip(results, expected, strict=True):
        assert torch.equal(result, exact.to(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_and_divide_towards_zero(dtype):
    a, b = numbers(dtype, 0), numbers(dtype, 1)
    b = torch.where(b.to(torch.int64) == 0, 7, b.to(torch.int64)).to(dtype)
    results = like(a, 4)
    run(
        integer_operations,
        a=a,
        b=b,
        **dict(zip(("sums", "products", "quotients", "remainders"), results, strict=True)),
        N=N,
    )
    x, y = a.to(torch.int64), b.to(torch.int64)
    expected = [x + y, x * y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y)]
    for result, exact in zip(results, expected, strict=True):
        assert torch.equal(result.to(torch.int64), exact.to(dtype).to(torch.int64))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits(dtype):
    a, b = numbers(dtype, 0), numbers(dtype, 1)
    results = like(a, 5)
    names = ("conjunction", "exclusive", "inverse", "left", "right")
    run(bit_operations, a=a, b=b, **dict(zip(names, results, strict=True)), N=N)
    x, y = a.to(torch.int64), b.to(torch.int64)
    for result, exact in zip(results, [x & y, x ^ y, ~x, x << 3, x >> 2], strict=True):
        assert torch.equal(result.to(torch.int64), exact.to(dtype).to(torch.int64))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.uint8])
def test_comparisons(dtype):
    a, b = numbers(dtype, 0), numbers(dtype, 1)
    b[::3] = a[::3]
    if dtype.is_floating_point:
        a[::5] = float("nan")
    results = like(a, 4, torch.bool)
    run(comparisons, a=a, b=b, **dict(zip(("less", "equal", "unequal", "at_least"), results, strict=True)), N=N)
    for result, expected in zip(results, [a < b, a == b, a != b, a >= b], strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_minimum_and_maximum_with_nan(dtype):
    a, b = numbers(dtype, 0), numbers(dtype, 1)
    a[::5], b[::7] = float("nan"), float("nan")
    results = like(a, 4)
    run(smallest_and_largest, a=a, b=b, **dict(zip(("low", "high", "low_nan", "high_nan"), results, strict=True)), N=N)
    expected = [torch.fmin(a, b), torch.fmax(a, b), torch.minimum(a, b), torch.maximum(a, b)]
    for result, exact in zip(results, expected, strict=True):
        torch.testing.assert_close(result, exact, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions(dtype):
    a = numbers(dtype, 0)
    results = like(a, 5)
    run(unary, a=a, **dict(zip(("exponential", "logarithm", "root", "magnitude", "floor"), results, strict=True)), N=N)
    wide = a.double()
    for result, exact in zip(
        results, [wide.exp(), wide.abs().log(), wide.abs().sqrt(), wide.abs(), wide.floor()], strict=True
    ):
        torch.testing.assert_close(result, exact.to(dtype))


def test_a_fused_multiply_add_rounds_once():
    tiny = torch.full((N,), 1 + 2.0**-23)
    [out] = like(tiny, 1)
    run(fused, a=tiny, b=tiny, c=-(tiny * tiny), out=out, N=N)
    assert (out == 2.0**-46).all()


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_upper_half_of_a_product(dtype):
    generator = np.random.default_rng(0)
    bits = np.dtype(dtype).itemsize * 8
    a, b = (generator.integers(0, 2**bits, N, dtype=np.dtype(f"u{bits // 8}")).view(dtype) for _ in range(2))
    out = torch.zeros(N, dtype=torch.from_numpy(a).dtype)
    run(high_products, a=torch.from_numpy(a), b=torch.from_numpy(b), out=out, N=N)
    expected = [(int(x) % 2**bits) * (int(y) % 2**bits) >> bits for x, y in zip(a, b, strict=True)]
    assert [int(value) % 2**bits for value in out.numpy()] == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *EIGHT_BITS[:2]])
def test_matrix_products_accumulate_in_float32(dtype):
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (0, 1))
    out = torch.zeros(16, 16)
    run(matrix_product, a=a, b=b, out=out, PRECISION=None, N=16)
    torch.testing.assert_close(out, (a.double() @ b.double()).float())


def test_matrix_products_of_bytes_are_exact():
    a, b = (torch.randint(-128, 127, (32, 32), generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    out = torch.zeros(32, 32, dtype=torch.int32)
    run(matrix_product, a=a.to(torch.int8), b=b.to(torch.int8), out=out, PRECISION=None, N=32)
    assert torch.equal(out.long(), a @ b)


def test_tensor_float_32_rounds_the_operands_and_ieee_does_not():
    a = torch.full((16, 16), 1 + 2.0**-12)
    eye, out = torch.eye(16), torch.zeros(16, 16)
    run(matrix_product, a=a, b=eye, out=out, PRECISION="ieee", N=16)
    assert torch.equal(out, a)
    run(matrix_product, a=a, b=eye, out=out, PRECISION="tf32", N=16)
    assert torch.equal(out, torch.ones(16, 16))


def test_products_of_64_bit_floats():
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (0, 1))
    out = torch.zeros(16, 16, dtype=torch.float64)
    run(matrix_product, a=a, b=b, out=out, PRECISION="ieee", N=16)
    torch.testing.assert_close(out, a @ b, rtol=1e-14, atol=1e-14)


def test_index_arithmetic_has_32_bits():
    out = torch.zeros(4, dtype=torch.int64)
    run(multiplied_index, out=out, n=1 << 17, BLOCK=4)
    assert out.tolist() == [((1 << 17) + i) * (1 << 17) % (1 << 32) for i in range(4)]


def test_bools():
    a, b = (torch.tensor([0, 0, 1, 1] * 64).bool(), torch.tensor([0, 1, 0, 1] * 64).bool())
    total, product = like(a, 2)
    run(one_bit, a=a, b=b, total=total, product=product, N=N)
    assert torch.equal(total, a ^ b)
    assert torch.equal(product, a & b)
