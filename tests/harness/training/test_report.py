"""What a report says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from pytest_regional.harness.parity.tolerance import Errors
from pytest_regional.harness.training import StepReport, TrainingMismatch, TrainingReport
from pytest_regional.report.details import details_of, new_drawer
from tests.faults.training.test_faults import WrongElement

from .programs import judged


def test_the_table_has_a_line_for_each_step():
    report = judged(lambda model: model)
    lines = report.table().splitlines()
    assert " ".join(lines[0].split()) == "step loss eager float64 gradient error eager of the allowed at drift eager"
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]
    assert len({len(line) for line in lines}) == 1
    loss, eager, float64 = map(float, lines[1].split()[1:4])
    assert loss == eager
    assert 0 < abs(loss - float64) < 1e-6


def test_eager_alone_drifts_from_float64():
    """Errors of one step stay at the last bits; left to itself, a training goes its own way."""
    report = judged(lambda model: model)
    last = report.steps[-1]
    assert last.drift.parameters == last.drift.parameters_eager
    assert last.drift.parameters > 10 * last.gradient_error


def test_a_fault_shows_in_the_table_of_its_step():
    report = judged(WrongElement)
    assert [step.worst_ratio > 1 for step in report.steps] == [False, False, True, False, False]
    assert "gradient of up.weight" in report.table().splitlines()[3]
    assert report.steps[2].gradient_error > 10 * report.steps[2].gradient_error_eager


def test_the_first_line_tells_the_verdict():
    assert str(judged(lambda model: model)).startswith(
        "training parity holds over 5 steps, 80 tensors at level 'close'"
    )
    failed = str(judged(WrongElement, level="bitwise"))
    assert failed.startswith(
        "training differs from eager: 1 of 16 tensors, step 3: gradient of up.weight: value: 1 of 288 "
    )
    assert failed.splitlines()[1] == "  first at step 3 of 5; compared at level 'bitwise'"
    assert "step 3: gradient of up.weight: value: 1 of 288 elements differ; worst at [7, 5]: compiled" in failed


def everything_wrong():
    """A training of eight parameters whose every gradient is wrong in steps 2 and 3, the last parameter's most."""
    steps = []
    for number in (1, 2, 3):
        size = 0.1 if number == 1 else 10.0
        errors = {f"gradient of p{i}": Errors(size * (i + 1), 1.0, 1.0) for i in range(8)}
        found = [TrainingMismatch(where, "value", "off", step=number) for where in errors] if number > 1 else []
        steps.append(StepReport(number, 1.0, 1.0, 1.0, size, 1.0, tuple(found), 8, size * 8, errors=errors))
    return TrainingReport(tuple(steps), rule="a rule")


def test_the_worst_of_the_first_bad_step_are_reported_and_the_others_counted():
    told = everything_wrong().describe().splitlines()
    assert told[1] == "  first at step 2 of 3; compared at a rule"
    assert told[2:5] == [f"  - step 2: gradient of p{i}: value: off" for i in (7, 6, 5)]
    assert told[5] == "  and 13 more differences, in this step and later ones"


def test_a_missing_gradient_is_reported_before_large_errors():
    step = everything_wrong().steps[1]
    missing = TrainingMismatch("gradient of p8", "missing", "no gradient", step=2)
    assert replace(step, mismatches=(*step.mismatches, missing)).worst_mismatches()[0] is missing


def test_a_report_of_the_run_shows_five_errors_of_a_training_and_counts_the_others():
    harness = SimpleNamespace(
        _parity_reports=[everything_wrong()],
        observer=SimpleNamespace(sources=[], log=SimpleNamespace(since=list)),
    )
    details = details_of(harness, new_drawer())
    assert [one["where"] for one in details["errors"]] == [
        f"training: step 2: gradient of p{i}" for i in (7, 6, 5, 4, 3)
    ]
    assert details["left_out"] == {"errors": 19}
