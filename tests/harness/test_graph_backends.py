"""Backends that do not look at annotations: what they have to have compiled, and what is said of them."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import (
    BackendSpec,
    FallbackError,
    GraphCapabilities,
    ParityError,
    VacuousTestError,
    unsupported,
)
from pytest_regional._torch import symbol
from pytest_regional.testing import regional

from .programs import pair, product, unannotated


def runs_the_graph(gm, example_inputs):
    return gm.forward


def graphs(backend, **options):
    return BackendSpec("graphs", lambda: backend, GraphCapabilities(), **options)


def test_a_graph_that_it_was_handed_is_enough():
    with regional(graphs(runs_the_graph)) as r:
        r.assert_parity(unannotated, *pair(r))


@pytest.mark.parametrize("program", [lambda x: x, lambda x: (x, 3)])
def test_an_empty_graph_is_not(program):
    with pytest.raises(VacuousTestError, match="no graph was compiled"), regional(graphs(runs_the_graph)) as r:
        r.compile(program)(r.randn(3))


def test_nor_is_a_graph_of_another_backend():
    with pytest.raises(VacuousTestError, match=r"no graph was.*'inductor' compiled"), regional(graphs(runs_the_graph)):
        torch.compile(torch.sin)(torch.randn(3))


def test_nor_is_eagers():
    """What eager asks Dynamo for (as flex_attention does) is not the backend's."""
    program = torch.compile(lambda x: x.sin(), backend="eager")
    with pytest.raises(VacuousTestError), regional(graphs(runs_the_graph)) as r:
        r.assert_parity(lambda x: program(x), r.randn(3), compiled=lambda f: f)


def handed_there(regional):
    regional.compile(unannotated)(*pair(regional))


@pytest.mark.usefixtures("warm_process")
def test_a_graph_in_a_new_process_is_enough():
    with regional("tests.harness.test_graph_backends:WHOLE") as r:
        r.in_new_process(handed_there)


WHOLE = graphs(runs_the_graph)


def test_what_it_says_that_it_compiled_counts():
    units = []

    def compiles_products(gm, example_inputs):
        units.extend(node for node in gm.graph.nodes if node.target in (torch.matmul, torch.ops.aten.mm.default))
        units.extend(node for node in gm.graph.nodes if "matmul" in str(node.target))
        return gm.forward

    spec = graphs(compiles_products, compiled=lambda: len(units))
    with regional(spec) as r:
        r.compile(unannotated)(*pair(r))
    with pytest.raises(VacuousTestError, match="no graph was compiled"), regional(spec) as r:
        r.compile(lambda x, w: x + w.sum())(*pair(r))


def gives_up(gm, example_inputs):
    return symbol("torch._inductor.compile_fx", "compile_fx")(gm, example_inputs)


def test_what_it_hands_to_inductor_is_a_fallback():
    with pytest.raises(FallbackError, match=r"the backend handed .* to Inductor"):
        with regional(graphs(gives_up, inductor=False)) as r:
            r.compile(unannotated)(*pair(r))
    with regional(graphs(gives_up)) as r:
        r.compile(unannotated)(*pair(r))


def test_graphs_that_another_backend_passes_to_inductor_are_not():
    with regional(graphs(runs_the_graph, inductor=False)) as r:
        torch.compile(unannotated)(*pair(r))
        r.compile(unannotated)(*pair(r))


def test_blame_says_that_graphs_are_compiled():
    def wrong(gm, example_inputs):
        return lambda *inputs: tuple(value + 1 for value in gm.forward(*inputs))

    with regional(graphs(wrong)) as r, pytest.raises(ParityError) as caught:
        r.assert_parity(product, *pair(r))
    assert "blame: no region can be singled out: the backend compiles whole graphs" in str(caught.value)
    assert "product" not in caught.value.blame


def test_a_mistaken_specification():
    with pytest.raises(TypeError, match="compiled must be callable"):
        graphs(runs_the_graph, compiled=3)
    with pytest.raises(TypeError, match="compilers must be callable"):
        graphs(runs_the_graph, compilers=())


def test_an_unregistered_name():
    """The harness knows a backend of that name: its own, which asks for it."""
    missing = BackendSpec("no_such_backend", lambda: "no_such_backend", GraphCapabilities())
    with regional(missing, expects_regions=False) as r, pytest.raises(Exception, match=r"(?i)invalid backend"):
        r.compile(unannotated)


class Inference(GraphCapabilities):
    @property
    def backward(self):
        """For inference."""
        return unsupported("for inference")


def without_gradients(gm, example_inputs):
    def run(*inputs):
        with torch.no_grad():
            return gm.forward(*inputs)

    return run


def test_a_backend_for_inference_is_compared_at_inference():
    spec = BackendSpec("inference", lambda: without_gradients, Inference())
    with regional(spec) as r:
        x, w = pair(r, requires_grad=True)
        report = r.assert_parity(unannotated, x, w)
        assert report.compared == 2  # the output of each call, and no gradient
        module = torch.nn.Linear(8, 3)
        assert r.assert_parity(module, x).ok
        assert x.requires_grad
        assert module.weight.requires_grad
        with pytest.raises(ParityError, match="missing-grad"):
            r.assert_parity(unannotated, x, w, backward=True)


def test_a_backend_that_claims_gradients_has_to_give_them():
    with regional(graphs(without_gradients)) as r, pytest.raises(ParityError, match="missing-grad"):
        r.assert_parity(unannotated, *pair(r, requires_grad=True))
