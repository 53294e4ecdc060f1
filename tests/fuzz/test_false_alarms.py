"""``bench.fuzz_false_alarms`` counts an alarm under the known defect that it is, as it was drawn or once reduced."""

from __future__ import annotations

import pytest

from bench.fuzz_false_alarms import Tally
from pytest_regional.fuzz.findings.folder import Finding, signature_of
from pytest_regional.fuzz.oracles import CheckResult, OracleViolationError

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
