"""A launch ends when its memory's time is up, whatever kind of access it makes next."""

import time

import pytest
import torch
import triton
import triton.language as tl

from pytest_regional._base.errors import OutOfTimeError
from pytest_regional.emulation.launch import launch_kernel
from pytest_regional.emulation.memory import Memory

LONG = 200_000


@triton.jit
def endless(out, KIND: tl.constexpr, ROUNDS: tl.constexpr):
    at = tl.arange(0, 4)[:]
    for i in range(ROUNDS):
        if KIND == 0:
            tl.load(out + at)
        if KIND == 1:
            tl.load(out + at, at + i < 0)
        if KIND == 2:
            tl.store(out + at, 1.0)
        if KIND == 3:
            tl.store(out + at, 1.0, at + i < 0)
        if KIND == 4:
            tl.atomic_add(out + at, 1.0, at + i < 0)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("kind", range(5), ids=["load", "masked load", "store", "masked store", "atomic operation"])
def test_a_launch_ends_when_its_time_is_up(kind, together):
    memory, arguments = Memory(), {"out": torch.zeros(4), "KIND": kind}
    with (
        memory.until(time.process_time() + 0.05),
        pytest.raises(OutOfTimeError, match=r"endless, program \(\d, 0, 0\): out of time"),
    ):
        launch_kernel(endless, (2,), {**arguments, "ROUNDS": LONG}, memory=memory, together=together)
    launch_kernel(endless, (2,), {**arguments, "ROUNDS": 9}, memory=memory, together=together)
