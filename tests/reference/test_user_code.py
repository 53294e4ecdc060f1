"""The outer cache: the user's code that only tracing runs is part of the key, or there is none."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
import torch.utils._python_dispatch
from torch._inductor.decomposition import decompositions, fast_random_decomps

from pytest_regional import region
from pytest_regional.reference import cache_key
from tests.reference.caches import compiled, outcomes

factor = 1.0


@contextlib.contextmanager
def library(schema, name="regional_user_code", **kernels):
    with torch.library._scoped_library(name, "FRAGMENT") as library:
        op = library.define(schema)
        for key, kernel in kernels.items():
            library.impl(op, kernel, key)
        packet = getattr(getattr(torch.ops, name), op)
        yield library, f"{name}::{op}", packet
        delattr(getattr(torch.ops, name), op)


def backend(x):
    return x * 2


@contextlib.contextmanager
def derivative(number):
    def formula(context, gradient):
        return gradient * number

    with library("trained(Tensor x) -> Tensor", CPU=backend) as (defined, name, op):
        torch.library.register_fake(name, torch.empty_like, lib=defined)
        torch.library.register_autograd(name, formula, lib=defined)
        yield lambda x: op(x) + 1


def helper(gradient):
    return gradient * factor


@contextlib.contextmanager
def what_a_derivative_reads(number):
    global factor
    factor = number
    op = torch.library.custom_op("regional_user_code::custom", mutates_args=())(typed_backend)
    op.register_fake(torch.empty_like)
    op.register_autograd(lambda context, gradient: helper(gradient))
    yield lambda x: op(x) + 1


def typed_backend(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@contextlib.contextmanager
def composite(number):
    with library("composite(Tensor x) -> Tensor", CompositeImplicitAutograd=lambda x: x * number) as (_, _, op):
        yield lambda x: op(x) + 1


@contextlib.contextmanager
def composite_in_aten(number):
    kernels = {"CompositeImplicitAutograd": lambda x: x * number}
    with library("regional_user_code(Tensor x) -> Tensor", "aten", **kernels) as (_, _, op):
        yield lambda x: op(x) + 1


@contextlib.contextmanager
def traced_operator(number):
    def body(x: torch.Tensor) -> torch.Tensor:
        return x * number

    op = torch.library.triton_op("regional_user_code::traced", body, mutates_args=())
    op.register_autograd(lambda context, gradient: gradient)
    yield lambda x: op(x) + 1


@contextlib.contextmanager
def replaced_function(number):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "relu", lambda x: x * number)
        yield lambda x: F.relu(x) + 1


@contextlib.contextmanager
def replaced_kernel_of_aten(number):
    with torch.library._scoped_library("aten", "IMPL") as defined:
        defined.impl("sinc", lambda x: x * number, "AutogradCPU")
        yield lambda x: torch.sinc(x) + 1


@contextlib.contextmanager
def decomposition(number):
    def silu(x):
        return x * number

    def program(x):
        with region("a"):
            return F.silu(x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(decompositions, torch.ops.aten.silu.default, silu)
        fast_random_decomps.cache_clear()  # Inductor's copy
        yield program
    fast_random_decomps.cache_clear()


class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        inner = [each.inner if isinstance(each, Scaled) else each for each in args]
        return Scaled(op(*inner, **(kwargs or {})) * factor)


@contextlib.contextmanager
def subclass(number):
    global factor
    factor = number
    yield lambda x: (Scaled(x.detach()) if not isinstance(x, Scaled) else x).mul(3)


#: By what is edited, and whether the code can be part of the key.
EDITS = {
    derivative: True,
    what_a_derivative_reads: True,
    composite: False,
    composite_in_aten: False,
    traced_operator: True,
    replaced_function: True,
    replaced_kernel_of_aten: False,
    decomposition: True,
    subclass: True,
}


def values(fn, x):
    result = fn(x)
    if isinstance(result, Scaled):
        return [result.inner]
    result.sum().backward()
    return [result.detach(), x.grad]


def argument(edit):
    x = torch.ones(4)
    return Scaled(x) if edit is subclass else x.requires_grad_()


@pytest.mark.filterwarnings("ignore")
def test_an_edit_is_never_answered_with_what_was_there_before():
    for edit, is_shown in EDITS.items():
        for number, outcome in ((2.0, "miss"), (3.0, "miss"), (2.0, "hit")):
            with edit(number) as program:
                wanted = values(program, argument(edit))
                if edit is decomposition:  # eager does not use it
                    wanted = [torch.full((4,), number), wanted[1]]
                with outcomes() as seen:
                    got = values(compiled(program), argument(edit))
            assert torch.equal(wanted[0], got[0]), (edit.__name__, number, outcome, seen)
            assert edit is decomposition or torch.equal(wanted[-1], got[-1]), (edit.__name__, number, outcome, seen)
            assert seen[outcome if is_shown else "bypass"] == 1, (edit.__name__, number, outcome, seen, seen.reasons)


def test_the_reason_says_which_function_is_hidden():
    with composite(2.0) as program:
        with outcomes() as seen:
            compiled(program)(torch.ones(4))
    (reason,) = seen.reasons
    assert "regional_user_code::composite" in reason
    assert "CompositeImplicitAutograd" in reason
    assert "torch.library.custom_op" in reason


def test_code_that_no_program_runs_is_in_no_key():
    key = cache_key(torch.sin, torch.ones(3))
    with derivative(2.0), composite(2.0):
        assert cache_key(torch.sin, torch.ones(3)) == key
