"""Programs through Dynamo and AOTAutograd: which ops end up in which region (no Inductor)."""

import torch

from pytest_regional import region
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


@torch.compiler.nested_compile_region
def shared_body(x):
    x = x.sin()
    with region("inside"):
        return x.exp().cos()


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
