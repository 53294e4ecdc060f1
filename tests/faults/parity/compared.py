"""Programs and planted faults for the tests of the parity engine. A "candidate" stands for a compiled program."""

from __future__ import annotations

from pytest_regional import ParityReport
from pytest_regional.harness.parity.compare import compare
from pytest_regional.harness.parity.execution import execute


def parity_of(eager, candidate, *inputs, state_of=None, backward=None, **options) -> ParityReport:
    """Compare a candidate with an eager program as the harness does: two runs and a float64 one."""
    expected = execute(eager, inputs, backward=backward)
    found = execute(candidate, inputs, backward=backward, state_of=eager if state_of is None else state_of)
    fp64 = execute(eager, inputs, backward=backward, fp64=True)
    return compare(expected, found, fp64, **options)


def kinds(report: ParityReport) -> set[tuple[str, str]]:
    return {(mismatch.where, mismatch.kind) for mismatch in report.mismatches}
