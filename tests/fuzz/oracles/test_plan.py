"""The oracle ``plan`` is violated by each fault planted for it, and by nothing that a backend may do."""

from __future__ import annotations

import operator

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Context, Program, Step
from pytest_regional.fuzz.oracles import check
from pytest_regional.fuzz.oracles.order import least_partitions
from pytest_regional.fuzz.oracles.watching import NodeInfo, node_info
from pytest_regional.reference import explain_program
from pytest_regional.testing import regional

from .backends import annotate_as, faulty, operator_nodes
from .programs import A, B, chain

aten = torch.ops.aten


def test_plan_sees_regions_mixed(violation):
    def merge(gm):
        for node in operator_nodes(gm):
            if "compile_with_inductor" in node.meta.get("custom", {}):
                annotate_as(node, inductor_region="a")

    error = violation(chain(("sin", A), ("cos", B)), "plan", edit=merge)
    assert error.origin == "fewer partitions than can be"


def test_plan_sees_an_operator_left_eager(violation):
    def strip(gm):
        operator_nodes(gm)[0].meta.pop("custom")

    error = violation(chain(("sin", A), ("cos", ())), "plan", edit=strip)
    assert error.origin == "an annotated operator is not compiled"


def test_plan_sees_an_operator_too_many(violation):
    error = violation(
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
        assert check(harness, chain(("sin", A), ("exp", B)), mode="interpret", oracles=["plan"]).oracles == ("plan",)


def test_plan_sees_a_draw_too_many(violation):
    error = violation(chain(("sin", A), ("exp", B)), "plan", edit=called_on_result(aten.bernoulli.p))
    assert error.origin == "an operator is compiled twice"


def test_plan_sees_partitions_too_many(violation):
    error = violation(
        chain(("sin", A), ("cos", A)), "plan", edit=lambda gm: annotate_as(operator_nodes(gm)[1], inductor_region="b")
    )
    assert error.origin == "more partitions than needed"


def test_plan_sees_equal_partitions_compiled_twice(violation):
    twice = chain(("sin", A), ("exp", ()), ("sin", A))
    assert violation(twice, "plan", share_identical=False).origin == "equal partitions are compiled twice"


def test_partitions_whose_inputs_share_memory_in_one_only_are_not_equal():
    steps = (
        Step("neg", (0,), results=(1,), scope=B),
        Step("flip", (1,), (("dim", 0),), (2,)),
        Step("detach", (2,), results=(3,)),
        Step("mul", (3, 2), results=(4,), scope=B),
    )
    arguments = (TensorInput((4, 4), requires_grad=True),)
    program = Program(arguments, steps, (1, 4), training=True, partitioner="min_cut")
    with regional("reference", "cpu", expects_regions=False) as harness:
        assert check(harness, program, mode="interpret", oracles=["plan"]).oracles == ("plan",)


def test_partitions_that_differ_in_an_annotation_of_somebody_else_are_not_equal():
    tagged = (Context("tag"), *A)
    with regional("reference", "cpu", expects_regions=False) as harness:
        twice = chain(("sin", A), ("exp", ()), ("sin", tagged))
        assert check(harness, twice, mode="interpret", oracles=["plan"]).oracles == ("plan",)


R = ("r", "{}")


def value_range(text):
    """Read nodes such as ``"p:r q:u:p s:sum:q v:view:s"``: a name, what it is, and what it reads."""
    for word in text.split():
        name, kind, *inputs = word.split(":")
        inside = R if kind in ("r", "view") else None
        yield NodeInfo(name, f"aten.{name}", inside, tuple(inputs), False, kind == "sum", kind == "view")


def fewest_and_enough(text):
    return tuple(least_partitions(value_range(text), {R: R}, R, as_it_likes=likes) for likes in (True, False))


def test_sums_of_gradients_are_compiled_or_not():
    assert fewest_and_enough("p:r s:sum:p q:r:s") == (1, 2)
    assert fewest_and_enough("p:r e:u:p s:sum:p:e q:r:s") == (2, 2)
    assert fewest_and_enough("p:r e:u:p q:r:e") == (2, 2)
    assert fewest_and_enough("p:r e:u:p s:sum:p:e f:u:s q:r:f") == (2, 2)
    assert fewest_and_enough("p:r s:sum:p t:sum:s q:r:t") == (1, 2)


def test_views_are_compiled_or_not():
    assert fewest_and_enough("p:r e:u:p v:view:e f:u:v q:r:f") == (2, 3)
    assert fewest_and_enough("e:u v:view:e f:u:v") == (0, 1)
    assert fewest_and_enough("p:r v:view:p q:r:v") == (1, 1)


def test_sizes_are_no_operators():
    def program(x):
        return x.sin().reshape(x.shape[0] * x.shape[1])

    graph = make_fx(program, tracing_mode="symbolic")(torch.rand(4, 6)).graph
    read = [node.target for node in graph.nodes if node.op == "call_function"]
    assert aten.sym_size.int in read
    assert operator.mul in read
    assert [info.operator for info in map(node_info, graph.nodes) if info.operator] == [
        "aten.sin.default",
        "aten.view.default",
    ]


def test_a_view_left_eager_whose_schema_hides_it_is_no_fault():
    """A later write makes AOTAutograd take the view again, of what it computed outside of the region."""
    program = Program(
        (TensorInput((2,)),),
        (Step("kron", (0, 0), results=(1,), scope=A), Step("shift_rows_back", (1,)), Step("sin", (1,), results=(2,))),
        (1,),
    )
    with regional("reference", "cpu", expects_regions=False) as harness:
        assert check(harness, program, mode="interpret", oracles=["plan"]).oracles == ("plan",)


def test_views_left_eager_and_sums_compiled_are_no_faults():
    view_between = chain(("sin", A), ("cos", ()), ("matrix_transpose", A), ("exp", ()), ("sin", A))
    used_twice = Program(
        (TensorInput((4, 4), requires_grad=True),),
        tuple(
            Step(op, (read,), results=(made,), scope=A)
            for op, read, made in (("sin", 0, 1), ("cos", 1, 2), ("exp", 1, 3))
        ),
        (2, 3),
        training=True,
    )
    with regional("reference", "cpu", expects_regions=False) as harness:
        for program, partitions in ((view_between, 2), (used_twice, 1)):
            assert check(harness, program, mode="interpret", oracles=["plan"]).oracles == ("plan",)
            assert len(explain_program(program, *program.inputs("cpu"), show=False)[-1].partitions) == partitions
