"""Lists of passes on a whole model: order, disabled passes, identities, what the report says."""

from __future__ import annotations

import pytest
import torch

from ..models.layers import SwiGLU  # noqa: TID252
from .llama import TINY, Llama, token_batches

pytestmark = pytest.mark.regional_compile(requires=("full_graph", "backward"), expects_regions=False)


@pytest.fixture
def model(regional):
    return Llama(TINY).to(regional.device)


@pytest.fixture
def steps(regional):
    return token_batches(regional, TINY)


def cleaning(passes):
    return [passes.Canonicalization(), passes.DeadCodeElimination()]


def noting(pipeline, order, name, **declarations):
    """Return a pass that only notes that it ran."""

    @pipeline.graph_pass(name=name, uuid=(name, 1), **declarations)
    def note(gm, inputs, *, graph):
        order.append((graph, name))

    return note


def test_shipped_passes_change_no_bit(regional, model, steps):
    pipeline = regional.pipeline.ending_with("aot_eager")

    def compiled(model):
        return pipeline.compile(model, steps[0], passes=cleaning(pipeline.passes))

    regional.assert_training_parity(model, steps, compiled=compiled, level="bitwise")


def test_the_report_says_what_came_and_went(regional, model, steps):
    pipeline = regional.pipeline.ending_with("aot_eager")
    report = pipeline.compile(model, steps[0], passes=cleaning(pipeline.passes)).report

    assert [row.name for row in report.on("forward")] == ["canonicalization", "dead_code_elimination", "aot_eager"]
    assert {row.graph for row in report} == {"forward", "backward"}
    for row in (row for row in report if row.status == "ran"):
        assert row.ops_after - row.ops_before == sum(row.added.values()) - sum(row.removed.values())
    # The views around each matrix product are the bulk of what a trace leaves behind.
    cleaned = report.of("canonicalization").on("forward")[0]
    assert cleaned.ops_after < cleaned.ops_before
    assert set(cleaned.removed) <= {"aten.view.default", "aten._unsafe_view.default", "aten.expand.default"} | {
        f"aten.{name}" for name in ("t.default", "transpose.int", "permute.default", "slice.Tensor", "alias.default")
    } | {"aten.detach.default", "aten._to_copy.default", "aten.unsqueeze.default"}
    assert report.seconds > 0
    for row in report:
        assert row.name in str(report)


@pytest.mark.quick
def test_passes_run_in_declared_order_on_both_graphs(regional, model, steps):
    pipeline, ran = regional.pipeline.ending_with("aot_eager"), []
    last = noting(pipeline, ran, "last", after=("middle", "not there"))
    middle = noting(pipeline, ran, "middle", requires=("first",))
    first = noting(pipeline, ran, "first", before="middle")
    joint = noting(pipeline, ran, "joint_pass", graphs="joint")
    pipeline.compile(model, steps[0], passes=[last, middle, first, joint])

    names = ["first", "middle", "last"]
    expected = [("joint", "joint_pass"), *(("forward", n) for n in names), *(("backward", n) for n in names)]
    assert ran == expected


def impossible(pipeline):
    """Return lists of passes that cannot run, with the names that the refusal has to give."""

    def one(name, **declarations):
        return noting(pipeline, [], name, **declarations)

    return {
        "cycle": ([one("a", after="b"), one("b", after="a")], ("a", "b")),
        "requirement": ([one("a", requires="b")], ("a", "b")),
        "two terminals": ([one("a", terminal=True)], ("a",)),
        "after the terminal one": ([one("a", after=pipeline.terminal.name)], ("a",)),
        "twice": ([one("a"), one("a")], ("a",)),
    }


@pytest.mark.quick
@pytest.mark.parametrize("case", ["cycle", "requirement", "two terminals", "after the terminal one", "twice"])
def test_an_impossible_order_is_refused_by_name_before_anything_compiles(regional, model, steps, case):
    pipeline = regional.pipeline
    passes, names = impossible(pipeline)[case]
    with regional.expect(graphs=0, region_compiles=0), pytest.raises(pipeline.PipelineError) as caught:
        pipeline.compile(model, steps[0], passes=passes)
    assert all(repr(name) in str(caught.value) or f" {name} " in str(caught.value) for name in names), caught.value


