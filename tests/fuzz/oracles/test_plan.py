"""The law ``plan`` is broken by each fault planted for it, and by nothing that a backend may do."""

from __future__ import annotations

import torch

from pytest_regional.fuzz.oracles import judge
from pytest_regional.fuzz.program import Context
from pytest_regional.testing import regional

from .backends import annotate_as, faulty, operator_nodes
from .programs import A, B, chain

aten = torch.ops.aten


def test_plan_sees_regions_mixed(broken):
    def merge(gm):
        for node in operator_nodes(gm):
            if "compile_with_inductor" in node.meta.get("custom", {}):
                annotate_as(node, inductor_region="a")

    error = broken(chain(("sin", A), ("cos", B)), "plan", edit=merge)
    assert error.origin == "fewer partitions than can be"


def test_plan_sees_an_operator_left_eager(broken):
    def strip(gm):
        operator_nodes(gm)[0].meta.pop("custom")

    error = broken(chain(("sin", A), ("cos", ())), "plan", edit=strip)
    assert error.origin == "an annotated operator is not compiled"


def test_plan_sees_an_operator_too_many(broken):
    error = broken(
        chain(("sin", A), ("cos", ())), "plan", edit=lambda gm: annotate_as(operator_nodes(gm)[1], inductor_region="a")
    )
    assert error.origin == "an operator outside of all regions is compiled"


def called_on_result(target):
    """Return an edit that calls ``target`` in the region of the first operator, on its result."""

    def edit(gm):
        first = operator_nodes(gm)[0]
        users = list(first.users)
        with gm.graph.inserting_after(first):
            made = gm.graph.call_function(target, (first, 1.0))
        made.meta = dict(first.meta)
        for user in users:
            user.replace_input_with(first, made)

    return edit


def test_a_backend_may_compute_more_in_a_region():
    with regional(faulty(edit=called_on_result(aten.mul.Tensor)), "cpu", expects_regions=False) as harness:
        assert judge(harness, chain(("sin", A), ("exp", B)), lane="structure", laws=["plan"]).laws == ("plan",)


def test_plan_sees_a_draw_too_many(broken):
    error = broken(chain(("sin", A), ("exp", B)), "plan", edit=called_on_result(aten.bernoulli.p))
    assert error.origin == "an operator is compiled twice"


def test_plan_sees_partitions_too_many(broken):
    error = broken(
        chain(("sin", A), ("cos", A)), "plan", edit=lambda gm: annotate_as(operator_nodes(gm)[1], inductor_region="b")
    )
    assert error.origin == "more partitions than needed"


def test_plan_sees_equal_partitions_compiled_twice(broken):
    twice = chain(("sin", A), ("exp", ()), ("sin", A))
    assert broken(twice, "plan", share_identical=False).origin == "equal partitions are compiled twice"


def test_partitions_that_differ_in_an_annotation_of_somebody_else_are_not_equal():
    tagged = (Context("tag"), *A)
    with regional("reference", "cpu", expects_regions=False) as harness:
        twice = chain(("sin", A), ("exp", ()), ("sin", tagged))
        assert judge(harness, twice, lane="structure", laws=["plan"]).laws == ("plan",)
