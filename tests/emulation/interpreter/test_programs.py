"""Programs of a grid: in order, reversed, and those that wait for each other."""

import time

import pytest
import torch
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers

from pytest_regional.emulation import EmulationError, MemoryFaultError, UnsupportedByEmulationError, launch
from pytest_regional.emulation.launch import launch_kernel, may_wait, programs_of
from pytest_regional.emulation.memory import Memory

from .launching import run


@triton.jit
def barrier_in_the_middle(data, semaphore, out, N: tl.constexpr):
    program = tl.program_id(0)
    tl.store(data + program, program * 1.0)
    triton_helpers.x_grid_barrier(semaphore)
    tl.store(out + program, tl.sum(tl.load(data + tl.arange(0, N))))


@triton.jit
def waits_for_its_successor(flags, out):
    program = tl.program_id(0)
    ready = tl.atomic_add(flags + program + 1, 0)
    while ready == 0:
        ready = tl.atomic_add(flags + program + 1, 0)
    tl.store(out + program, ready)
    tl.atomic_xchg(flags + program, program + 1)


@triton.jit
def adds_nothing(out):
    tl.atomic_add(out, 0)
    tl.atomic_add(out, 0)


@triton.jit
def polls_its_predecessor(flags, out):
    program = tl.program_id(0)
    while tl.load(flags + program, volatile=True) == 0:
        pass
    tl.store(flags + program + 1, 1)
    tl.store(out + program, 1)


@triton.jit
def faults_after_a_barrier(data, semaphore):
    triton_helpers.x_grid_barrier(semaphore)
    tl.store(data + 100 * (tl.program_id(0) == 2), 1.0)


@triton.jit
def counts_down(out):
    n = 5
    while n > 0:
        n -= 1
    tl.atomic_add(out, n)


@triton.jit
def last_writer(out):
    tl.store(out, tl.program_id(0))


def test_the_first_axis_runs_fastest():
    assert list(programs_of((2, 1, 2))) == [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]
    assert list(programs_of((2, 1, 2), reverse=True)) == list(programs_of((2, 1, 2)))[::-1]
    assert list(programs_of((3,)))[-1] == (2, 0, 0)


@pytest.mark.parametrize(
    ("kernel", "waits"),
    [
        (barrier_in_the_middle, True),
        (waits_for_its_successor, True),
        (polls_its_predecessor, True),
        (adds_nothing, False),
        (last_writer, False),
        (counts_down, False),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_which_programs_wait_is_read_from_the_kernel(kernel, waits):
    assert may_wait(kernel) is waits


def test_reversed():
    out = torch.zeros(1, dtype=torch.int32)
    for reverse, last in ((False, 3), (True, 0)):
        launch_kernel(last_writer, (4,), {"out": out}, memory=Memory(), reverse=reverse)
        assert out.item() == last


def test_a_barrier_across_the_grid():
    data, out = torch.full((64,), float("nan")), torch.zeros(64)
    semaphore = torch.zeros(1, dtype=torch.uint32)
    started = time.perf_counter()
    run(barrier_in_the_middle, (64,), data=data, semaphore=semaphore, out=out, N=64)
    assert (out == sum(range(64))).all()
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("reverse", [False, True])
def test_programs_that_wait_for_others(reverse):
    flags, out = torch.zeros(9, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    flags[8] = 9
    arguments = {"flags": flags, "out": out}
    launch_kernel(waits_for_its_successor, (8,), arguments, memory=Memory(), reverse=reverse)
    assert out.tolist() == list(range(2, 10))


@pytest.mark.usefixtures("impatient")
def test_atomics_that_change_nothing_are_no_waiting():
    out = torch.zeros(1, dtype=torch.int32)
    run(adds_nothing, (150,), out=out)
    assert out.item() == 0


def test_too_many_programs_that_wait_are_refused():
    flags, out = torch.zeros(4098, dtype=torch.int32), torch.zeros(4097, dtype=torch.int32)
    with pytest.raises(UnsupportedByEmulationError, match="more than 4096 programs that wait for each other"):
        run(waits_for_its_successor, (4097,), flags=flags, out=out)


def test_programs_that_poll():
    flags, out = torch.zeros(5, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    flags[0] = 1
    arguments = {"flags": flags, "out": out}
    launch_kernel(polls_its_predecessor, (4,), arguments, memory=Memory(), reverse=True)
    assert out.tolist() == [1, 1, 1, 1]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(launch, "_PATIENCE", 100)


@pytest.mark.usefixtures("impatient")
def test_programs_that_wait_forever_are_stopped():
    flags, out = torch.zeros(5, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    with pytest.raises(EmulationError, match="wait for each other forever"):
        run(waits_for_its_successor, (4,), flags=flags, out=out)


@pytest.mark.usefixtures("impatient")
def test_a_program_that_waits_outside_a_common_launch_is_stopped():
    flags, out = torch.zeros(5, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    flags[4] = 5
    with pytest.raises(EmulationError, match="do so outside a grid whose programs run together"):
        run(waits_for_its_successor, (4,), together=False, flags=flags, out=out)


def test_a_fault_of_one_program_ends_the_launch():
    semaphore = torch.zeros(1, dtype=torch.uint32)
    with pytest.raises(MemoryFaultError, match=r"program \(2, 0, 0\)"):
        run(faults_after_a_barrier, (4,), data=torch.zeros(4), semaphore=semaphore)
