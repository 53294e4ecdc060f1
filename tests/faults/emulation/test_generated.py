"""The emulator is itself tested: generated code with a planted fault never passes for right."""

from functools import cache

import pytest

from tests.faults.emulation.generated import ASSERTION, FAULTS, NOTHING, PROGRAMS, UNNOTICED, generated, outcome


@cache
def source_of(program):
    return generated(PROGRAMS[program])


@pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "gather beyond"])
def test_code_without_a_fault_is_right(emulation, program):
    assert outcome(emulation, source_of(program), PROGRAMS[program]) == NOTHING


def test_an_index_beyond_the_end_is_asserted(emulation):
    assert outcome(emulation, source_of("gather beyond"), PROGRAMS["gather beyond"]) == ASSERTION


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_noticed(emulation, fault):
    source = source_of(fault.program)
    broken = fault.mutate(source)
    assert broken != source, f"the fault cannot be planted into this code:\n{source}"
    assert outcome(emulation, broken, PROGRAMS[fault.program]) == fault.noticed_by


@pytest.mark.parametrize("fault", UNNOTICED, ids=str)
def test_limits_of_emulation(emulation, fault):
    """Documented limits: where one of these is noticed, ``docs/emulation-coverage.md`` has to change."""
    source = source_of(fault.program)
    changed = fault.mutate(source)
    assert changed != source, f"nothing to change in this code:\n{source}"
    assert outcome(emulation, changed, PROGRAMS[fault.program]) == NOTHING
