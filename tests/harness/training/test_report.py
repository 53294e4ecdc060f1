"""What a report says."""

from __future__ import annotations

from .programs import judged
from .test_faults import WrongElement


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
        "training parity holds over 5 steps, 80 compared tensor(s) at level 'close'"
    )
    failed = str(judged(WrongElement, level="bitwise"))
    assert failed.startswith("1 mismatch over 5 steps, 80 compared tensor(s) at level 'bitwise'\n  first at step 3\n")
    assert "step 3: gradient of up.weight: value: 1 of 288 elements differ; worst at [7, 5]: compiled" in failed
