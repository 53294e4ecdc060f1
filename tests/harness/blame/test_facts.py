"""What two backends did with a program: each stage that differs is named, and the first one comes first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from pytest_regional import BackendSpec, region
from pytest_regional.harness.blame.facts import CompileFacts, first_difference
from pytest_regional.harness.record import GraphRecord, RegionRecord
from pytest_regional.testing import regional
from tests.faults import backends

OPS = ("aten.mm.default", "aten.sin.default")
MM, SIN = "aten.mm.default (%0, %1)", "aten.sin.default (%2,)"
EVENTS = ("pre_grad_calls", "cache_misses", "cache_saves", "cache_misses", "cache_saves")
COUNTS = Counter({"region_compiles": 2})


def graph(partitions=1, ops=OPS):
    return GraphRecord("forward", ops, "", (RegionRecord("mlp", "forward", ops, {}, partitions),))


def facts(**changed):
    made = CompileFacts(
        events=EVENTS,
        counts=COUNTS,
        graphs=(graph(),),
        eager=[Counter(["aten.add.Tensor"])],
        calls=[["mlp", "norm"]],
        handed_over=[(MM,), (SIN,)],
        settings=[{"fusion": True}, {"fusion": True}],
        launches=[(("mm",), ("sin",))],
    )
    return replace(made, **changed)


@pytest.mark.parametrize(
    ("ours", "layer", "said"),
    [
        (
            {"events": (*EVENTS[:1], *EVENTS)},
            "pass",
            "pre_grad_calls after pre_grad_calls, where there is cache_misses",
        ),
        ({"events": EVENTS[1:]}, "pass", "cache_misses, where there is pre_grad_calls"),
        (
            {"events": (*EVENTS[:3], "cache_hits")},
            "cache",
            "cache_hits after pre_grad_calls, cache_misses, cache_saves, where there is cache_misses",
        ),
        ({"events": (*EVENTS, "cache_saves")}, "cache", "where there is nothing more"),
        ({"counts": Counter(region_compiles=3)}, "sharing", "region_compiles: 3, there 2"),
        ({"graphs": (graph(2),)}, "partitioning", "region 'mlp' of the forward graph: 2 partitions, there 1"),
        ({"eager": [Counter(["aten.add.Tensor", "aten.sin.default"])]}, "partitioning", "eager here aten.sin.default"),
        ({"eager": [Counter(["aten.tan.default"])]}, "backend", "graph 0: eager here aten.tan.default"),
        ({"handed_over": [(MM, SIN)]}, "partitioning", "Inductor gets 1 graph, there 2, of the same operators"),
        ({"handed_over": [(MM,), ("aten.cos.default (%2,)",)]}, "extraction", "with aten.cos.default (%2,)"),
        ({"handed_over": [(MM,)]}, "extraction", "a graph of 1 node that Inductor gets there only"),
        ({"handed_over": [(MM,), (MM,), (SIN,)]}, "sharing", "Inductor gets 3 graphs, there 2, and the same ones"),
        ({"handed_over": [(SIN,), (MM,)]}, "order", "the same graphs in another order"),
        ({"settings": [{"fusion": True}, {"fusion": False}]}, "settings", "fusion=False, there True"),
        ({"calls": [["norm", "mlp"]]}, "order", "regions called: norm, mlp, there mlp, norm"),
        ({"launches": [(("sin",), ("mm",))]}, "order", "kernels compute sin then mm, there mm then sin"),
    ],
)
def test_a_stage(ours, layer, said):
    found = first_difference(facts(**ours), facts(), of_compile=True)
    assert found is not None
    assert found.layer == layer
    assert said in found.sentence


def test_settings_that_are_objects_are_compared_by_what_they_are():
    """A pass is made anew for each compile."""

    def made():
        class Pass:
            pass

        return Pass()

    none, one, other = ([{"custom_pass": value}] * 2 for value in (None, made(), made()))
    assert first_difference(facts(settings=one), facts(settings=other), of_compile=True) is None
    assert first_difference(facts(settings=none), facts(settings=one), of_compile=True).layer == "settings"


def test_nothing_differs():
    assert first_difference(facts(), facts(), of_compile=True) is None


def test_the_earlier_stage_comes_first():
    several = facts(counts=Counter(region_compiles=3), graphs=(graph(2),), calls=[["norm", "mlp"]])
    assert first_difference(several, facts(), of_compile=True).layer == "partitioning"


def test_counts_do_not_change_values():
    """Unless a cache answered, which may hold something else."""
    assert first_difference(facts(events=EVENTS[1:]), facts(), of_compile=False) is None
    hit = facts(events=(*EVENTS[:3], "cache_hits"))
    assert first_difference(hit, facts(), of_compile=False).layer == "cache"


def test_a_check_that_fails_early_has_seen_less():
    two = (graph(), graph())
    early = facts(
        events=EVENTS[:2], counts=Counter(region_compiles=1), handed_over=[(MM,)], settings=[{"fusion": True}]
    )
    assert first_difference(early, facts(graphs=two), of_compile=True) is None


def test_what_should_have_come_next_counts_where_a_counter_fails():
    early = facts(events=EVENTS[:2])
    found = first_difference(early, facts(), of_compile=True, of_counters=True)
    assert found == ("cache", "nothing after pre_grad_calls, cache_misses, where there is cache_saves")
    assert first_difference(early, facts(), of_compile=True) is None
    assert first_difference(facts(), facts(), of_compile=True, of_counters=True) is None


def test_graphs_of_dynamo_and_of_aot_autograd_are_not_compared():
    """One of the two backends does without AOTAutograd: nothing after that can be the same."""
    ours = facts(graphs=(graph(2, ("torch.mm", "torch.sin")),), handed_over=[])
    assert first_difference(ours, facts(), of_compile=True) is None


def test_a_counter_of_what_the_backend_disclaims_is_left_out():
    made = CompileFacts()
    made.note((*EVENTS, "region_compiles", "graphs"), (), lambda needs: needs != "outer_cache")
    assert (made.events, made.counts) == (("pre_grad_calls",), Counter(region_compiles=1))


def twins(x, w):
    # Matrix products alone need no C++ compiler.
    with region("one"):
        h = x @ w
    with region("two"):
        return h @ w


def test_facts_of_a_compile():
    """What Inductor gets is noted before its passes change it; the second product has the code of the first."""
    noted = CompileFacts()
    with regional("reference", "cpu") as r, r.observer.listened_to_by(noted):
        r.run(lambda x, w: twins(torch.tanh(x), w), r.randn(8, 8), r.randn(8, 8))
    ((*inputs, mm, _),) = noted.handed_over
    assert len(inputs) == 2
    assert all(line.startswith("placeholder ") and "torch.float32 [8, 8] [8, 1]" in line for line in inputs), inputs
    assert mm.startswith("aten.mm.default "), mm
    assert noted.eager == [Counter(["aten.tanh.default"])]
    assert noted.calls == [["one", "two"]]
    assert [len(settings) > 100 for settings in noted.settings] == [True]
    assert ["mm" in str(kernels) for kernels in noted.launches] == [True]


def holds(r, fn, *inputs):
    r.assert_parity(fn, *inputs, level="bitwise")


def has_a_partition_each(r, fn, *inputs):
    record = r.run(fn, *inputs)
    assert {one.partitions for one in record.regions} == {1}


SEARCHES = pytest.mark.slow("searches with some ten compiles", fast="test_facts_of_a_compile")


@pytest.mark.parametrize(
    ("fault", "check", "layer"),
    [
        ("every_op_alone", has_a_partition_each, "partitioning"),
        ("first_input_kept", holds, "call"),
        pytest.param("sigmoid_rounded", holds, "extraction", marks=SEARCHES),
        ("output_detached", holds, "backend"),
    ],
)
def test_a_fault_in_a_stage_of_a_backend(few_repeats, fault, check, layer):
    def program(x, w):
        return twins(torch.tanh(x) if fault == "output_detached" else x, w)

    def rounded(x, w):
        with region("one"):
            return torch.sigmoid(x @ w)

    def of_two_operators(x, w):
        with region("one"):
            return x @ w @ w

    spec: BackendSpec = getattr(backends, fault)
    with regional(spec, "cpu", expects_regions=False) as r:
        inputs = [r.randn(8, 8, requires_grad=fault == "output_detached"), r.randn(8, 8)]
        chosen = {"sigmoid_rounded": rounded, "every_op_alone": of_two_operators}.get(fault, program)
        found = r.blame(chosen, *inputs, check=lambda fn, *given: check(r, fn, *given))
    assert found.layer == layer, found.evidence
    if layer not in ("backend",):
        assert "right with backend 'reference' in its place" in found.sentence


def test_no_experiment_looks_for_the_region_that_is_to_blame(few_repeats):
    """A comparison that fails in a test compiles once more for each region; the search has experiments for that."""
    compiled = []

    def wrong(gm, inputs, **options):
        compiled.append(gm)
        return lambda *given: [2 * one for one in gm(*given)]

    spec = BackendSpec("wrong", lambda: wrong)
    with regional(spec, "cpu", expects_regions=False) as r:
        checks = []

        def check(fn, x, w):
            before = len(compiled)
            try:
                r.assert_parity(fn, x, w, level="bitwise")
            finally:
                checks.append(len(compiled) - before)

        assert r.blame(twins, r.randn(8, 8), r.randn(8, 8), check=check).layer == "backend"
    assert len(checks) > 3
    assert max(checks) == 1


def test_the_reference_is_compared_with_pytorchs_own():
    with regional("reference", "cpu", expects_regions=False) as r:
        found = r.blame(twins, r.randn(8, 8), r.randn(8, 8), check=lambda fn, *given: int("none"))
    assert "backend 'torch' in its place" in found.evidence
    assert found.layer == "eager"
