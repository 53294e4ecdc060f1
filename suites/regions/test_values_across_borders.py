"""Whatever crosses a region's border keeps its dtype, shape, stride and storage."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .annotations import in_region
from .variants import wants_gradient

pytestmark = pytest.mark.regional_compile


def views_in_and_out(x, w):
    half = x.view(2, -1, 8)[0]
    with in_region("r"):
        h = half @ w
        flat = h.view(-1)
    return flat.sin(), half


def input_returned(x, w):
    with in_region("r"):
        h = x @ w
        same = x
    return h.sin(), same


def unused_output(x, w):
    with in_region("r"):
        h = x @ w
        h @ w
    return h.sin()


def several_outputs(x, w):
    with in_region("r"):
        h = x @ w
        first, second = h.split(2)
        largest, where = h.max(dim=0)
    return first.sin(), second.cos(), largest, where


def list_valued_producer(x, w):
    pieces = x.chunk(2)
    with in_region("r"):
        h = pieces[0] @ w
    return torch.cat([h, pieces[1]])


def transposed(x, w):
    with in_region("r"):
        h = (x @ w).t()
    return h.sin(), h


def lifted_constant(x, w):
    with in_region("r"):
        h = x @ w
        z = torch.zeros(4, 2, device=x.device)
        z[:, 0] = 1.0
    return h[:, :2] * z


def factory(x, w):
    with in_region("r"):
        h = x @ w
        steps = torch.arange(8, dtype=x.dtype, device=x.device)
    return h * steps


def one_value_returned_twice(x, w):
    with in_region("r"):
        h = x @ w
    return h, h, h.t()


def detached_inside(x, w):
    with in_region("r"):
        h = (x @ w).detach()
        g = x @ h.t()
    return g.sin()


def gradient_switched_off_inside(x, w):
    with in_region("r"):
        h = x @ w
        with torch.no_grad():
            g = h @ w
    return h.sin(), g


def one_value_entering_twice(x, w):
    with in_region("r"):
        h = w @ w
    return x @ h


def part_of_a_result_by_strides(x, w):
    with in_region("r"):
        h = (x @ w).as_strided((2, 2), (8, 1), 1)
    return h.sin(), h


def read_twice_inside(x, w):
    with in_region("r"):
        h = x @ w
        return h.sin() * h + h.cos()


def read_inside_and_outside(x, w):
    h = x @ w
    with in_region("r"):
        g = h.sin() @ w
    return g * h


def no_elements(x, w):
    with in_region("r"):
        h = x[:0] @ w
    return h.sin(), x @ w


aliasing = pytest.mark.regional_compile(requires=("aliasing",))

PROGRAMS = [
    pytest.param(views_in_and_out, marks=aliasing),
    input_returned,
    unused_output,
    several_outputs,
    list_valued_producer,
    transposed,
    factory,
    pytest.param(one_value_returned_twice, marks=aliasing),
    detached_inside,
    gradient_switched_off_inside,
    one_value_entering_twice,
    part_of_a_result_by_strides,
    read_twice_inside,
    read_inside_and_outside,
    no_elements,
]


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("results_kept",))
def test_a_second_call_leaves_the_first_results_as_they_are(regional):
    """What a call returned is the caller's: memory of it is not used again while somebody holds it."""
    compiled = regional.compile(several_outputs)
    first = compiled(regional.randn(4, 8), regional.randn(8, 8))
    before = [value.clone() for value in first]
    second = compiled(regional.randn(4, 8), regional.randn(8, 8))

    assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(first, before, strict=True))


def operands(regional):
    gradients = wants_gradient(regional)
    return regional.randn(4, 8, requires_grad=gradients), regional.randn(8, 8, requires_grad=gradients)


@pytest.mark.quick
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_parity(regional, program):
    regional.assert_parity(program, *operands(regional))


@pytest.mark.regional_known_failure(
    "torch",
    reason="a lifted constant in a region does not compile: docs/findings/slice_assignment_in_region.py",
    torch="<2.15",
)
def test_a_constant_assigned_into_a_slice(regional):
    regional.assert_parity(lifted_constant, *operands(regional))


@pytest.mark.regional_compile(requires=("channels_last",))
def test_channels_last(regional):
    convolution = nn.Conv2d(4, 4, 3, padding=1).to(regional.device, memory_format=torch.channels_last)

    def program(x):
        with in_region("r"):
            h = convolution(x)
        return h.relu()

    regional.assert_parity(program, regional.randn(2, 4, 6, 6).to(memory_format=torch.channels_last))


def test_autocast(regional):
    def program(x, w):
        with torch.autocast(regional.device.type, dtype=torch.bfloat16):
            with in_region("r"):
                h = x @ w
            return h @ w

    regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))


@torch.library.custom_op("pytest_regional_suites::same_memory", mutates_args=())
def same_memory(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return 1 where both begin at one address, 0 elsewhere."""
    return torch.full((), float(one.data_ptr() == other.data_ptr()), device=one.device)


@same_memory.register_fake
def _(one, other):
    return one.new_empty(())


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("custom_ops", "aliasing"))
def test_a_view_of_an_input_is_no_copy(regional):
    """A region that returns a view of what it was given neither copies nor keeps a second tensor alive."""

    def program(x, w):
        h = x.sin()
        with in_region("r"):
            flat = h.view(-1)
            g = h @ w
        return same_memory(h, flat), g.cos(), flat + 1

    regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))


def test_inference_mode(regional):
    def program(x, w):
        with in_region("r"):
            h = x @ w
        return h.sin()

    with torch.inference_mode():
        regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))


@pytest.mark.regional_compile(dynamic=True, requires=("dynamic_shapes",))
def test_one_compile_serves_several_sizes(regional):
    def program(x, w):
        with in_region("r"):
            h = x @ w
        return h.sin() * x.shape[0]

    compiled, w = regional.compile(program), regional.randn(8, 8)

    def same_as_eager(size):
        regional.assert_parity(program, regional.randn(size, 8), w, compiled=lambda _: compiled)

    same_as_eager(4)
    with regional.expect(recompiles=0, region_compiles=0), regional.no_compile():
        for size in (3, 9, 33):
            same_as_eager(size)


@pytest.mark.regional_compile(dynamic=True, requires=("dynamic_shapes",))
@pytest.mark.regional_known_failure(
    "torch",
    reason="a region input whose size is an expression fails in Inductor: docs/findings/expression_size_input.py",
    torch="<2.15",
)
def test_an_input_whose_size_is_an_expression(regional):
    def program(x, w):
        doubled = torch.cat([x, x])
        with in_region("r"):
            h = doubled.sin() + 1
        return h @ w

    regional.assert_parity(program, regional.randn(4, 8), regional.randn(8, 8))