def test_a_disabled_pass_does_not_run_and_is_reported(regional, model, steps):
    pipeline, ran = regional.pipeline.ending_with("aot_eager"), []
    passes = [noting(pipeline, ran, "one"), noting(pipeline, ran, "one_more")]
    report = pipeline.compile(model, steps[0], passes=passes, disable=("one",)).report

    # By its exact name: the other one stays.
    assert {name for _, name in ran} == {"one_more"}
    assert {row.name for row in report if row.status == "disabled"} == {"one"}


def test_disabling_what_another_requires_is_refused(regional, model, steps):
    pipeline = regional.pipeline
    passes = [noting(pipeline, [], "first"), noting(pipeline, [], "second", requires="first")]
    with pytest.raises(pipeline.PassOrderError, match="first"):
        pipeline.compile(model, steps[0], passes=passes, disable=("first",))


def test_disabling_a_name_that_no_pass_has_is_refused(regional, model, steps):
    pipeline = regional.pipeline
    with pytest.raises(pipeline.UnknownPassError, match="'canonicalization'"):
        pipeline.compile(model, steps[0], passes=cleaning(pipeline.passes), disable=("canonicalisation",))


def test_a_failing_pass_is_named_with_its_graph(regional, model, steps):
    pipeline = regional.pipeline.ending_with("aot_eager")

    @pipeline.graph_pass(graphs="backward")
    def breaks(gm, inputs):
        raise ZeroDivisionError("no such op")

    with pytest.raises(pipeline.PassFailedError, match=r"breaks.*backward|backward.*breaks") as caught:
        pipeline.compile(model, steps[0], passes=[breaks])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def uuids(regional):
    """Return identities of lists of passes, of each kind of difference."""
    pipeline = regional.pipeline
    passes, terminal = cleaning(pipeline.passes), pipeline.terminal
    made = pipeline.PassPipeline([*passes, terminal])
    return {
        "all": made.uuid(),
        "disabled": made.without("canonicalization").uuid(),
        "other order": pipeline.PassPipeline([*passes[::-1], terminal]).uuid(),
        "other setting": pipeline.PassPipeline([*passes, pipeline.passes.OverlapCollectives(), terminal]).uuid(),
        "and another": pipeline.PassPipeline(
            [*passes, pipeline.passes.OverlapCollectives(in_flight=1), terminal]
        ).uuid(),
    }


@pytest.mark.regional_compile(requires=("full_graph",), expects_regions=False)
def test_identities_differ_with_the_passes_and_hold_in_another_process(regional):
    if regional.pipeline.PassPipeline([regional.pipeline.terminal]).uuid() is None:
        pytest.skip(f"the pass of {regional.backend} has no uuid, so nothing is composed of it")
    here = uuids(regional)
    assert len(set(here.values())) == len(here)
    assert regional.in_new_process(uuids).value == here


def test_one_pass_without_identity_leaves_the_list_without(regional):
    pipeline = regional.pipeline
    anonymous = pipeline.graph_pass(lambda gm, inputs: None)
    assert pipeline.PassPipeline([*cleaning(pipeline.passes), anonymous]).uuid() is None


class Gated(torch.nn.Module):
    """A gated layer without any region; returns the loss."""

    def __init__(self):
        super().__init__()
        self.layer = SwiGLU(16, 24)

    def forward(self, x, targets):
        return torch.nn.functional.mse_loss(self.layer(x), targets)


@pytest.mark.regional_compile(requires=("full_graph", "backward", "regions"))
def test_annotating_by_predicate_makes_regions_of_a_model_without(regional):
    steps = [(regional.randn(8, 16), regional.randn(8, 16)) for _ in range(3)]
    annotate = regional.pipeline.passes.annotate_ops(target="aten.silu", region="gate")

    def compiled(model):
        return regional.pipeline.compile(model, steps[0], passes=[annotate])

    regional.assert_training_parity(Gated().to(regional.device), steps, compiled=compiled)
    assert "gate" in {region.name for graph in regional.observer.graph_records() for region in graph.regions}
