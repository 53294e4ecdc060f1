"""Marking ops by what they are: forward, backward, bodies; next to what the program marks itself."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import annotate
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from pytest_regional import region
from pytest_regional._torch.fx_graphs import is_backward_node, region_mark
from pytest_regional.reference import RegionalInductor, RegionConfigError, add_control_deps, annotate_ops, pipeline
from pytest_regional.reference.passes import PassMatchWarning, annotate_matching
from pytest_regional.reference.pipeline import PassFailedError, PassPipeline, PipelineError
from pytest_regional.reference.regions import read_region_keys
from pytest_regional.testing import regional

aten = torch.ops.aten


def trace(function, *inputs):
    with torch.fx.traceback.preserve_node_meta():
        return make_fx(function, tracing_mode="fake")(*(inputs or (torch.randn(4, 4),)))


def program(x):
    return (x @ x).sin() @ x


def marked(gm):
    return [node.name for node in gm.graph.nodes if region_mark(node)[0]]


def has_higher_order(node):
    return node.target is aten.mm.default and node.users


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (aten.mm.default, ["mm", "mm_1"]),
        (aten.mm, ["mm", "mm_1"]),
        ("aten.mm", ["mm", "mm_1"]),
        ("aten.mm.default", ["mm", "mm_1"]),
        (aten.mm.out, []),
        ("mm", []),
        (lambda node: node.name == "mm_1", ["mm_1"]),
        (has_higher_order, ["mm", "mm_1"]),
        ([aten.sin, "aten.mm"], ["mm", "sin", "mm_1"]),
        ((), []),
    ],
)
def test_meaning_of_targets(target, names):
    gm = trace(program)
    done = annotate_matching(gm.graph, target, region="r")
    assert marked(gm) == names == [node.name for node in done.matched]


@pytest.mark.parametrize("target", [3, None, int, torch.mm, torch.nn.functional.silu, [aten.mm, 3]])
def test_invalid_targets(target):
    with pytest.raises(TypeError, match=r"annotate_ops cannot match by .*: give an op such as torch.ops"):
        annotate_ops(target, "r")


def test_the_mark_is_what_a_program_writes():
    def marks_itself(x):
        with region("r", configs={"max_autotune": False}):
            return x @ x

    def plain(x):
        with annotate({"other": 1}):
            return x @ x

    theirs, ours = trace(marks_itself), trace(plain)
    annotate_matching(ours.graph, aten.mm, region="r", configs={"max_autotune": False})
    (theirs_mm,), (ours_mm,) = (
        gm.graph.find_nodes(op="call_function", target=aten.mm.default) for gm in (theirs, ours)
    )
    assert ours_mm.meta["custom"] == {**theirs_mm.meta["custom"], "other": 1}
    (theirs_key,), (ours_key,) = read_region_keys(theirs.graph).values(), read_region_keys(ours.graph).values()
    assert ours_key == theirs_key


def test_without_a_region_it_is_the_default_region():
    gm = trace(program)
    annotate_matching(gm.graph, aten.mm)
    assert {key.label for key in read_region_keys(gm.graph).values()} == {"default"}


def test_a_config_that_inductor_does_not_have():
    with pytest.raises(RegionConfigError, match=r"'max_autotun' in region 'r' .*max_autotune"):
        annotate_ops("aten.mm", "r", {"max_autotun": True})


def test_marks_of_the_program_stay():
    def marks_itself(x):
        with region("inner"):
            y = x @ x
        return y @ x

    def regions(**options):
        gm = trace(marks_itself)
        done = annotate_matching(gm.graph, "aten.mm", region="outer", **options)
        labels = [read_region_keys(gm.graph)[node].label for node in done.matched]
        return labels, [node.name for node in done.kept]

    assert regions() == (["inner", "outer"], ["mm"])
    assert regions(override=True) == (["outer", "outer"], [])


def test_twice_is_once():
    gm = trace(program)
    annotate_matching(gm.graph, "aten.mm", region="r")
    assert annotate_matching(gm.graph, "aten.mm", region="r").kept == ()
    assert len(annotate_matching(gm.graph, "aten.mm", region="other").kept) == 2


# Joint graphs.


def joint(function, *inputs):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    inputs = inputs or (torch.randn(4, 4, requires_grad=True),)
    return pipeline.capture(Module(), inputs).graph_module


def test_the_gradients_of_what_matched_are_marked():
    def written(x):
        with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
            y = torch.tanh(x)
        return y.sin() @ x

    def plain(x):
        return torch.tanh(x).sin() @ x

    theirs, ours = joint(written), joint(plain)
    done = annotate_matching(ours.graph, "aten.tanh", region="r")
    assert [node.name for node in done.matched] == ["tanh"]
    assert done.gradients
    assert all(map(is_backward_node, done.gradients))
    # The detach by which autograd saves a result is no op that anybody asked for.
    assert marked(ours) == [name for name in marked(theirs) if name != "detach"]


def test_gradients_of_others_are_not_marked():
    gm = joint(lambda x: torch.tanh(x).sin().exp())
    annotate_matching(gm.graph, aten.sin, region="r")
    marks = set(marked(gm))
    for name in ("tanh", "exp", "tanh_backward"):
        assert not {node for node in marks if node.startswith(name)}
    assert any(node.startswith("cos") for node in marks)


@pytest.fixture
def _flex_backward_on_cpu(monkeypatch):
    """Tracing knows its backward on CPU; only running it is not there."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *args: None)


