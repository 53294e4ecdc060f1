"""Conversions between types, against torch and against the tables of PTX."""

import itertools

import pytest
import torch
import triton
import triton.language as tl

from .launching import run

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]


@triton.jit
def convert(source, target, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(target + i, tl.load(source + i).to(target.dtype.element_ty))


@triton.jit
def bits_of(source, target, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(target + i, tl.load(source + i).to(target.dtype.element_ty, bitcast=True))


@triton.jit
def towards_zero(source, target, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(target + i, tl.load(source + i).to(target.dtype.element_ty, fp_downcast_rounding="rtz"))


def converted(source: torch.Tensor, dtype: torch.dtype, kernel=convert) -> torch.Tensor:
    target = torch.zeros(source.shape, dtype=dtype)
    run(kernel, source=source, target=target, N=source.numel())
    return target


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def spread(count: int = 1024) -> torch.Tensor:
    """Return float64 numbers of all magnitudes, special ones among them."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(count, generator=generator, dtype=torch.float64)
    numbers *= 2.0 ** torch.randint(-30, 18, (count,), generator=generator)
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0, -1.0, 0.5, 65504.0, 448.0, 57344.0, 1e-8]
    numbers[: len(special)] = torch.tensor(special, dtype=torch.float64)
    return numbers


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(FLOATS, 2)), ids=str)
def test_between_floats(source, target):
    numbers = spread().to(source)
    result, expected = converted(numbers, target), numbers.to(target)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("eight", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("wide", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_8_bit_float_widens_exactly(eight, wide):
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(eight)
    torch.testing.assert_close(converted(every, wide), every.to(wide), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("eight", EIGHT_BITS, ids=str)
def test_to_8_bit_floats(eight):
    numbers = spread().float().clamp(-200, 200)
    assert torch.equal(bytes_of(converted(numbers, eight)), bytes_of(numbers.to(eight)))


@pytest.mark.parametrize("integer", INTEGERS, ids=str)
@pytest.mark.parametrize("real", FLOATS, ids=str)
def test_floats_to_integers_in_range_truncate(real, integer):
    limits = torch.iinfo(integer)
    numbers = (
        (torch.randn(256, generator=torch.Generator().manual_seed(0)) * 40).clamp(max(limits.min, -100), 100).to(real)
    )
    assert torch.equal(converted(numbers, integer), numbers.double().trunc().to(integer))


@pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=str)
def test_floats_outside_the_range_saturate(integer):
    limits = torch.iinfo(integer)
    numbers = torch.tensor([1e30, -1e30, float("inf"), -float("inf")])
    assert converted(numbers, integer).tolist() == [limits.max, limits.min, limits.max, limits.min]


def test_nan_becomes_the_integer_of_ptx():
    nan = torch.tensor([float("nan")] * 2)
    assert converted(nan, torch.int32).tolist() == [0, 0]
    assert converted(nan, torch.int64).tolist() == [-(2**63)] * 2


@pytest.mark.parametrize("real", FLOATS, ids=str)
def test_integers_to_floats(real):
    numbers = torch.arange(-128, 128, dtype=torch.int32)
    torch.testing.assert_close(converted(numbers, real).double(), numbers.to(real).double(), rtol=0, atol=0)


def test_integers_narrow_by_their_low_bits():
    numbers = torch.tensor([300, -1, 128, 2**31 + 5])
    assert converted(numbers, torch.int8).tolist() == [44, -1, -128, 5]
    assert converted(numbers, torch.uint8).tolist() == [44, 255, 128, 5]
    assert converted(numbers, torch.int32).tolist() == [300, -1, 128, -(2**31) + 5]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_bools(dtype):
    truth = torch.tensor([True, False] * 8)
    assert torch.equal(converted(truth, dtype), truth.to(dtype))
    numbers = torch.tensor([0, 1, 3, 0] * 4).to(dtype)
    assert torch.equal(converted(numbers, torch.bool), numbers.bool())


def test_a_float_is_true_unless_it_is_zero():
    assert converted(torch.tensor([0.0, -0.0, 0.25, float("nan")]), torch.bool).tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("real", "integer"),
    [
        (torch.float16, torch.int16),
        (torch.bfloat16, torch.int16),
        (torch.float32, torch.int32),
        (torch.float64, torch.int64),
    ],
    ids=str,
)
def test_bits_survive_both_ways(real, integer):
    numbers = spread(64).to(real)
    bits = converted(numbers, integer, bits_of)
    assert torch.equal(bits, numbers.view(integer))
    assert torch.equal(converted(bits, real, bits_of).view(integer), bits)


@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16], ids=str)
def test_rounding_towards_zero(target):
    numbers = torch.randn(256, generator=torch.Generator().manual_seed(0))
    result = converted(numbers, target, towards_zero)
    assert (result.double().abs() <= numbers.double().abs()).all()
    above = (result.view(torch.int16) + 1).view(target)
    assert (above.double().abs() > numbers.double().abs()).all()
