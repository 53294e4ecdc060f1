"""Running a pipeline: which passes run, what they may return, what is told of them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from pytest_regional import region
from pytest_regional._torch.dynamo import restart_exceptions
from pytest_regional.reference.pipeline import (
    PassFailedError,
    PassPipeline,
    PipelineError,
    UnknownPassError,
    graph_pass,
)
from pytest_regional.testing import pass_form, regional

from .pass_examples import aten, block, declared, note, relu_for_clamp, traced


def test_passes_run_in_order_and_the_module_comes_back():
    seen, gm = [], traced()
    pipeline = PassPipeline([note("a", seen), note("b", seen), note("c", seen)])
    assert pipeline.run(gm, []) is gm
    assert seen == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("graph", "ran"),
    [("joint", ["j", "all"]), ("forward", ["f", "all", "d"]), ("backward", ["all", "d"]), ("inference", ["all", "d"])],
)
def test_a_pass_runs_on_its_graphs_alone(graph, ran):
    seen = []
    kinds = ("joint", "forward", "backward", "inference")
    decorate = [{"graphs": "joint"}, {"graphs": ("forward",)}, {"graphs": kinds}, {}]
    passes = [graph_pass(**d)(note(n, seen)) for n, d in zip(("j", "f", "all", "d"), decorate, strict=True)]
    pipeline = PassPipeline(passes)
    pipeline.run(traced(), [], graph=graph)
    assert tuple(seen) == tuple(ran) == pipeline.names_on(graph)


def test_a_graph_that_there_is_not():
    with pytest.raises(PipelineError, match=r"'forwrad'.*Did you mean 'forward'"):
        PassPipeline([]).run(traced(), [], graph="forwrad")


def test_a_returned_module_takes_the_place_of_the_graph():
    other = traced()
    seen = []
    pipeline = PassPipeline([graph_pass(name="swap")(lambda gm: other), lambda gm: seen.append(gm)])
    assert pipeline.run(traced(), []) is other
    assert seen == [other]


def test_the_graph_is_recompiled_after_each_pass():
    x, w, seen = torch.randn(4, 8), torch.randn(8, 8), []

    def negative_for_clamp(gm, example_inputs):
        for node in gm.graph.find_nodes(op="call_function", target=aten.clamp_min.default):
            node.target, node.args = aten.neg.default, node.args[:1]

    gm = traced()
    PassPipeline([negative_for_clamp, graph_pass(name="runs")(lambda gm: seen.append(gm(x, w)))]).run(gm, [])
    torch.testing.assert_close(seen, [-(x @ w) @ w])


class MineError(Exception):
    """An error of the user's."""


def test_exceptions_of_a_pass_are_chained_with_its_name():
    @graph_pass(name="mine")
    def failing(gm):
        raise MineError("my own words")

    pipeline = PassPipeline([note("a"), failing, note("b")])
    with pytest.raises(
        PassFailedError, match=r"^pass 'mine', on the backward graph, raised MineError: my own words$"
    ) as caught:
        pipeline.run(traced(), [], graph="backward")
    assert isinstance(caught.value.__cause__, MineError)
    assert (caught.value.pass_name, caught.value.graph) == ("mine", "backward")
    assert [(row.name, row.status) for row in pipeline.report] == [("a", "ran"), ("mine", "failed")]


def test_an_error_of_a_nested_pipeline_names_the_pass_inside():
    @graph_pass(name="mine")
    def failing(gm):
        raise MineError

    with pytest.raises(PassFailedError, match=r"^pass 'mine', on the forward graph") as caught:
        PassPipeline([PassPipeline([failing], name="inner")]).run(traced(), [])
    assert caught.value.pass_name == "mine"


@pytest.mark.parametrize("kind", restart_exceptions())
def test_dynamos_restart_exceptions_propagate(kind):
    def failing(gm):
        raise kind

    with pytest.raises(kind):
        PassPipeline([failing]).run(traced(), [])


def used_before_made(graph: torch.fx.Graph):
    first, last = graph.find_nodes(op="call_function", target=aten.mm.default)
    last.append(first)


def without_output(graph: torch.fx.Graph):
    graph.erase_node(graph.output_node())


