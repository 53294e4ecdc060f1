"""``regional.first_divergence``: which value, or gradient, is the first that differs; and what hides it."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import BackendSpec, BadProgramError, region
from pytest_regional.harness.blame.divergence import Divergence, NoGraphError
from pytest_regional.testing import regional


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


def test_the_first_wrong_gradient(wrong_sine):
    """The backward of a cosine has a sine, so the gradient of what goes into the cosine is wrong."""

    def program(x):
        with region("only"):
            return (x * 2).cos().exp()

    found = diverging(program, (8, 8), grad=True)
    assert (found.operator, found.stage, found.before) == ("mul", "backward", "cos")
    assert "the gradient of its value differs first; cos is right" in found.sentence
    assert diverging(program, (8, 8), grad=True, backward=False) == Divergence()


def test_nothing_differs():
    found = diverging(waves, (8, 8), (8, 8), grad=True)
    assert found == Divergence()
    assert found.sentence == "no value of the program differs from eager"


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

    error = pytest.raises(NoGraphError, match="Dynamo makes 2 graphs of the program")
    with regional("inductor", "cpu", fullgraph=False, expects_regions=False) as r, error:
        r.first_divergence(broken, torch.ones(3))


def test_a_program_that_fails_in_eager():
    with pytest.raises(BadProgramError):
        diverging(lambda x: x @ x, (2, 3))


def test_nothing_is_counted(wrong_sine):
    with regional("reference", "cpu", expects_regions=False) as r, r.expect(graphs=0, region_compiles=0):
        r.first_divergence(waves, r.randn(4), r.randn(4))
