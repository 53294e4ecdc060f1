"""What enters the key: uuids and their order when passes run late, the graph that they left when they run early."""

from __future__ import annotations

import pytest
import torch

from .programs import product, program_and_inputs, remove_ones, run, scaled, square
from .table import NEEDS

pytestmark = pytest.mark.regional_compile(requires=NEEDS, dynamic=False)


@pytest.fixture
def compile_with(regional):
    """Compile after a restart and expect a hit or a miss; returns the output."""
    inputs = program_and_inputs(regional, "function")[1]

    def compile_with(custom, timing, outcome, program=product):
        regional.restart()
        with regional.expect(cache_hits=int(outcome == "hit"), cache_misses=int(outcome == "miss"), cache_bypasses=0):
            compiled = regional.compile(program, pre_grad_pass=custom, pre_grad_pass_timing=timing)
            return run(compiled, inputs)[0]

    compile_with.inputs = inputs
    return compile_with


@pytest.mark.quick
@pytest.mark.parametrize("timing", ["late", "default"])
def test_late_another_uuid_is_another_entry(compile_with, pre_grad_pass, timing):
    compile_with(pre_grad_pass(uuid="v1"), timing, "miss")
    compile_with(pre_grad_pass(uuid="v2"), timing, "miss")
    compile_with(pre_grad_pass(uuid="v1"), timing, "hit")


def test_late_the_uuid_alone_stands_for_the_pass(compile_with, pre_grad_pass):
    """Two passes that claim to be the same are taken for the same: the second does not run."""
    x = compile_with.inputs[0]
    squaring, idle = pre_grad_pass(uuid="v1", transform=square), pre_grad_pass(uuid="v1")
    torch.testing.assert_close(compile_with(squaring, "late", "miss"), x @ x)
    torch.testing.assert_close(compile_with(idle, "late", "hit"), x @ x)
    assert (squaring.calls, idle.calls) == (1, 0)


def test_late_uuids_of_two_types_are_two_entries(compile_with, pre_grad_pass):
    compile_with(pre_grad_pass(uuid="1"), "late", "miss")
    compile_with(pre_grad_pass(uuid=1), "late", "miss")
    compile_with(pre_grad_pass(uuid=b"1"), "late", "miss")
    compile_with(pre_grad_pass(uuid=("1", 1)), "late", "miss")
    compile_with(pre_grad_pass(uuid=1), "late", "hit")


def test_a_pass_and_no_pass_are_two_entries(compile_with, pre_grad_pass):
    compile_with(None, "late", "miss")
    compile_with(pre_grad_pass(uuid="v1"), "late", "miss")
    compile_with(None, "late", "hit")


def test_early_no_uuid_is_in_the_key(compile_with, pre_grad_pass):
    compile_with(pre_grad_pass(uuid="v1"), "early", "miss")
    compile_with(pre_grad_pass(uuid="v2"), "early", "hit")
    compile_with(pre_grad_pass(), "early", "hit")


def test_early_two_passes_that_leave_the_same_graph_share_an_entry(compile_with, pre_grad_pass):
    def remove_ones_otherwise(graph):
        remove_ones(graph)

    removing, other = pre_grad_pass(transform=remove_ones), pre_grad_pass(transform=remove_ones_otherwise)
    cold = compile_with(removing, "early", "miss", program=scaled)
    warm = compile_with(other, "early", "hit", program=scaled)
    assert torch.equal(cold, warm)
    assert (removing.calls_by_outcome["miss"], other.calls_by_outcome["hit"]) == (1, 1)


def test_early_a_pass_that_does_nothing_shares_with_no_pass(compile_with, pre_grad_pass):
    compile_with(None, "early", "miss")
    compile_with(pre_grad_pass(uuid="v1"), "early", "hit")


def test_early_two_graphs_are_two_entries(compile_with, pre_grad_pass):
    """Whatever the uuids say: here they claim to be one pass."""
    x, w = compile_with.inputs
    torch.testing.assert_close(compile_with(pre_grad_pass(uuid="v1"), "early", "miss"), x @ w)
    squaring = pre_grad_pass(uuid="v1", transform=square)
    torch.testing.assert_close(compile_with(squaring, "early", "miss"), x @ x)


@pytest.mark.parametrize("timing", ["late", "early", "default"])
def test_a_pass_replaced_between_two_compiles(regional, pre_grad_pass, timing):
    """Without a restart: nothing of the first compile is taken for the second."""
    program, (x, w) = program_and_inputs(regional, "function")
    for uuid, transform, expected in [("v1", square, x @ x), ("v2", None, x @ w), ("v1", square, x @ x)]:
        counting = pre_grad_pass(uuid=uuid, transform=transform)
        compiled = regional.compile(program, pre_grad_pass=counting, pre_grad_pass_timing=timing)
        torch.testing.assert_close(run(compiled, (x, w))[0], expected)


# Lists


LISTS = (*NEEDS, "pre_grad_pass_lists")


@pytest.mark.quick
@pytest.mark.regional_compile(requires=LISTS, dynamic=False)
@pytest.mark.parametrize("sequence", [list, tuple])
def test_late_the_order_of_a_list_is_in_the_key(compile_with, pre_grad_pass, sequence):
    a, b = pre_grad_pass(uuid="a"), pre_grad_pass(uuid="b")
    compile_with(sequence([a, b]), "late", "miss")
    compile_with(sequence([b, a]), "late", "miss")
    compile_with(sequence([a]), "late", "miss")
    compile_with(sequence([a, b]), "late", "hit")
    assert (a.calls_by_compile, b.calls_by_compile) == ((1, 1, 1, 0), (1, 1, 0))


@pytest.mark.regional_compile(requires=LISTS, dynamic=False)
def test_late_two_uuids_do_not_run_together(compile_with, pre_grad_pass):
    compile_with([pre_grad_pass(uuid="ab"), pre_grad_pass(uuid="c")], "late", "miss")
    compile_with([pre_grad_pass(uuid="a"), pre_grad_pass(uuid="bc")], "late", "miss")
    compile_with([pre_grad_pass(uuid="abc")], "late", "miss")


@pytest.mark.regional_compile(requires=LISTS, dynamic=False)
@pytest.mark.filterwarnings("ignore:the pre-grad pass .* has no uuid")
def test_a_list_with_one_pass_without_a_uuid_runs_early(compile_with, pre_grad_pass):
    a, b = pre_grad_pass(uuid="a"), pre_grad_pass()
    compile_with([a, b], "default", "miss")
    compile_with([a, b], "default", "hit")
    compile_with([b, a], "default", "hit")
    assert a.calls_by_outcome == b.calls_by_outcome == {"miss": 1, "hit": 2, "bypass": 0, "none": 0}


@pytest.mark.quick
@pytest.mark.regional_compile(requires=LISTS, dynamic=False)
@pytest.mark.parametrize("timing", ["late", "early"])
def test_passes_of_a_list_run_in_its_order(regional, pre_grad_pass, timing):
    order = []
    passes = [pre_grad_pass(uuid=name, transform=lambda graph, name=name: order.append(name)) for name in "cab"]
    program, inputs = program_and_inputs(regional, "function")
    run(regional.compile(program, pre_grad_pass=passes, pre_grad_pass_timing=timing), inputs)
    assert order == ["c", "a", "b"]
    assert [counting.calls_by_compile for counting in passes] == [(1,)] * 3


@pytest.mark.regional_compile(requires=LISTS, dynamic=False)
def test_an_empty_list_is_no_pass(compile_with):
    compile_with([], "late", "miss")
    compile_with(None, "late", "hit")
