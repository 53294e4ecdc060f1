"""``bench.fuzz_false_alarms`` counts an alarm under the known defect that it is, as it was drawn or once reduced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.alarm_causes import CAUSES, ERRORS, cause_of
from bench.fuzz_false_alarms import Tally
from pytest_regional.fuzz.findings.folder import Finding, signature_of
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.oracles import CheckResult, OracleViolationError, check
from pytest_regional.testing import regional

from .oracles.programs import A, chain

SMALL, LARGE, OTHER = chain(("sin", A)), chain(("exp", A)), chain(("cos", A))


def of(program):
    error = OracleViolationError("parity", "run", "it differs", origin="value of output")
    return CheckResult((), {}, 0.0, known=(error,)), Finding(signature_of(error, program), program, program, "", None)


@pytest.mark.parametrize(("left", "verdict"), [(SMALL, "known defect of PyTorch"), (OTHER, "alarm")])
def test_an_alarm_is_known_by_what_is_left_of_it(left, verdict):
    tally = Tally([of(SMALL)[1]])
    result, finding = of(left)
    alarms = tally.add(LARGE, result, lambda error: finding)
    assert tally.verdicts[verdict] == 1
    assert [found for _, found in alarms] == ([finding] if verdict == "alarm" else [])
    assert tally.add(left, result) == []


def test_an_alarm_that_is_not_reduced_is_one_each_time():
    tally = Tally([of(SMALL)[1]])
    result, _ = of(OTHER)
    for _ in range(2):
        assert tally.add(OTHER, result) == [(result.known[0], None)]
    assert tally.verdicts["alarm"] == 2


def test_causes_have_a_script():
    findings = Path(__file__).parents[2] / "docs" / "findings"
    scripts = [*(cause.script for cause in CAUSES), *ERRORS.values()]
    assert [script for script in scripts if not (findings / script).is_file()] == []


DRAWN_AGAIN = Program(
    (TensorInput((3,), requires_grad=True),),
    (Step("sin", (0,), results=(1,)), Step("rand_like", (1,), results=(2,)), Step("cos", (0,), results=(3,))),
    (2, 3),
    training=True,
    partitioner="default",
)
WRITTEN_THROUGH = Program(
    (TensorInput((3,)),),
    (
        Step("clone", (0,), results=(1,)),
        Step("dropout_in_eval", (1,), results=(2,)),
        Step("sin_", (2,)),
        Step("cos", (1,), results=(3,)),
    ),
    (3,),
    training=False,
)
TWICE = Program(
    (TensorInput((3,), content="distinct", requires_grad=True),),
    tuple(Step("sort", (0,), (("dim", 0), ("descending", False)), made) for made in ((1, 2), (3, 4))),
    (1, 3),
    training=True,
)
OVERLAPPING = Program(
    (TensorInput((4,), requires_grad=True),),
    (Step("sin", (0,), results=(1,)), Step("unfold", (1,), (("dim", 0), ("step", 1)), (2,))),
    (2,),
    training=True,
)


@pytest.mark.parametrize(
    ("program", "script"),
    [
        (DRAWN_AGAIN, "dropout_draws_again.py"),
        (WRITTEN_THROUGH, "write_through_dropout.py"),
        (TWICE, "equal_results_are_one_tensor.py"),
        (OVERLAPPING, "gradient_of_overlapping_output.py"),
    ],
)
def test_a_cause_is_found_by_taking_it_out_of_the_program(program, script):
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        result = check(harness, program, oracles=["parity"], blame=False, known=lambda error: True)
        if not result.known:
            pytest.skip("this version of torch has the defect no more")
        assert cause_of(harness, program, "native", result.known[0]) == script
        other = OracleViolationError("parity", "run", "something else", origin="dtype of output")
        assert cause_of(harness, replace(program, training=False), "native", other) is None


WRITTEN_WITH_A_VIEW = Program(
    (TensorInput((2,)), TensorInput((), alias_of=0)),
    (Step("add_", (1, 0)),),
    (0,),
    training=False,
    dynamic=True,
)


def test_a_cause_is_found_by_the_error_that_it_raises():
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        result = check(harness, WRITTEN_WITH_A_VIEW, oracles=["compiles"], blame=False, known=lambda error: True)
        assert cause_of(harness, WRITTEN_WITH_A_VIEW, "native", result.known[0]) == "dynamic_aliases_written.py"
