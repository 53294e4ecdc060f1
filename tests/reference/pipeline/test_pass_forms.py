"""The forms of passes, and how each is called."""

from __future__ import annotations

import dataclasses
import functools
import inspect

import pytest
import torch
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from pytest_regional._torch.inductor import (
    custom_graph_pass_base,
    graph_module_pass_base,
    inference_aware_pass_base,
    pattern_matcher_pass,
)
from pytest_regional.reference import RegionalInductor, regional_inductor
from pytest_regional.reference.passes import DeadCodeElimination
from pytest_regional.reference.pipeline import InvalidPassError, Pass, PassPipeline, graph_pass
from pytest_regional.testing import pass_form, regional

from .pass_examples import aten, block, relu_for_clamp, traced


def met(given, graph="forward"):
    """Run one pass, which appends what it was called with to the list that it returns."""
    gm = traced()
    return gm, PassPipeline([given]).run(gm, ["inputs"], graph=graph)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda seen: lambda gm, example_inputs: seen.append((gm, example_inputs)), ("gm", "inputs")),
        (lambda seen: lambda module, inputs, graph: seen.append((module, inputs, graph)), ("gm", "inputs", "kind")),
        (lambda seen: lambda gm, inputs=None, *, graph="?": seen.append((gm, inputs, graph)), ("gm", "inputs", "kind")),
        (lambda seen: lambda gm, graph: seen.append((gm, graph)), ("gm", "kind")),
        (lambda seen: lambda gm: seen.append((gm,)), ("gm",)),
        (lambda seen: lambda anything: seen.append((anything,)), ("gm",)),
        (lambda seen: pass_form("module")(lambda g: seen.append((g,))), ("gm",)),
        (lambda seen: pass_form("graph")(lambda gm: seen.append((gm,))), ("graph",)),
    ],
)
def test_a_function_gets_what_its_signature_asks_for(make, expected):
    seen, gm, inputs = [], traced(), ["inputs"]
    PassPipeline([make(seen)]).run(gm, inputs, graph="backward")
    values = {"gm": gm, "graph": gm.graph, "inputs": inputs, "kind": "backward"}
    (got,) = seen
    assert len(got) == len(expected)
    assert all(one is values[name] or one == values[name] for one, name in zip(got, expected, strict=True))


def annotated_as_module(g: torch.fx.GraphModule) -> None:
    g.met = True


def annotated_as_graph(gm: torch.fx.Graph) -> None:
    gm.met = True


def test_an_annotation_says_what_is_wanted():
    assert met(annotated_as_module)[1].met
    assert met(annotated_as_graph)[1].graph.met


@pytest.mark.parametrize("name", ["graph", "g"])
def test_a_name_is_no_declaration(name):
    """Here a pass gets the module: one that seems to want the graph is not given something else in silence."""
    scope = {}
    exec(f"def mine({name}): pass", scope)
    declare = rf"mine does not say what it takes: .*GraphModule, .*'{name}'. Annotate it, \({name}: torch.fx.Graph\)"
    with pytest.raises(InvalidPassError, match=declare):
        PassPipeline([scope["mine"]])


def test_a_declared_form_that_there_is_not():
    with pytest.raises(ValueError, match=r"'graph' or 'module', not 'gm'"):
        pass_form("gm")


def test_inductors_own_passes():
    seen = []

    class OnGraph(custom_graph_pass_base()):
        def __call__(self, graph):
            seen.append(graph)

        def uuid(self):
            return "1"

    class OnModule(graph_module_pass_base()):
        def __call__(self, gm):
            seen.append(gm)

        def uuid(self):
            return "1"

    gm = traced()
    pipeline = PassPipeline([OnGraph(), OnModule()])
    pipeline.run(gm, [])
    assert pipeline.names == ("OnGraph", "OnModule")
    assert seen == [gm.graph, gm]
    assert pipeline.uuid() is not None


@pytest.mark.skipif(inference_aware_pass_base() is None, reason="torch 2.11 has no CustomInferenceAwareGraphPass")
@pytest.mark.parametrize(("graph", "told"), [("inference", True), ("forward", False)])
def test_a_pass_that_takes_is_inference(graph, told):
    seen = []

    class Aware(inference_aware_pass_base()):
        def __call__(self, graph, is_inference):
            seen.append(is_inference)

        def uuid(self):
            return "1"

    met(Aware(), graph)
    assert seen == [told]


def test_a_pattern_matcher_pass():
    matcher = pattern_matcher_pass()()
    assert met(matcher)[1] is not None


def test_a_pass_result_of_torch_fx():
    class Replacing(PassBase):
        def call(self, graph_module):
            relu_for_clamp(graph_module, [])
            return PassResult(graph_module, True)

    gm, result = met(Replacing())
    assert result is gm
    assert len(gm.graph.find_nodes(op="call_function", target=aten.relu.default)) == 1


