"""Programs that train, with higher-order operators and views in regions, on a compiler that chooses other strides.

Inductor chooses other strides in few programs, so it would take luck to draw one where that matters. The compiler here
lays out every new value in another way than the trace says and, like Inductor's code, refuses an input that has other
strides than it was compiled for. It takes no C++ compiler, so many programs can be drawn.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._higher_order_ops import map as map_over
from torch.fx.traceback import preserve_node_meta

from pytest_regional import region
from pytest_regional._torch import operators
from pytest_regional._torch.dynamo import aot_autograd
from pytest_regional._torch.tracing import storage_key
from pytest_regional.reference import regional_inductor
from tests.reference.strided_views import LAYOUTS, laid_out, padded, row_major, same_strides, views

associative_scan, scan = operators.associative_scan(), operators.scan()


class OtherStrides:
    """Runs regions as they are and lays out what they return in another way, but for views of what they were given."""

    def __init__(self, layout, *, tells):
        self.layout, self.tells, self.wrong = layout, tells, []

    def __call__(self, request):
        return _Relaid(self, request)


class _Relaid:
    def __init__(self, compiler, request):
        self.compiler, self.module, self.inputs = compiler, request.module, request.inputs
        given = {storage_key(value) for value in request.inputs}
        self.results = [node.meta["val"] for node in request.results]
        self.is_new = [storage_key(value) not in given for value in self.results]
        if compiler.tells:
            told = [self._strides(value, is_new) for value, is_new in zip(self.results, self.is_new, strict=True)]
            self.inner_fn = SimpleNamespace(compiled_fn=SimpleNamespace(output_strides=told))

    def _strides(self, traced, is_new):
        if not isinstance(traced, torch.Tensor):
            return None
        strides = self.compiler.layout(list(traced.shape)) if is_new else traced.stride()
        return tuple(map(str, strides))

    def __call__(self, *arguments):
        for value, traced in zip(arguments, self.inputs, strict=True):
            if isinstance(value, torch.Tensor) and not same_strides(value, traced):
                self.compiler.wrong.append((tuple(value.stride()), tuple(traced.stride())))
        return list(map(self._laid_out, self.module(*arguments), self.is_new))

    def _laid_out(self, value, is_new):
        return laid_out(value, self.compiler.layout) if is_new and isinstance(value, torch.Tensor) else value


def product_and_sum(left, right):
    return left[0] * right[0], left[1] * right[0] + right[1]


def pairs_scanned(x, w):
    return associative_scan(product_and_sum, (x.sigmoid(), x * w), 1, combine_mode="generic")[1]


def carried(x, w):
    return scan(lambda state, row: (state * row, (state + row).sin()), x[0], x * w)[1]


def mapped(x, w):
    return map_over(lambda row, weight: (row * weight).t(), x, w[0])


def conditional(x, w):
    return torch.cond(x.sum() > 0, lambda a, b: (a * b).sin(), lambda a, b: (a + b).cos(), (x, w))


def multiplied(x, w):
    return x @ w[0].t()


OPERATORS = (multiplied, pairs_scanned, carried, mapped, conditional)


def operands(length):
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(length, 4, 4, generator=generator) for _ in range(2))
    return x.requires_grad_(), w.requires_grad_()


def trained(program, x, w):
    result = program(x, w)
    return result, *torch.autograd.grad(result.sin().sum(), (x, w), allow_unused=True)


@st.composite
def programs(draw):
    """Draw an operator and views of its result in a region, and a region that reads the views."""
    operator, length = draw(st.sampled_from(OPERATORS)), draw(st.integers(2, 3))
    chosen = draw(views(operator(*operands(length))))

    def program(x, w):
        with region("a"):
            value = operator(x, w)
            for view in chosen:
                value = view(value)
        value = value.sin()
        with region("b"):
            return value.exp() * 2 + value

    return program, length


def run(compiler, program, length, dynamic=False):
    """Return results and gradients of ``program`` on ``compiler``, and those of eager."""
    compile_graph = functools.partial(regional_inductor, compiler=compiler)

    def backend(gm, inputs):
        with preserve_node_meta():
            return aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)(gm, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(program, backend=backend, fullgraph=True, dynamic=dynamic)
    return trained(compiled, *operands(length)), trained(program, *operands(length))


@settings(max_examples=6)
@given(drawn=programs(), layout=st.sampled_from(LAYOUTS), tells=st.booleans())
def test_a_program_trains_whatever_strides_its_regions_choose(drawn, layout, tells):
    compiler = OtherStrides(layout, tells=tells)
    found, expected = run(compiler, *drawn)
    assert compiler.wrong == []
    torch.testing.assert_close(found, expected)


@pytest.mark.slow("compiles twenty programs to C++", fast="test_a_program_trains_whatever_strides_its_regions_choose")
@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_slices_between_two_regions(operator, dynamic, tells):
    """Their gaps are expressions of symbols where sizes are symbolic."""

    def program(x, w):
        with region("a"):
            value = operator(x, w)
            halves = value[:, ::2], (value * 2)[:, 1:3]
        with region("b"):
            return halves[0].exp() * halves[1]

    compiler = OtherStrides(row_major, tells=tells)
    found, expected = run(compiler, program, 5, dynamic)
    assert compiler.wrong == []
    torch.testing.assert_close(found, expected)


def test_the_compiler_notices_strides_that_were_not_restored(monkeypatch):
    monkeypatch.setattr("pytest_regional.reference.compile_regions.restore_strides", lambda call, actual: [])

    def program(x, w):
        with region("a"):
            value = x.sin()
        value.view(-1)
        with region("b"):
            return value.exp()

    compiler = OtherStrides(padded, tells=True)
    run(compiler, program, 4)
    assert compiler.wrong


@torch.library.custom_op("restride::column_major", mutates_args=())
def column_major(x: torch.Tensor) -> torch.Tensor:
    """Negate ``x``. The result is column-major, and the fake says row-major."""
    return (-x).mT.contiguous().mT


column_major.register_fake(lambda x: torch.empty_like(x, memory_format=torch.contiguous_format))
column_major.register_autograd(lambda ctx, gradient: column_major(gradient))


def read_by_a_region(x, w):
    value = column_major(x)
    with region("a"):
        return value.exp() * w


def read_through_operators_and_views(x, w):
    value = (column_major(x) * 2 + w).unsqueeze(0)[..., 1:3]
    with region("a"):
        return value.exp() * 2


def viewed_and_read(x, w):
    value = column_major(x)
    flat = value.reshape(-1)  # a view in the trace
    with region("a"):
        return flat.exp() * value.reshape(-1)


def saved_for_a_region_of_gradients(x, w):
    value = column_major(x)
    with region("a"):
        return value * w


def gradient_of_a_region(x, w):
    with region("a"):
        value = torch.tanh(x)
    return column_major(value) * w


def in_a_branch(x, w):
    def branch(value, w):
        with region("a"):
            return value.exp() * w

    return torch.cond(w.sum() > 0, branch, lambda value, w: value * w, (column_major(x), w))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        read_by_a_region,
        read_through_operators_and_views,
        viewed_and_read,
        saved_for_a_region_of_gradients,
        gradient_of_a_region,
        in_a_branch,
    ],
    ids=lambda program: program.__name__,
)
def test_a_region_reads_a_value_whose_fake_has_other_strides(program, dynamic):
    compiler = OtherStrides(row_major, tells=True)
    found, expected = run(compiler, program, 5, dynamic)
    assert compiler.wrong == []
    torch.testing.assert_close(found, expected)


def test_what_only_eager_code_reads_keeps_its_strides():
    def program(x, w):
        value = column_major(x)
        with region("a"):
            return value.exp() * w, value

    compile_graph = functools.partial(regional_inductor, compiler=OtherStrides(row_major, tells=True))
    torch._dynamo.reset()
    with torch.no_grad():
        _, value = torch.compile(program, backend=aot_autograd(fw_compiler=compile_graph))(*operands(5))
    assert value.stride() == column_major(operands(5)[0]).stride()
