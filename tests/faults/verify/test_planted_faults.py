"""No planted fault passes for proved, and nothing that is right for refuted."""

from functools import cache

import pytest

from pytest_regional.verify import PROVED, REFUTED
from tests.faults.verify.planted import (
    BUFFERS,
    DYNAMIC,
    FALSE_PROMISE,
    FAULTS,
    HUGE,
    MEMORY,
    PROVABLE,
    STATIC,
    compiled,
    planted,
    seen,
    verified,
)

SECONDS = 40.0
CONFIGS = 1  # the others differ in their block sizes; tests.faults.verify takes all
TEXTS = ("out-of-bounds", "race in", "nobody has written", "too large for its type", "outputs [", "are not changed")
KINDS = sorted({(fault.program, fault.sizes) for fault in FAULTS})
REFUTABLE = [fault for fault in FAULTS if fault.property in (*PROVABLE, BUFFERS) and not fault.slow]


@pytest.fixture(scope="module")
def made(emulation):
    return cache(lambda program, sizes: compiled(emulation, program, sizes))


def test_the_corpus_is_large_enough():
    names = [str(fault) for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert sum(fault.property in PROVABLE for fault in FAULTS) >= 60
    assert sum(fault.property in PROVABLE and fault.hidden for fault in FAULTS) >= 20
    assert {STATIC, DYNAMIC, HUGE} == {fault.sizes for fault in FAULTS}


DYNAMIC_IS_SLOW = pytest.mark.slow(
    "asks z3 of symbolic sizes for seconds", fast="test_code_without_a_fault_is_not_refuted"
)


@pytest.mark.parametrize(
    ("program", "sizes"), [pytest.param(*kind, marks=[DYNAMIC_IS_SLOW] if kind[1] == DYNAMIC else []) for kind in KINDS]
)
def test_code_without_a_fault_is_not_refuted(emulation, made, program, sizes):
    code = made(program, sizes)
    found = verified(emulation, code, code.source, SECONDS, CONFIGS)
    assert [outcome for one in found for outcome in one.outcomes if outcome.verdict == REFUTED] == []
    assert not seen(emulation, code, code.source)


@pytest.mark.parametrize("fault", REFUTABLE, ids=str)
def test_a_fault_is_refuted(emulation, made, fault):
    found = verified(
        emulation, made(fault.program, fault.sizes), planted(made(fault.program, fault.sizes), fault), SECONDS, CONFIGS
    )
    outcomes = [outcome for one in found for outcome in one.outcomes]
    refuted = [outcome for outcome in outcomes if outcome.verdict == REFUTED and outcome.property == fault.property]
    assert refuted, outcomes
    assert any(text in outcome.reason for outcome in refuted for text in TEXTS), refuted


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.hidden], ids=str)
def test_a_hidden_fault_does_not_show_when_it_runs(emulation, made, fault):
    assert not seen(emulation, made(fault.program, fault.sizes), planted(made(fault.program, fault.sizes), fault))


def test_what_is_only_promised_is_not_proved(emulation, made):
    code = made(FALSE_PROMISE.program, FALSE_PROMISE.sizes)
    found = verified(emulation, code, planted(code, FALSE_PROMISE), SECONDS, CONFIGS)
    assert [o for one in found for o in one.outcomes if o.property == MEMORY and o.verdict == PROVED] == []
