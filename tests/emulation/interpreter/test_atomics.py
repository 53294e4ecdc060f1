"""Atomic operations, where lanes meet and where they do not."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from pytest_regional.emulation import MemoryFaultError
from pytest_regional.emulation.launch import launch_kernel
from pytest_regional.emulation.memory import Memory

from .launching import run


@triton.jit
def add(target, index, values, old, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(old + i, tl.atomic_add(target + tl.load(index + i), tl.load(values + i)))


@triton.jit
def add_where(target, values, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(target + i % 4, tl.load(values + i), mask=i % 2 == 0)


@triton.jit
def largest_and_smallest(high, low, index, values, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_max(high + tl.load(index + i), tl.load(values + i))
    tl.atomic_min(low + tl.load(index + i), tl.load(values + i))


@triton.jit
def bits(conjunction, disjunction, exclusive, values, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(values + i)
    tl.atomic_and(conjunction + i * 0, value)
    tl.atomic_or(disjunction + i * 0, value)
    tl.atomic_xor(exclusive + i * 0, value)


@triton.jit
def exchange(target, value, old):
    tl.store(old, tl.atomic_xchg(target, value))


@triton.jit
def adds_one(target):
    tl.atomic_add(target, 1.0)


@triton.jit
def compare_and_swap(target, old, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(old + i, tl.atomic_cas(target + i, i * 0 + 1, i + 10))


@triton.jit
def count_programs(counter, order):
    ticket = tl.atomic_add(counter, 1)
    tl.store(order + ticket, tl.program_id(0))


def scattered(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 5, (64,), generator=generator)
    values = (torch.randn(64, generator=generator, dtype=torch.float64) * 8).round()
    return index, values.to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64], ids=str
)
def test_lanes_of_one_address_add_up(dtype):
    index, values = scattered(dtype)
    target, old = torch.zeros(5, dtype=dtype), torch.zeros(64, dtype=dtype)
    run(add, target=target, index=index, values=values, old=old, N=64)
    expected = torch.zeros(5, dtype=torch.float64).index_add(0, index, values.double())
    assert torch.equal(target.double(), expected)
    before = [values.double()[:i][index[:i] == index[i]].sum() for i in range(64)]
    assert torch.equal(old.double(), torch.stack(before))


def test_many_lanes_of_few_addresses_add_in_order():
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    target, old = torch.zeros(3), torch.zeros(4096)
    index = torch.randint(0, 3, (4096,), generator=torch.Generator().manual_seed(1))
    run(add, target=target, index=index, values=values, old=old, N=4096)
    expected = [np.add.accumulate(values[index == i].numpy())[-1] for i in range(3)]
    assert target.tolist() == [float(value) for value in expected]


@pytest.mark.parametrize("index", [[2, 0, 2, 2, 0, 2, 2, 2], [2, 0, 2, 1, 0, 3, 4, 5]], ids=["by address", "by turn"])
def test_lanes_that_meet_read_what_those_before_them_wrote(index):
    """Where many lanes share few addresses these are updated one by one, else one lane of each at a time."""
    values, target = np.arange(1, 9, dtype=np.float32) / 10, np.ones(6, np.float32)
    expected = target.copy()
    read = []
    for at, value in zip(index, values, strict=True):
        read.append(expected[at])
        expected[at] += value
    target, old = torch.from_numpy(target), torch.zeros(8)
    run(add, target=target, index=torch.tensor(index), values=torch.from_numpy(values), old=old, N=8)
    np.testing.assert_array_equal(target, expected)
    np.testing.assert_array_equal(old, read)


def test_an_exchange_may_be_the_first_to_write():
    memory = Memory()
    target, old = memory.allocate((1,), (1,), torch.float32), torch.zeros(1)
    with pytest.raises(MemoryFaultError, match="nobody has written"):
        launch_kernel(adds_one, (1,), {"target": target}, memory=memory)
    launch_kernel(exchange, (1,), {"target": target, "value": 3.0, "old": old}, memory=memory)
    launch_kernel(adds_one, (1,), {"target": target}, memory=memory)
    assert target.item() == 4


def test_bfloat16_is_rounded_after_every_lane():
    values = torch.full((512,), 1.0, dtype=torch.bfloat16)
    target, old = torch.zeros(1, dtype=torch.bfloat16), torch.zeros_like(values)
    run(add, target=target, index=torch.zeros(512, dtype=torch.int64), values=values, old=old, N=512)
    assert target.item() == 256.0


def test_masked_lanes_do_nothing():
    target = torch.zeros(4)
    run(add_where, target=target, values=torch.ones(16), N=16)
    assert target.tolist() == [4, 0, 4, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint32], ids=str)
def test_largest_and_smallest(dtype):
    index, values = scattered(torch.float64)
    if dtype == torch.uint32:
        values = values.abs() + 2.0**31
    values = values.to(dtype)
    high, low = values[:5].clone(), values[:5].clone()
    run(largest_and_smallest, high=high, low=low, index=index, values=values, N=64)
    for result, reduce in ((high, "amax"), (low, "amin")):
        expected = values[:5].double().scatter_reduce(0, index, values.double(), reduce)
        assert torch.equal(result.double(), expected)


def test_bits():
    values = torch.tensor([0b1110, 0b0111, 0b0110, 0b1111], dtype=torch.int32)
    results = [torch.full((1,), start, dtype=torch.int32) for start in (-1, 0, 0)]
    run(bits, **dict(zip(("conjunction", "disjunction", "exclusive"), results, strict=True)), values=values, N=4)
    assert [int(result) for result in results] == [0b0110, 0b1111, 0b0000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64], ids=str)
def test_exchange(dtype):
    target, old = torch.full((1,), 3, dtype=dtype), torch.zeros(1, dtype=dtype)
    run(exchange, target=target, value=torch.tensor(0).item() + 7, old=old)
    assert (target.item(), old.item()) == (7, 3)


def test_compare_and_swap():
    target, old = torch.tensor([1, 2, 1, 0], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    run(compare_and_swap, target=target, old=old, N=4)
    assert target.tolist() == [10, 2, 12, 0]
    assert old.tolist() == [1, 2, 1, 0]


def test_programs_get_different_tickets():
    counter, order = torch.zeros(1, dtype=torch.int32), torch.full((6,), -1, dtype=torch.int32)
    run(count_programs, (6,), counter=counter, order=order)
    assert sorted(order.tolist()) == list(range(6))
