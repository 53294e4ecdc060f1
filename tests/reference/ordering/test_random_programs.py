"""Random programs with random edges: in the graph by the hundred, in generated code a few."""

from __future__ import annotations

import random

import pytest
import torch

from pytest_regional.reference import OrderingCycleError, add_control_deps, remove_control_deps
from pytest_regional.reference.ordering.edges import is_control_deps
from pytest_regional.testing import kernels_not_built
from tests.reference.ordering.graphs import described
from tests.reference.ordering.random_programs import places_through_regions, random_program

SEEDS = range(80)


def reaches(source, target):
    """Say whether ``target`` waits for ``source``, by value or by edge."""
    seen, stack = set(), [target]
    while stack:
        node = stack.pop()
        if node is source:
            return True
        stack += [other for other in node.all_input_nodes if other not in seen]
        seen.update(node.all_input_nodes)
    return False


@pytest.mark.parametrize("seed", SEEDS)
def test_every_edge_holds_in_the_graph_and_can_be_taken_out(seed):
    program = random_program(seed, ops=20, edges=12)
    gm, asked = program.module, program.asked()
    expected, before = gm(*program.inputs), described(gm)
    report = add_control_deps(gm.graph, asked)
    gm.graph.lint()
    gm.recompile()
    position = {node: i for i, node in enumerate(gm.graph.nodes)}
    for node, dependencies in asked.items():
        assert all(position[other] < position[node] and reaches(other, node) for other in dependencies)
    assert {node for node in gm.graph.nodes if is_control_deps(node)} == {after for _, after in report.added}
    assert len(report.added) + len(report.implied) == len(program.edges)
    torch.testing.assert_close(gm(*program.inputs), expected, rtol=0, atol=0)
    assert add_control_deps(gm.graph, asked).added == ()
    assert set(remove_control_deps(gm.graph)) == set(report.added)
    assert described(gm) == before
    gm.recompile()
    torch.testing.assert_close(gm(*program.inputs), expected, rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(20))
def test_each_added_edge_is_needed(seed):
    program = random_program(seed, ops=20, edges=12)
    report = add_control_deps(program.module.graph, program.asked())
    for before, after in report.added:
        dependencies = after.args[0]
        after.args = (tuple(other for other in dependencies if other is not before), *after.args[1:])
        assert not reaches(before, after)
        after.args = (dependencies, *after.args[1:])


@pytest.mark.parametrize("seed", range(20))
def test_an_edge_too_many_is_a_cycle_and_changes_nothing(seed):
    program = random_program(seed, ops=20, edges=12)
    asked, before = program.asked(), described(program.module)
    after, (first, *_) = random.Random(seed).choice(list(asked.items()))
    asked.setdefault(first, []).append(after)
    with pytest.raises(OrderingCycleError) as error:
        add_control_deps(program.module.graph, asked)
    assert error.value.cycle[0] == error.value.cycle[-1]
    assert described(program.module) == before


def verdicts(program):
    with kernels_not_built():
        places, _ = places_through_regions(program)
    return [places.verdict(edge) for edge in program.edges]


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_edges_hold_in_generated_code(seed):
    program = random_program(seed, regions=("a",) if seed % 2 else ("a", "b", None))
    numbers = {node: number for number, node in program.nodes().items()}
    report = add_control_deps(program.module.graph, program.asked())
    added = {(numbers[before], numbers[after]) for before, after in report.added}
    found = dict(zip(program.edges, verdicts(program), strict=True))
    assert {found[edge] for edge in added} == {"kept"}
    assert "violated" not in found.values()


def test_without_edges_some_do_not_hold():
    assert {"fused", "violated"} & set(verdicts(random_program(7)))
