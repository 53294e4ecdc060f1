"""Reads of unwritten memory are faults, but in graphs that make tensors they do not fill."""

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from pytest_regional.emulation import MemoryFaultError, emulated
from pytest_regional.emulation.device_rewrite import holds_undefined_values
from pytest_regional.emulation.memory import Memory
from pytest_regional.harness.isolation import isolated


def traced(function, *inputs):
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function)(*inputs)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a: a + 1, False),
        (lambda a: torch.zeros_like(a) + a, False),
        (lambda a: torch.empty_like(a).copy_(a), True),
        (lambda a: a.new_empty(3).fill_(1), True),
        (lambda a: F.pad(a[None, None], (1, 1, 1, 1), mode="circular"), True),
    ],
)
def test_graphs_that_hold_them(function, expected):
    assert holds_undefined_values(traced(function, torch.randn(4, 4))) is expected


def test_in_a_branch():
    outer = torch.fx.GraphModule({"branch": traced(lambda a: a.new_empty(2), torch.ones(1))}, torch.fx.Graph())
    assert not holds_undefined_values(outer)
    outer.add_submodule("branch", traced(lambda a: a.new_empty(2), torch.ones(1)))
    assert holds_undefined_values(outer)


def test_what_is_allocated_meanwhile_is_read_without_complaint():
    memory = Memory()
    with memory.undefined_allowed():
        allowed = memory.allocate((4,), (1,), torch.float32)
        with memory.undefined_allowed(False):
            inner = memory.allocate((4,), (1,), torch.float32)
    after = memory.allocate((4,), (1,), torch.float32)
    memory.check_initialised(allowed, "a test")
    assert allowed.isnan().all()
    for tensor in (inner, after):
        with pytest.raises(MemoryFaultError, match="nobody has written"):
            memory.check_initialised(tensor, "a test")


@triton.jit
def store_half(source, target, n, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(target + index, tl.load(source + index, mask=index < n), mask=index < n // 2)


def test_elements_that_a_user_kernel_skips_are_a_fault(tmp_path):
    def function(a):
        out = torch.empty_like(a)
        store_half[(1,)](a, out, a.numel(), BLOCK=16)
        return out.sin()

    with isolated(tmp_path, seed=1), emulated():
        with pytest.raises(MemoryFaultError, match="nobody has written"):
            torch.compile(function, fullgraph=True)(torch.randn(16))
