"""On random programs: same values, order of each group kept, bounds kept, idempotent, valid."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_regional.reference import overlap_collectives, remove_control_deps
from tests.reference.overlap.graphs import fsdp_chain
from tests.reference.overlap.interpreter import run
from tests.reference.overlap.strategies import programs

BOUNDS = st.one_of(
    st.just({}),
    st.builds(lambda n: {"in_flight": n}, st.integers(1, 3)),
    st.builds(lambda n: {"memory_bound": n * 512}, st.integers(0, 12)),
    st.builds(lambda x: {"memory_bound": x}, st.sampled_from([1.0, 1.5, 2.0])),
    st.builds(lambda n, m: {"memory_bound": n * 512, "in_flight": m}, st.integers(2, 12), st.integers(1, 3)),
)


def check(program, bounds):
    """Assert all that the pass promises about one program."""
    gm, inputs = program.gm, program.inputs
    expected, issued = run(gm, inputs)
    order = [node.name for node in gm.graph.nodes]
    plan = overlap_collectives(gm.graph, **bounds)
    gm.graph.lint()
    gm.recompile()

    found, now = run(gm, inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    for group in ("0", "1"):
        assert [one for one in now if one[0] == group] == [one for one in issued if one[0] == group]
    if "memory_bound" in bounds:
        assert now == issued
    if plan.memory_bound is not None:
        assert plan.peak_bytes_after <= max(plan.memory_bound, plan.peak_bytes_before)
    if plan.in_flight is not None:
        assert plan.peak_in_flight_after <= max(plan.in_flight, plan.peak_in_flight_before)

    text = str(gm.graph)
    again = overlap_collectives(gm.graph, **bounds)
    assert str(gm.graph) == text
    assert not again.changed
    assert (again.peak_bytes_before, again.peak_bytes_after) == (plan.peak_bytes_after,) * 2
    assert (again.peak_in_flight_before, again.peak_in_flight_after) == (plan.peak_in_flight_after,) * 2

    plain = copy.deepcopy(gm)
    remove_control_deps(plain.graph)
    assert {one.name for one in plain.graph.nodes} == set(order)
    torch.testing.assert_close(run(plain, inputs)[0], expected, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=60)
@given(program=programs(), bounds=BOUNDS)
def test_any_program(program, bounds):
    check(program, bounds)


@settings(max_examples=20)
@given(program=programs())
def test_drawn_programs_are_right_as_they_are(program):
    """Else the property above would be about nothing."""
    run(program.gm, program.inputs)


@pytest.mark.parametrize("bounds", [{}, {"in_flight": 1}, {"memory_bound": 4096}], ids=str)
def test_some_programs_are_changed(bounds):
    """Else the property above would be about nothing."""
    builder, gm = fsdp_chain()
    assert overlap_collectives(gm.graph, **bounds).changed
    run(gm, builder.values())