def attention(q, k, v):
    return flex_attention(q, k, v).sin()


def attention_inputs(grad=True):
    return tuple(torch.randn(1, 2, 16, 16, requires_grad=grad) for _ in range(3))


@pytest.mark.parametrize(
    "target", ["flex_attention", flex_attention, torch.ops.higher_order.flex_attention, "higher_order.flex_attention"]
)
@pytest.mark.usefixtures("_flex_backward_on_cpu")
def test_flex_attention_is_marked_with_its_backward(target):
    gm = joint(attention, *attention_inputs())
    annotate_matching(gm.graph, target, region="attention")
    higher_order = [node for node in gm.graph.nodes if "flex_attention" in str(node.target) and node.op != "get_attr"]
    names = [str(node.target.name()) for node in higher_order]
    assert names == ["flex_attention", "flex_attention_backward"]
    assert {node.name for node in higher_order} <= set(marked(gm))
    assert not any(region_mark(node)[0] for body in gm.children() for node in body.graph.nodes)
    assert not any(node.op == "get_attr" for node in gm.graph.nodes if region_mark(node)[0])


@pytest.mark.usefixtures("_flex_backward_on_cpu")
def test_scores_inside_attention_are_no_ops_of_the_graph():
    def causal(b, h, q, k):
        return q >= k

    mask = create_block_mask(causal, None, None, 16, 16, device="cpu")
    gm = joint(
        lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, *_: s * 2, block_mask=mask), *attention_inputs()
    )
    with pytest.warns(PassMatchWarning):
        annotate_ops("aten.ge", "r")(gm, graph="joint")
    assert not any(region_mark(node)[0] for body in gm.children() for node in body.graph.nodes)


