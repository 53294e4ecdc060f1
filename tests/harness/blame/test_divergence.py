"""``regional.first_divergence``: which value, or gradient, is the first that differs; and what hides it."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import BackendSpec, BadProgramError, region
from pytest_regional._base.errors import RegionalError
from pytest_regional.backends.registry import UnknownBackendError
from pytest_regional.testing import regional

NOTHING, NOTHING_ELSE = (f"no value of the program differs from {other}" for other in ("eager", "the other graph"))


def waves(x, y):
    with region("first"):
        a = x.exp() + 1
    with region("second"):
        return a.tanh() + y.sin() * 2


def diverging(program, *shapes, backend="reference", grad=False, **options):
    with regional(backend, "cpu", expects_regions=False) as r:
        return r.first_divergence(program, *(r.randn(*shape, requires_grad=grad) for shape in shapes), **options)


@pytest.mark.parametrize("backend", ["reference", "torch", "inductor"])
def test_the_first_wrong_value(wrong_sine, backend):
    found = diverging(waves, (8, 8), (8, 8), backend=backend)
    assert (found.operator, found.region, found.stage, found.before) == ("sin", "second", "forward", "tanh")
    assert found.where.startswith("test_divergence.py:")
    assert "elements differ" in found.detail
    assert found.sentence == f"region 'second', sin ({found.where}): its value differs first; tanh is right"


@pytest.mark.slow("searches with some ten compiles", fast="test_the_first_gradient_of_two_versions")
def test_the_first_wrong_gradient(wrong_sine):
    """The backward of a cosine has a sine, so the gradient of what goes into the cosine is wrong."""

    def program(x):
        with region("only"):
            return (x * 2).cos().exp()

    found = diverging(program, (8, 8), grad=True)
    assert (found.operator, found.stage, found.before) == ("mul", "backward", "cos")
    assert "the gradient of its value differs first; cos is right" in found.sentence
    assert diverging(program, (8, 8), grad=True, backward=False).sentence == NOTHING


def cosine_for_sine(gm, inputs):
    for node in gm.graph.find_nodes(op="call_method", target="sin"):
        node.target = "cos"
    gm.recompile()
    return gm.forward


COSINE = BackendSpec("cosine", lambda: cosine_for_sine)


def test_values_inside_of_grad_jvp_and_vmap():
    """They cannot leave their level of functorch; what leaves it is compared."""

    def program(x):
        gradient = torch.func.vmap(torch.func.grad(lambda t: (t * t).sum()))(x)
        return torch.func.jvp(torch.cos, (gradient,), (gradient,))[1].sin() + 1

    found = diverging(program, (4, 3), backend=COSINE)
    assert (found.operator, found.stage) == ("sin", "forward")
    assert diverging(program, (4, 3), backend="aot_eager").sentence == NOTHING


@pytest.mark.slow("compiles C++ twice", fast="test_values_inside_of_grad_jvp_and_vmap")
def test_nothing_differs():
    found = diverging(waves, (8, 8), (8, 8), grad=True)
    assert found.sentence == NOTHING
    assert found.sentence == "no value of the program differs from eager"


@torch.compiler.nested_compile_region
def squashed(x):
    return x.tanh()


@pytest.mark.parametrize(
    "called",
    [lambda x: squashed(squashed(x)), lambda x: torch.cond(x.sum() > 0, torch.exp, torch.exp, (x,))],
    ids=["a nested region twice", "branches"],
)
def test_a_graph_with_graphs_in_it(wrong_sine, called):
    def program(x):
        return called(x).tanh() + x.sin()

    found = diverging(program, (8, 8), backend="inductor")
    assert (found.operator, found.before) == ("sin", "tanh")


def test_parameters_and_inputs_stay_as_they_are(wrong_sine):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))

        def forward(self, x):
            x.mul_(2)
            return (x * self.weight).sin()

    layer, x = Layer(), torch.ones(8)
    with regional("inductor", "cpu", expects_regions=False) as r:
        found = r.first_divergence(layer, x)
    assert found.operator == "sin"
    assert x.eq(1).all()
    assert layer.weight.grad is None


def backend_where(wrong):
    """Return a backend whose result is one too large where ``wrong`` says so of the graph."""

    def backend(gm, inputs):
        return lambda *arguments: [one + 1 if wrong(gm) else one for one in gm(*arguments)]

    return BackendSpec("wrong", lambda: backend)


def test_a_value_that_an_output_hides():
    """The backend is wrong only where fewer than three values are returned: with all of them nothing is."""
    spec = backend_where(lambda gm: len(gm.graph.output_node().args[0]) < 3)
    found = diverging(lambda x: (x.exp() + 1).tanh() * 2, (4,), backend=spec, backward=False)
    assert found.operator == "exp"
    assert found.hidden == ()


def test_values_that_cannot_be_seen():
    """The backend is right where ``exp`` or ``add`` is returned as well, so the third is seen first."""

    def fused(gm):
        shown = [node.args[0].name for node in gm.graph.find_nodes(op="call_method", target="clone")]
        return not {"exp", "add"} & set(shown)

    found = diverging(lambda x: (x.exp() + 1).tanh() * 2, (4,), backend=backend_where(fused), backward=False)
    assert (found.operator, found.before) == ("tanh", "")
    assert set(found.hidden) <= {"exp", "add"}
    assert "not seen, as the program is right with them as outputs" in found.sentence


def test_several_graphs_have_no_first_value():
    def broken(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    error = pytest.raises(RegionalError, match="Dynamo makes 2 graphs of the program")
    with regional("inductor", "cpu", fullgraph=False, expects_regions=False) as r, error:
        r.first_divergence(broken, torch.ones(3))


def test_a_program_that_fails_in_eager():
    with pytest.raises(BadProgramError):
        diverging(lambda x: x @ x, (2, 3))


def test_nothing_is_counted(wrong_sine):
    with regional("reference", "cpu", expects_regions=False) as r, r.expect(graphs=0, region_compiles=0):
        r.first_divergence(waves, r.randn(4), r.randn(4))


def two_products(x, w):
    with region("only"):
        return ((x @ w).sin() * 2).tanh()


def test_two_backends():
    """A backend agrees with itself, though neither of the two agrees with eager."""
    with regional(COSINE, "cpu", expects_regions=False) as r:
        inputs = r.randn(8, 8), r.randn(8, 8)
        assert r.first_divergence(two_products, *inputs).operator == "sin"
        alike = r.first_divergence(two_products, *inputs, against=COSINE)
        assert alike.sentence == "no value of the program differs from backend 'cosine'"
        differs = r.first_divergence(two_products, *inputs, against="aot_eager")
    assert (differs.operator, differs.before, differs.region) == ("sin", "matmul", "only")
    assert (
        f"sin ({differs.where}): its value differs first from backend 'aot_eager'; matmul is right" in differs.sentence
    )


def test_two_backends_and_a_gradient(wrong_sine):
    def program(x):
        with region("only"):
            return (x * 2).cos().exp()

    found = diverging(program, (8, 8), grad=True, against="aot_eager")
    assert (found.operator, found.stage, found.against) == ("mul", "backward", "backend 'aot_eager'")


def test_a_backend_that_does_not_exist():
    with pytest.raises(UnknownBackendError):
        diverging(two_products, (2, 2), (2, 2), against="inductr")


def versions(change):
    """Return a graph, and what a pass made of it."""

    def program(x, y):
        a = torch.relu(x @ y)
        b = a * 2
        return torch.tanh(b) + y, b

    before, after = torch.fx.symbolic_trace(program), torch.fx.symbolic_trace(program)
    change(after)
    after.recompile()
    return before, after


def relu_for_gelu(gm):
    (relu,) = (node for node in gm.graph.nodes if node.target is torch.relu)
    with gm.graph.inserting_after(relu):
        gelu = gm.graph.call_function(torch.nn.functional.gelu, relu.args)
    relu.replace_all_uses_with(gelu)
    gm.graph.erase_node(relu)


def one_value_returned(gm):
    output = gm.graph.output_node()
    output.args = (output.args[0][0],)


def diverging_graphs(change, grad=False, **options):
    before, after = versions(change)
    with regional("reference", "cpu", expects_regions=False) as r, r.expect(graphs=0):
        inputs = r.randn(4, 4, requires_grad=grad), r.randn(4, 4, requires_grad=grad)
        return r.first_divergence(after, *inputs, against=before, **options)


def test_two_versions_of_a_graph():
    found = diverging_graphs(relu_for_gelu)
    assert (found.operator, found.value, found.before, found.new) == ("mul", "mul", "matmul", ("gelu",))
    assert found.sentence == (
        "mul: its value differs first from the other graph; matmul is right; only in this graph: gelu"
    )


def test_versions_of_a_graph_that_agree():
    """Fewer results are no value that differs; but the value that was one of them gets another gradient."""
    assert diverging_graphs(lambda gm: None, grad=True).sentence == NOTHING_ELSE
    assert diverging_graphs(one_value_returned).sentence == NOTHING_ELSE
    fewer = diverging_graphs(one_value_returned, grad=True)
    assert (fewer.value, fewer.stage, fewer.before) == ("mul", "backward", "tanh")


def test_the_first_gradient_of_two_versions():
    def twice_but_once_backward(x):
        return x + x.detach()

    def wrong_gradient(gm):
        (mul,) = (node for node in gm.graph.nodes if node.name == "mul")
        mul.target, mul.args = twice_but_once_backward, (mul.args[0],)

    found = diverging_graphs(wrong_gradient, grad=True)
    assert (found.value, found.stage, found.before) == ("relu", "backward", "mul")
    assert diverging_graphs(wrong_gradient, grad=True, backward=False).sentence == NOTHING_ELSE


def test_a_graph_and_a_program():
    before, _ = versions(lambda gm: None)
    with pytest.raises(TypeError, match=r"another version of it: a torch\.fx\.GraphModule"):
        diverging(two_products, (2, 2), (2, 2), against=before)
    with pytest.raises(TypeError, match="of type int: give the name of a backend"):
        diverging(two_products, (2, 2), (2, 2), against=3)