def test_names():
    class Object:
        def __call__(self, gm, example_inputs):
            return None

    named = Object()
    named.name = "mine"
    passes = [relu_for_clamp, Object(), named, functools.partial(annotated_as_module)]
    assert PassPipeline(passes).names == ("relu_for_clamp", "Object", "mine", "annotated_as_module")


@pytest.mark.parametrize("given", [3, "cse", None, ["cse"]])
def test_an_object_that_is_not_callable_is_no_pass(given):
    with pytest.raises(InvalidPassError, match="cannot be called: a pass is a callable"):
        PassPipeline([given])


def test_a_class_is_no_pass_but_its_instances_are():
    with pytest.raises(InvalidPassError, match=r"CountsUp is a class: a pipeline needs an instance, CountsUp\(...\)"):
        PassPipeline([CountsUp])


def test_a_function_that_takes_nothing_is_no_pass():
    with pytest.raises(InvalidPassError, match="takes no graph module"):
        PassPipeline([lambda: None])


@pytest.mark.parametrize("given", ["canonicalize", relu_for_clamp])
def test_a_pipeline_takes_a_list(given):
    with pytest.raises(InvalidPassError, match="takes a list of passes"):
        PassPipeline(given)


@dataclasses.dataclass(frozen=True)
class CountsUp(Pass):
    """Two lines besides what it does."""

    version = 2
    by: int = 1
    note: str = dataclasses.field(default="", metadata={"in_key": False})

    def __call__(self, gm, example_inputs=()):
        gm.count = getattr(gm, "count", 0) + self.by


def test_a_pass_of_two_lines():
    gm, _ = met(CountsUp(3))
    assert gm.count == 3
    assert CountsUp(3).name == "counts_up"
    assert CountsUp(3).uuid() == ("counts_up", 2, ("by", 3))
    assert CountsUp(3, note="other").uuid() == CountsUp(3).uuid()
    assert CountsUp.graphs == ("forward", "backward", "inference")


def test_a_pass_without_a_version_has_no_uuid_and_other_attributes_are_settings():
    class Plain(Pass):
        def __init__(self, by):
            self.by = by

    assert Plain(1).uuid() is None
    Plain.version = 1
    assert Plain(2).uuid() == ("plain", 1, ("by", 2))
    with pytest.raises(NotImplementedError, match="Plain does not define __call__"):
        Plain(1)(traced())


def test_the_decorator():
    @graph_pass(name="relu", uuid=("relu", 1), after="canonicalize", graphs="forward")
    def replace(gm):
        relu_for_clamp(gm, [])

    @graph_pass
    def bare(graph: torch.fx.Graph):
        graph.seen = True

    pipeline = PassPipeline([replace, bare])
    gm = traced()
    pipeline.run(gm, [])
    assert pipeline.names == ("relu", "bare")
    assert gm.graph.seen
    assert pipeline.report.of("relu")[0].added == {"aten.relu.default": 1}
    assert replace.uuid() == ("relu", 1)
    assert bare.uuid() is None
    replace(traced())  # It is a function still.


def test_inputs_one_by_one_where_the_signature_has_them_so():
    seen = []

    def spread(gm, *example_inputs):
        seen.append(example_inputs)

    def wrapper(*args):
        seen.append(args[1])

    gm = torch.fx.symbolic_trace(lambda x, y: x + y)
    PassPipeline([spread, wrapper]).run(gm, [1, 2])
    assert seen == [(1, 2), [1, 2]]


def test_regional_inductor_may_stand_in_a_list_as_it_is():
    pipeline = PassPipeline([regional_inductor, DeadCodeElimination()])
    assert pipeline.names == ("dead_code_elimination", "regional_inductor")
    assert pipeline.terminal
    assert pipeline.uuid() == PassPipeline([RegionalInductor(), DeadCodeElimination()]).uuid()


def test_a_decorated_function_is_called_by_run_pass_as_the_function_would_be():
    @graph_pass(uuid=1)
    def on_module(gm):
        relu_for_clamp(gm, [])

    @graph_pass
    def on_graph(graph: torch.fx.Graph):
        graph.lint()

    @graph_pass
    def with_inputs(gm, example_inputs):
        relu_for_clamp(gm, example_inputs)

    for one in (on_module, with_inputs):
        with regional("aot_eager", expects_regions=False) as r:
            result = r.run_pass(one, block, r.randn(4, 8), r.randn(8, 8), stage="graph")
            result.assert_replaced(before="aten.clamp_min", after="aten.relu")
            r.run_pass(on_graph, block, r.randn(4, 8), r.randn(8, 8), stage="graph")


def test_the_signature_of_a_decorated_function_is_the_functions():
    @graph_pass
    def mine(gm, example_inputs, *, graph): ...

    assert list(inspect.signature(mine).parameters) == ["gm", "example_inputs", "graph"]
    assert "identity" in inspect.signature(type(mine)).parameters
