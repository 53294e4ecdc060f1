"""Every right twin passes, every wrong one fails with a report that names the place, and nothing else is raised."""

from __future__ import annotations

import pytest

from pytest_regional import ParityError
from pytest_regional.testing import regional
from tests.faults.parity import twins_of_state, twins_of_values

ROWS = {**twins_of_values.ROWS, **twins_of_state.ROWS}


def judged(harness, row, twin):
    """Return the report of one twin, or the error that the comparison raises."""
    held = row.held() if row.held else None
    program, other = (made(held) if row.held else made for made in (row.program, twin))
    try:
        return harness.assert_parity(program, *row.inputs(), compiled=lambda _: other, **row.options)
    except Exception as error:  # noqa: BLE001 - what is raised is the verdict
        return error


def flaws(harness, row):
    """Yield in sentences what is wrong with how a row is judged."""
    report = judged(harness, row, row.right or row.program)
    if isinstance(report, Exception):
        yield f"the right twin: {type(report).__name__}: {str(report)[:500]}"
    elif not any(one.startswith(row.not_compared) for one in report.not_compared or ("",)):
        yield f"the right twin: not compared were {report.not_compared}"
    error = judged(harness, row, row.wrong)
    if not isinstance(error, ParityError):
        yield f"the wrong twin: {type(error).__name__}: {str(error)[:500]}"
        return
    places = [(one.where.rpartition(": ")[2], one.kind) for one in error.report.mismatches]
    if (row.where, row.kind) not in places or row.where not in str(error):
        yield f"the wrong twin: no {row.kind} of {row.where!r} in {error}"


@pytest.fixture(autouse=True)
def _few_rounded_runs(monkeypatch):
    """Measure eager's rounding in the fewest runs that count; tests/parity/test_rounding_noise.py uses them all."""
    monkeypatch.setattr("pytest_regional.harness.parity.compare.RUNS", 3)
    monkeypatch.setattr("pytest_regional.harness.parity.compare.MORE_RUNS", 4)


@pytest.mark.parametrize("group", ROWS)
def test_twins(group):
    with regional("aot_eager", expects_regions=False) as harness:
        wrong = [f"{row.name}: {flaw}" for row in ROWS[group] if not row.pending for flaw in flaws(harness, row)]
    assert not wrong, "\n".join([f"{len(wrong)} in {group}", *wrong])


def test_the_rows_are_many_and_have_names_of_their_own():
    names = [row.name for rows in ROWS.values() for row in rows]
    assert len(names) >= 200
    assert len(set(names)) == len(names)
