"""Programs through Dynamo and AOTAutograd: which ops end up in which region (no Inductor)."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pytest_regional._region import region
from pytest_regional._torch import torch_version
from pytest_regional._torch.aot_autograd import partition_function
from pytest_regional._torch.fx_graphs import called_attributes
from tests.reference.backends import Structure


class Block(torch.nn.Module):
    @region("method")
    def inner(self, x):
        return x.cos()

    def forward(self, x):
        x = x.sin()
        with region("outer"):
            x = x.exp()
            with region("inner", configs={"max_autotune": False}):
                x = x.tan()
        x = self.inner(x)
        with region():
            return x.exp2()


def run(structure, fn, *inputs, **options):
    expected = fn(*inputs)
    torch.testing.assert_close(structure.compile(fn, **options)(*inputs), expected)


def test_region_is_a_context_manager_and_a_decorator_of_methods():
    structure = Structure()
    run(structure, Block(), torch.randn(3))
    assert list(zip(structure.labels, structure.ops, strict=True)) == [
        ("outer", ["exp"]),
        ("inner", ["tan"]),
        ("method", ["cos"]),
        ("default", ["exp2"]),
    ]
    assert structure.compiler.requests[1].key.settings == {"max_autotune": False}


def test_region_in_eager_mode_changes_nothing():
    x = torch.randn(3)
    assert torch.equal(Block()(x), x.sin().exp().tan().cos().exp2())


@region("local")
def decorated(x):
    return x.sin()


def test_region_decorates_a_function():
    structure = Structure()
    run(structure, decorated, torch.randn(3))
    assert structure.ops == [["sin"]]


def test_backward_of_interleaved_regions_compiles():
    def ring(x):
        with region("a"):
            a1 = x.sin()
        with region("b"):
            b1, b2 = x.cos(), a1.exp()
        with region("a"):
            a2 = b1.exp()
        return a2 + b2

    structure = Structure()
    x = torch.randn(3, requires_grad=True)
    structure.compile(ring)(x).sum().backward()
    actual, x.grad = x.grad, None
    ring(x).sum().backward()
    torch.testing.assert_close(actual, x.grad)
    assert len(structure.ops) == 6


def twice(x):
    a = x.sin()
    with region("r"):
        b = x.sin() * x.cos()
    return a + b + x.sin()


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_common_subexpressions_stay_on_their_side(partition):
    structure = Structure(partition)
    x = torch.randn(3, requires_grad=True)
    structure.compile(twice)(x).sum().backward()
    assert structure.ops[0] == ["sin", "cos", "mul"]
    actual, x.grad = x.grad, None
    twice(x).sum().backward()
    torch.testing.assert_close(actual, x.grad)


@pytest.mark.skipif(torch_version() >= (2, 15), reason="torch 2.15 keeps this op; seen on 2.11 and 2.13")
def test_min_cut_alone_moves_an_op_across_the_border():
    """The twin that shows the defect: PyTorch's own elimination takes ``sin`` out of the region."""
    structure = Structure("min_cut")
    structure._options["partition_fn"] = partition_function("min_cut")
    structure.compile(twice)(torch.randn(3, requires_grad=True))
    assert "sin" not in structure.ops[0]


def test_identical_partitions_are_compiled_once():
    def blocks(x):
        for i in range(4):
            x = x.neg()
            with region(f"block{i}"):
                x = x.sin() * x
        with region("other"):
            return x.sin() * 2

    structure = Structure(share_identical=True)
    run(structure, blocks, torch.randn(3))
    assert structure.labels == ["block0", "other"]
    structure = Structure(share_identical=False)
    run(structure, blocks, torch.randn(3))
    assert len(structure.labels) == 5


@pytest.mark.parametrize("other", [torch.randn(4), torch.randn(3).double(), torch.randn(6)[::2]])
def test_other_shape_dtype_or_stride_is_not_identical(other):
    def both(x, y):
        with region("a"):
            a = x.sin()
        with region("b"):
            b = y.sin()
        return a.neg(), b.neg()

    structure = Structure(share_identical=True)
    run(structure, both, torch.randn(3), other)
    assert len(structure.labels) == 2


def test_other_argument_constant_or_config_is_not_identical():
    def both(x):
        with region("a"):
            a = x * 2
        with region("b"):
            b = x * 2.0
        with region("c", configs={"max_autotune": False}):
            return a, b, x * 2

    structure = Structure(share_identical=True)
    run(structure, both, torch.randn(3))
    assert structure.labels == ["a", "b", "c"]


@torch.compiler.nested_compile_region
def shared_body(x):
    x = x.sin()
    with region("inside"):
        return x.exp().cos()


def test_region_in_a_shared_body_is_compiled_once():
    structure = Structure()
    run(structure, lambda x: shared_body(shared_body(x) + 1), torch.randn(3))
    assert structure.ops == [["exp", "cos"]]


def test_marked_body_belongs_to_the_outer_region():
    def fn(x):
        with region("outer"):
            x = shared_body(x) * 2
        return shared_body(x.neg())

    structure = Structure()
    run(structure, fn, torch.randn(3))
    # The body was traced under ``outer`` and carries it: its second, unmarked use holds both regions itself.
    assert sorted(structure.labels) == ["inside", "outer", "outer"]
    (outermost,) = [
        request for request in structure.compiler.requests if request.module.graph.find_nodes(op="get_attr")
    ]
    (body,) = called_attributes(outermost.module).values()
    assert not [node for node in body.graph.nodes if "compiled_region" in node.name]


def test_region_in_a_branch():
    def positive(x):
        with region("branch"):
            return x.sin() * 2

    def fn(x):
        return torch.cond(x.sum() > 0, positive, lambda x: x.cos(), (x,))

    structure = Structure()
    run(structure, fn, torch.ones(3))
    assert structure.ops == [["sin", "mul"]]


def test_recomputed_part_is_compiled_in_the_backward():
    def fn(x):
        def inner(y):
            with region("kept"):
                return (y * y).cos().exp()

        return checkpoint(inner, x.sin(), use_reentrant=False)

    structure = Structure("min_cut")
    x = torch.randn(3, requires_grad=True)
    structure.compile(fn)(x).sum().backward()
    actual, x.grad = x.grad, None
    fn(x).sum().backward()
    torch.testing.assert_close(actual, x.grad)
    forward, backward = structure.ops
    assert forward == ["mul", "cos", "exp"]
    assert {"cos", "exp", "sin"} <= set(backward)


def test_symbols_in_sizes_are_passed_along():
    def fn(x):
        y = torch.cat([x, x])
        with region("r"):
            return y + 1

    structure = Structure()
    run(structure, fn, torch.randn(6), dynamic=True)
    (request,) = structure.compiler.requests
    assert [type(value).__name__ for value in request.inputs] == ["FakeTensor", "SymInt"]
    assert str(request.inputs[0].shape[0]) == f"2*{request.inputs[1]}"


def test_input_written_in_a_region():
    def fn(x):
        with region("r"):
            x.add_(1)
            return x * 2

    structure = Structure()
    x = torch.zeros(3)
    torch.testing.assert_close(structure.compile(fn)(x), torch.full((3,), 2.0))
    assert x.tolist() == [1, 1, 1]


def test_two_threads_compile_at_once():
    def fn(x):
        with region("r"):
            return x.sin() * x

    def work(size):
        return structure.compile(fn, dynamic=False)(torch.ones(size))

    structure = Structure()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(work, range(2, 6)))
    for size, result in zip(range(2, 6), results, strict=True):
        torch.testing.assert_close(result, fn(torch.ones(size)))