@pytest.mark.parametrize("breaking", [used_before_made, without_output])
def test_an_invalid_graph_is_the_fault_of_the_pass_that_left_it(breaking):
    with pytest.raises(PassFailedError, match=f"pass '{breaking.__name__}', on the forward graph, left an invalid"):
        PassPipeline([relu_for_clamp, breaking, note("b")]).run(traced(), [])


@pytest.mark.parametrize("returned", [3, "gm", True, (), [1], torch.zeros(2), lambda: None])
def test_nonsense_returned(returned):
    with pytest.raises(PassFailedError, match=r"pass 'odd', on the forward graph, returned .*GraphModule"):
        PassPipeline([graph_pass(name="odd")(lambda gm: returned)]).run(traced(), [])


def test_a_pass_on_a_graph_may_count_but_not_make_another_graph():
    assert PassPipeline([pass_form("graph")(lambda graph: 3)]).run(traced(), []) is not None
    for returned in (copy.deepcopy(traced().graph), traced()):
        with pytest.raises(PassFailedError, match="returned"):
            PassPipeline([lambda graph, returned=returned: returned]).run(traced(), [])


def test_a_terminal_result_is_returned_as_it_is():
    result = object.__new__(type("Boxed", (), {"__call__": lambda self, args: args, "_boxed_call": True}))
    terminal = graph_pass(name="compile", terminal=True)
    pipeline = PassPipeline([terminal(lambda gm: result), note("a")])
    assert pipeline.run(traced(), []) is result
    assert [(row.name, row.status, row.ops_after) for row in pipeline.report] == [
        ("a", "ran", 3),
        ("compile", "compiled", None),
    ]
    in_place = PassPipeline([terminal(lambda gm: None)])
    gm = traced()
    assert in_place.run(gm, []) is gm
    with pytest.raises(PassFailedError, match="is terminal and returned int 3, which cannot be called"):
        PassPipeline([terminal(lambda gm: 3)]).run(traced(), [])


# Disabling.


def test_disabled_passes_do_not_run_and_are_reported():
    seen = []
    pipeline = PassPipeline([note("cse", seen), note("cse_late", seen), note("dce", seen)], disable=("cse",))
    pipeline.run(traced(), [])
    assert seen == ["cse_late", "dce"]  # By the exact name: "cse" is a part of the other.
    assert (pipeline.names, pipeline.disabled) == (("cse_late", "dce"), ("cse",))
    assert [(row.name, row.status) for row in pipeline.report] == [
        ("cse_late", "ran"), ("dce", "ran"), ("cse", "disabled"),
    ]  # fmt: skip


def test_a_name_that_no_pass_has():
    with pytest.raises(
        UnknownPassError, match=r"no pass is called 'cse_lat'.* Is 'cse_late' meant.* 'cse', 'cse_late'"
    ):
        PassPipeline([note("cse"), note("cse_late")], disable=("cse_lat",))
    with pytest.raises(UnknownPassError, match=r"'CSE'.*Names are compared exactly"):
        PassPipeline([note("cse")], disable="CSE")
    with pytest.raises(UnknownPassError, match="there are: none"):
        PassPipeline([], disable="cse")


def test_without():
    whole = PassPipeline([note("a"), note("b"), note("c")], disable="a")
    less = whole.without("c")
    assert (whole.names, less.names, less.disabled) == (("b", "c"), ("b",), ("a", "c"))
    assert whole.without("a").names == whole.names
    with pytest.raises(UnknownPassError, match="'d'"):
        whole.without("d")


# The report.


def test_the_report_tells_what_came_and_went():
    pipeline = PassPipeline([relu_for_clamp, note("nothing")])
    pipeline.run(traced(), [])
    relu, nothing = pipeline.report
    assert (relu.name, relu.graph, relu.status) == ("relu_for_clamp", "forward", "ran")
    assert (relu.ops_before, relu.ops_after) == (3, 3)
    assert (relu.added, relu.removed) == ({"aten.relu.default": 1}, {"aten.clamp_min.default": 1})
    assert relu.seconds > 0
    assert relu.changed
    assert not nothing.changed
    assert pipeline.report.seconds == relu.seconds + nothing.seconds


