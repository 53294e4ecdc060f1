"""What compilers decide for programs: recorded through patch points that are then what they were."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.utils import fresh_cache

from pytest_regional._torch import decisions as recording
from pytest_regional._torch.decisions import DECISIONS, recording_decisions
from pytest_regional._torch.patching import COMPILE_STAGES, PatchPoint
from pytest_regional.fuzz.decisions import Decisions, coverage_keys, decisions_recorded
from pytest_regional.fuzz.features import features_of
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Step

PLAIN = Program((TensorInput((4,)),), (Step("sin", (0,), results=(1,)),), (1,), training=False)
WRITING = Program(
    (TensorInput((4,)),), (Step("sin_", (0,), results=(1,)), Step("neg", (0,), results=(2,))), (2,), training=False
)
TRAINED = Program((TensorInput((4,), requires_grad=True),), (Step("sin", (0,), results=(1,)),), (1,))


def decided(program, backend="aot_eager"):
    torch._dynamo.reset()
    with decisions_recorded() as decisions:
        outputs = torch.compile(program.function, backend=backend)(*program.inputs())
        if program.trains:
            outputs[0].sum().backward()
    return decisions.words


def test_programs_that_compile_differently_are_told_apart():
    plain, writing, trained = map(decided, (PLAIN, WRITING, TRAINED))

    assert "input:NOT_MUTATED" in plain
    assert any(word.startswith("input:MUTATED") and "mutates_data" in word for word in writing - plain)
    assert {"partition:saved:input", "partition:saved >= 1", "output:non_alias:gradient"} <= trained - plain
    assert decided(PLAIN) == plain  # the same program, the same decisions


def test_what_inductor_fuses_and_lowers_is_among_them():

    def pointwise(x):
        return x.sin().exp()

    def reduced(x):
        return x.sum(), x.sin().sort().values

    words = []
    for function in (pointwise, reduced):
        torch._dynamo.reset()
        with fresh_cache(), decisions_recorded() as decisions:
            torch.compile(function)(torch.rand(8))
        words.append(decisions.words)
    pointwise, reduced = words

    assert {"lowering:aten.sin.default:Pointwise", "metric:generated_kernel_count >= 1"} <= pointwise
    assert not any("reduction" in word.lower() or "Fallback" in word for word in pointwise)
    assert "lowered:Reduction" in reduced - pointwise
    assert any(word.startswith("lowering:aten.sort") for word in reduced)


def test_reasons_of_a_graph_break_are_among_them():
    def breaks(x):
        torch._dynamo.graph_break()
        return x.sin()

    torch._dynamo.reset()
    with decisions_recorded() as decisions:
        torch.compile(breaks, backend="eager")(torch.rand(4))

    assert any(word.startswith("graph_break:") for word in decisions.words)
    assert not any(word.startswith("graph_break:") for word in decided(PLAIN))


def test_every_patch_point_is_what_it_was():
    points = (*DECISIONS.values(), *COMPILE_STAGES.values())
    before = [point.current() for point in points]
    with pytest.raises(ZeroDivisionError), recording_decisions():
        assert [point.current() for point in points] != before
        raise ZeroDivisionError
    assert [point.current() for point in points] == before


def test_this_torch_has_all_patch_points():
    with decisions_recorded() as decisions:
        assert decisions.missing == ()


def test_a_patch_point_that_is_missing_is_left_out_and_named(monkeypatch):
    monkeypatch.setitem(DECISIONS, "fusion", PatchPoint("torch._inductor.scheduler:Scheduler", "no_such_method"))
    monkeypatch.setattr(recording, "_metrics", dict)

    with decisions_recorded() as decisions:
        torch._dynamo.reset()
        torch.compile(PLAIN.function, backend="aot_eager")(*PLAIN.inputs())

    assert decisions.missing == ("torch._inductor.scheduler.Scheduler.no_such_method", "torch._inductor.metrics")
    assert "input:NOT_MUTATED" in decisions.words  # the others work


def test_numbers_come_in_powers_of_two_and_kinds_as_they_are():
    recorded = recording.RecordedDecisions(Counter({"fusion:vertical": 3}))
    for value in (5, 2, 0):
        recorded.measure("saved", value)

    assert Decisions(recorded).words == {"fusion:vertical", "saved >= 4"}


def test_a_partition_that_computes_again_is_noticed():
    graphs = [
        SimpleNamespace(graph=SimpleNamespace(nodes=[SimpleNamespace(op="call_function")] * count))
        for count in (3, 2, 3)
    ]
    joint, *parts = graphs
    recorded = recording.RecordedDecisions()
    saved = [SimpleNamespace(op="call_function")]
    made = recording._Recorder(recorded)._partition(lambda *given: tuple(parts), joint, saved, [])

    assert made == tuple(parts)
    assert recorded.magnitudes == {"partition:saved": 1, "partition:recomputed": 2}


def test_keys_pair_features_with_decisions_but_not_those_of_one_operator():
    program = Program((TensorInput((4,)),), (Step("sin", (0,), results=(1,), scope=(Region("a"),)),), (1,))
    decisions = frozenset({"fusion:vertical", "lowering:aten.sin.default:Pointwise"})

    keys = coverage_keys(features_of(program), decisions)

    assert decisions <= keys
    assert "region & fusion:vertical" in keys
    assert not any("op:" in key or " & lowering" in key for key in keys)