def test_ops_of_a_branch_are_marked():
    gm = trace(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    assert [node.target for node in annotate_matching(gm.graph, "aten.sin", region="r").matched] == [aten.sin.default]


def test_an_op_that_waits_is_matched_by_what_it_is():
    gm = trace(lambda x: (x.sin(), x.cos()))
    sin, cos = (node for node in gm.graph.nodes if node.op == "call_function")
    add_control_deps(gm.graph, {cos: [sin]})
    done = annotate_matching(gm.graph, "aten.cos", region="r")
    assert [node.name for node in done.matched] == ["cos"]
    assert marked(gm) == ["cos"]


# The pass.


def test_matching_nothing_is_a_warning_that_lists_what_is_there():
    with pytest.warns(
        PassMatchWarning, match=r"'annotate_ops\(r\)' matched no op of the forward graph by 'aten.mul'.*: aten.mm"
    ):
        annotate_ops("aten.mul", "r")(trace(program))


def test_matching_nothing_is_an_error_where_it_is_required():
    with pytest.raises(PipelineError, match="matched no op"):
        annotate_ops("aten.mul", "r", required=True)(trace(program))
    with pytest.raises(
        PassFailedError, match=r"pass 'annotate_ops\(r\)', on the inference graph, raised PipelineError"
    ) as caught:
        PassPipeline([annotate_ops("aten.mul", "r", required=True)]).run(trace(program), [], graph="inference")
    assert isinstance(caught.value.__cause__, PipelineError)


def test_a_backward_graph_may_hold_none():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        annotate_ops("aten.mul", "r")(trace(program), graph="backward")
    with pytest.warns(PassMatchWarning):
        annotate_ops("aten.mul", "r", graphs=("backward",))(trace(program), graph="backward")


def test_warnings_about_the_joint_graph_are_not_repeated_for_the_forward():
    model, inputs = torch.nn.Linear(4, 4), (torch.randn(2, 4),)
    mark = annotate_ops("aten.nothing", "r")
    for _ in range(2):
        with pytest.warns(PassMatchWarning, match="joint graph") as told:
            pipeline.compile(model, inputs, passes=[mark])
        assert [one.category for one in told].count(PassMatchWarning) == 1
    with pytest.warns(PassMatchWarning, match="forward graph"):
        mark(trace(program))


def test_the_report_says_how_many_matched():
    passes = PassPipeline([annotate_ops("aten.tanh", "r")])
    passes.run(joint(lambda x: torch.tanh(x)), [], graph="joint")
    assert passes.report[0].summary.startswith("1 op matched, ")
    assert "gradient op" in passes.report[0].summary
    gm = trace(program)
    annotate_matching(gm.graph, "aten.mm", region="mine")
    passes = PassPipeline([annotate_ops("aten.mm", "r")])
    passes.run(gm, [])
    assert passes.report[0].summary == "2 ops matched, 2 marked otherwise"


def test_names():
    assert annotate_ops("aten.mm").name == "annotate_ops"
    passes = [annotate_ops("aten.mm", "a"), annotate_ops("aten.mm", "b"), annotate_ops("aten.mm", "b", name="c")]
    assert PassPipeline(passes).names == ("annotate_ops(a)", "annotate_ops(b)", "c")


def test_uuids():
    def uuid(*args, **keywords):
        return PassPipeline([annotate_ops(*args, name="a", **keywords)]).uuid()

    settings = [
        uuid("aten.mm"), uuid("aten.mm", "r"), uuid("aten.sin"), uuid("aten.mm", "r", {"max_autotune": True}),
        uuid("aten.mm", "r", {"max_autotune": False}), uuid("aten.mm", "r", override=True), uuid(aten.mm.default),
        uuid(["aten.mm", "aten.sin"]), uuid(lambda node: True, identity="v1"),
        uuid(lambda node: True, identity="v2"), uuid(flex_attention),
    ]  # fmt: skip
    assert None not in settings
    assert len(set(settings)) == len(settings)
    assert uuid("aten.mm", "r") == uuid("aten.mm", "r")
    assert uuid({"aten.mm", "aten.sin"}) == uuid({"aten.sin", "aten.mm"})
    assert uuid(lambda node: True) is None
    assert PassPipeline([annotate_ops(lambda node: True, "r")]).passes_without_uuid == ("annotate_ops(r)",)


def test_marked_regions_compile():
    with regional("reference", expects_regions=False) as r:
        gm, x = trace(lambda x: (x @ x) @ x), r.randn(4, 4)
        passes = PassPipeline([RegionalInductor(), annotate_ops("aten.mm", "products", required=True)])
        with r.expect(region_compiles=1):
            compiled = passes.run(gm, [x], graph="inference")
        torch.testing.assert_close(
            compiled([x])[0] if isinstance(compiled([x]), (list, tuple)) else compiled([x]), x @ x @ x
        )
