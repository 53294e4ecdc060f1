"""What a pass may be, how each form is called, and what is refused."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.fx import Graph, GraphModule

from pytest_regional import torch_matches
from pytest_regional._torch import inductor as private
from pytest_regional._torch import symbol
from pytest_regional.harness.graph_passes.recorder import GraphPassError
from pytest_regional.testing import pass_form

from .passes import Named, aten, nothing, swap

sin_to_cos = swap(aten.sin.default, aten.cos.default)
has_inference_aware = pytest.mark.skipif(not torch_matches(">=2.12"), reason="torch 2.11 has no such class")


@pass_form("module")
def takes_module(anything):
    sin_to_cos(anything.graph)


def takes_gm(gm):
    sin_to_cos(gm.graph)


def takes_annotated(anything: GraphModule) -> GraphModule:
    sin_to_cos(anything.graph)
    return anything


def takes_text_annotation(anything: torch.fx.GraphModule):
    sin_to_cos(anything.graph)


def takes_graph_called_gm(gm: Graph):
    sin_to_cos(gm)
    return gm


def takes_example_inputs(gm, example_inputs):
    assert [list(value.shape) for value in example_inputs] == [[3]]
    sin_to_cos(gm.graph)
    return gm


def takes_is_inference(graph, is_inference):
    assert is_inference
    sin_to_cos(graph)


def takes_configuration(graph, config=None):
    sin_to_cos(graph)


class Method:
    """A bound method is a pass, too."""

    def run(self, module: GraphModule):
        sin_to_cos(module.graph)


class FromPassBase(symbol("torch.fx.passes.infra.pass_base", "PassBase")):
    """PyTorch's own base, which returns a ``PassResult``."""

    def call(self, graph_module: GraphModule):
        sin_to_cos(graph_module.graph)
        result = symbol("torch.fx.passes.infra.pass_base", "PassResult")
        return result(graph_module, True)


class TakesModule(private.graph_module_pass_base()):
    """A ``CustomGraphModulePass``."""

    def __call__(self, anything):
        sin_to_cos(anything.graph)

    def uuid(self):
        return "v1"


def matcher():
    """Return a ``PatternMatcherPass`` that turns sin into cos."""
    inside = symbol("torch._inductor.pattern_matcher", "PatternMatcherPass")()
    call_function = symbol("torch._inductor.pattern_matcher", "CallFunction")
    argument = symbol("torch._inductor.pattern_matcher", "KeywordArg")("x")
    register = symbol("torch._inductor.pattern_matcher", "register_graph_pattern")

    @register(call_function(aten.sin.default, argument), pass_dict=inside)
    def replace(match, x):
        match.replace_by_example(aten.cos.default, [x])

    return inside


FORMS = {
    "function of a graph": sin_to_cos,
    "declared module": takes_module,
    "declared graph": pass_form("graph")(lambda gm: sin_to_cos(gm)),
    "declared, bound": functools.partial(takes_module),
    "annotated module": takes_annotated,
    "annotation as text": takes_text_annotation,
    "annotation before name": takes_graph_called_gm,
    "example inputs": takes_example_inputs,
    "is_inference": takes_is_inference,
    "defaults": takes_configuration,
    "bound": functools.partial(takes_configuration, config=3),
    "method": Method().run,
    "CustomGraphPass": Named(sin_to_cos),
    "CustomGraphModulePass": TakesModule(),
    "PassBase": FromPassBase(),
    "list": [nothing, sin_to_cos],
    "tuple": (Named(nothing), takes_module),
}


@pytest.mark.parametrize("form", FORMS)
def test_on_a_graph(bare, form):
    result = bare.run_pass(FORMS[form], torch.sin, bare.randn(3), stage="graph")
    result.assert_replaced(before="aten.sin", after="aten.cos")


def test_in_a_compile(inductor):
    """All forms in one list: the first finds sin, the others find what they look for gone."""
    passes = [*FORMS["tuple"], *(one for form, one in FORMS.items() if form not in ("list", "tuple"))]
    inductor.run_pass(passes, torch.sin, inductor.randn(3)).assert_replaced(before="aten.sin", after="aten.cos")


@pytest.mark.parametrize("stage", ["post_grad", "joint"])
def test_a_pattern_matcher_pass(inductor, stage):
    matching = matcher()
    result = inductor.run_pass(matching, torch.sin, inductor.randn(3), stage=stage)
    result.assert_replaced(before="aten.sin", after="aten.cos")
    result.assert_idempotent()


@has_inference_aware
def test_a_pass_that_takes_is_inference(inductor, bare):
    told = []

    class Aware(private.inference_aware_pass_base()):
        def __call__(self, graph, is_inference):
            told.append(is_inference)

        def uuid(self):
            return "v1"

    x = inductor.randn(3, 3, requires_grad=True)
    inductor.run_pass(Aware(), lambda x: x @ x, x)
    inductor.run_pass(Aware(), lambda x: x @ x, x.detach(), stage="post_grad_pre")
    bare.run_pass(Aware(), torch.sin, x, stage="graph")
    assert told == [False, False, True, True]
    with pytest.raises(GraphPassError, match="Inductor gives to post-grad passes alone"):
        inductor.run_pass(Aware(), torch.sin, x, stage="joint")


def test_another_graph_counts_where_it_is_not_dropped(bare, inductor):
    def copying(graph: Graph) -> Graph:
        copied = Graph()
        copied.output(copied.graph_copy(graph, {}))
        sin_to_cos(copied)
        return copied

    bare.run_pass(copying, torch.sin, bare.randn(3), stage="graph").assert_replaced(before="aten.sin", after="aten.cos")
    with pytest.raises(
        GraphPassError, match="copying returned another Graph, which Inductor drops in silence at stage"
    ):
        inductor.run_pass(copying, torch.sin, inductor.randn(3), stage="post_grad")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Named, "Named is a class: run_pass needs an instance"),
        (3, "3 is no graph pass"),
        ([], "empty list"),
        ([nothing, None], "None is no graph pass"),
        (
            takes_gm,
            r"takes_gm does not say what it takes: .*torch.fx.Graph, .*'gm'. Annotate it, \(gm: torch.fx.GraphM",
        ),
        (lambda: None, r"<lambda> takes no graph module and no graph"),
    ],
)
def test_invalid_passes(bare, given, message):
    with pytest.raises(GraphPassError, match=message):
        bare.run_pass(given, torch.sin, bare.randn(3), stage="graph")


def test_what_returns_something_else(bare):
    with pytest.raises(GraphPassError, match=r"returned list \[\]: a pass returns nothing"):
        bare.run_pass(lambda graph: [], torch.sin, bare.randn(3), stage="graph")


def test_invalid_programs(bare):
    with pytest.raises(TypeError, match="a GraphModule, a function or a module, not 3"):
        bare.run_pass(nothing, 3, stage="graph")
    with pytest.raises(TypeError, match="a graph itself is for stage 'graph'"):
        bare.run_pass(nothing, Graph(), stage="joint")


def test_a_pass_that_holds_nodes_of_the_given_graph(bare):
    """A graph is changed itself, so that what a pass remembers of it is still true."""
    module = torch.fx.symbolic_trace(lambda x: x.sin() + x)
    first = next(iter(module.graph.find_nodes(op="call_method", target="sin")))

    def erase(graph):
        first.replace_all_uses_with(first.args[0])
        graph.erase_node(first)

    for given in (module, module.graph):
        if first.graph is module.graph and first in module.graph.nodes:
            bare.run_pass(erase, given).assert_count(".sin", 0)
    assert not module.graph.find_nodes(op="call_method", target="sin")
