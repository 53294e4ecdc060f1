"""The oracles of order hold on the reference, and are violated where an edge is lost or a region runs too early."""

from __future__ import annotations

import contextlib

import pytest

from pytest_regional._torch.inductor import artifact_behind
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Step
from pytest_regional.fuzz.oracles import OracleViolationError, check, order
from pytest_regional.reference import compile_regions
from pytest_regional.testing import regional

from .programs import UNORDERED, A


def test_order_is_seen_to_hold(checked):
    assert checked(UNORDERED, "order").oracles == ("order",)


def test_order(monkeypatch):
    # Edges that nobody adds: the call of one region then stands where the program has it.
    with regional("reference", "cpu", expects_regions=False) as harness, monkeypatch.context() as patched:
        patched.setattr(order, "add_control_deps", lambda graph, asked: None)
        found = set()
        for seed in range(3):
            program = Program(
                (TensorInput((4, 4 + seed)), *UNORDERED.arguments[1:]), UNORDERED.steps, UNORDERED.outputs
            )
            with contextlib.suppress(AssertionError):
                check(harness, program, mode="interpret", oracles=["order"])
                continue
            found.add(seed)
    assert found


TOGETHER = Program(
    (TensorInput((4, 4)),),
    (Step("sin", (0,), results=(1,), scope=A), Step("cos", (0,), results=(2,), scope=A)),
    (1, 2),
    training=False,
)


def test_order_inside_a_region_is_read_in_the_code(monkeypatch):
    with regional("reference", "cuda-emulated") as harness:
        result = check(harness, TOGETHER, mode="emulated", oracles=["order"])
        assert result.oracles == ("order",), result.skipped
        monkeypatch.setattr(compile_regions, "compile_in_order", lambda write, compiled: compiled(write()[0]))
        with pytest.raises(OracleViolationError, match="in one loop with") as raised:
            check(harness, TOGETHER, mode="emulated", oracles=["order"])
        assert raised.value.origin == "an edge is not visible"


EQUAL = Program(
    (TensorInput((4, 4)), TensorInput((4, 4))),
    (
        Step("sin", (0,), results=(2,), scope=A),
        Step("sin", (0,), results=(3,), scope=A),
        Step("cos", (1,), results=(4,), scope=A),
    ),
    (2, 3, 4),
    training=False,
)


def test_equal_operators_are_the_ends_of_no_edge(checked):
    assert "no two operators" in checked(EQUAL, "order").skipped["order"]


def test_region_order(violation, checked):
    after = (Region("c", after=("b",)),)
    steps = (*UNORDERED.steps[:2], Step("tanh", (0,), results=(4,), scope=after))
    program = Program(UNORDERED.arguments, steps, (2, 3, 4), training=False)
    assert checked(program, "region_order").oracles == ("region_order",)

    def last_first(gm):
        first, *_, last = [node for node in gm.graph.nodes if artifact_behind(node.target) is not None]
        for node in (last, *last.users):
            first.prepend(node)

    assert violation(program, "region_order", finish=last_first).origin == "a region runs too early"


def test_a_region_of_a_view_has_no_place_in_time(checked):
    after = (Region("c", after=("b",)),)
    view = Step("unsqueeze", (0,), (("dim", 0),), (4,), after)
    program = Program(UNORDERED.arguments, (*UNORDERED.steps[:2], view), (2, 3, 4), training=False)

    assert "that run anything" in checked(program, "region_order").skipped["region_order"]


def test_neither_has_a_partition_of_a_view_beside_one_that_computes(checked):
    after, other = (Region("c", after=("a",)),), (Region("a", (("max_fusion_size", 8),)),)
    steps = (
        Step("cumsum", (0,), (("dim", 0),), (2,), after),
        Step("cumsum", (1,), (("dim", 0),), (3,), A),
        Step("matrix_transpose", (2,), results=(4,), scope=other),
    )
    program = Program(UNORDERED.arguments, steps, (3, 4), training=False)
    assert checked(program, "region_order").oracles == ("region_order",)