def test_the_report_is_an_aligned_table():
    pipeline = PassPipeline([relu_for_clamp, note("nothing"), note("off")], disable="off")
    pipeline.run(traced(), [], graph="backward")
    pipeline.run(traced(), [])
    head, line, *rows = str(pipeline.report).splitlines()
    assert head.split() == ["graph", "pass", "ms", "ops", "changes"]
    assert set(line) == {"-", " "}
    assert [row.split()[:2] for row in rows] == [
        [graph, name] for graph in ("forward", "backward") for name in ("relu_for_clamp", "nothing", "off")
    ]
    column = head.index("changes")
    changes = [row[column:] for row in rows[:3]]
    assert changes == ["-1 aten.clamp_min.default, +1 aten.relu.default", "none", "disabled"]
    assert str(PassPipeline([]).report) == "no pass has run"


def test_the_report_is_of_the_latest_run_on_each_graph():
    pipeline = PassPipeline([relu_for_clamp])
    gm = traced()
    pipeline.run(gm, [])
    pipeline.run(gm, [])
    assert [row.changed for row in pipeline.report] == [False]
    assert pipeline.without().report.passes == ()


def test_operators_in_bodies_are_counted_once_a_call():
    def branches(x):
        once = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return torch.cond(x.sum() > 1, torch.sin, torch.cos, (once,))

    gm = make_fx(branches, tracing_mode="fake")(torch.randn(4))
    pipeline = PassPipeline([note("a")])
    pipeline.run(gm, [])
    bodies = 2 * 2  # two calls of cond with two branches of one op
    assert pipeline.report[0].ops_before == bodies + sum(node.op == "call_function" for node in gm.graph.nodes)

    def sine_for_cosine(gm, example_inputs):
        for body in gm.children():
            for node in body.graph.find_nodes(op="call_function", target=aten.cos.default):
                node.target = aten.sin.default

    pipeline = PassPipeline([sine_for_cosine])
    pipeline.run(gm, [])
    assert pipeline.report[0].removed == {"aten.cos.default": 2}
    assert pipeline.report[0].added == {"aten.sin.default": 2}


def test_a_pass_may_say_what_it_did():
    custom = declared("talks", graphs="joint")
    type(custom).summary = lambda self, graph: f"3 things on {graph}"
    pipeline = PassPipeline([custom])
    pipeline.run(traced(), [], graph="joint")
    assert pipeline.report[0].summary == "3 things on joint"
    assert "none; 3 things on joint" in str(pipeline.report)


# A pipeline is a pass.


def test_a_pipeline_is_a_pass_of_another_one():
    seen = []
    inner = PassPipeline([note("a", seen), note("b", seen)], name="inner")
    outer = PassPipeline([declared("last", after=("inner",)), inner, note("c", seen)])
    outer.run(traced(), [], graph="inference")
    assert seen == ["a", "b", "c"]
    assert outer.names == ("inner", "last", "c")
    assert [row.graph for row in inner.report] == ["inference", "inference"]


def test_a_pipeline_on_a_graph_given_to_run_pass():
    with regional("aot_eager", expects_regions=False) as r:
        result = r.run_pass(PassPipeline([relu_for_clamp]), block, r.randn(4, 8), r.randn(8, 8), stage="graph")
        result.assert_replaced(before="aten.clamp_min", after="aten.relu")
        result.assert_same_numerics(level="bitwise")
        result.assert_idempotent()


def test_pytorchs_pass_compiles_a_graph_that_no_trace_surrounds():
    def program(x):
        with region("r"):
            return torch.tanh(x) * x

    with regional("torch") as r:
        x = r.randn(4)
        with preserve_node_meta():
            gm = make_fx(program, tracing_mode="fake")(x)
        inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
        compiled = PassPipeline([r.pipeline.terminal]).run(gm, inputs)
        torch.testing.assert_close(compiled([x]), program(x))
        assert r.counters.region_compiles == 1


def test_repr_and_iteration():
    passes = [note("b"), note("a")]
    pipeline = PassPipeline(passes, disable="a")
    assert repr(pipeline) == "PassPipeline([b], disable=('a',))"
    assert [*pipeline] == passes[:1]
    assert len(pipeline) == 1
