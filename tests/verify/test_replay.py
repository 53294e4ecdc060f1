"""A refutation is not confirmed by a run that takes too long, and says so."""

import pytest

from pytest_regional.verify import REFUTED, UNKNOWN
from tests.faults.emulation.generated import NO_STORE_MASK, substituted
from tests.faults.verify.planted import BUFFERS, DYNAMIC, MEMORY, STATIC, compiled, verified

SECONDS = 4.0

STALE = substituted(r"buf1 = empty_strided_cuda.*", "buf1 = buf0")


def waiting(source):
    """Let the first kernel load an element again and again, before it does anything else."""
    loop = r"    for _ in range(1 << 17):\n        tl.load(in_ptr0 + tl.arange(0, 1)[:])\n"
    changed = substituted(r"^(    (?:xoffset|yoffset) = )", loop + r"\1", 1)(source)
    assert changed != source
    return changed


@pytest.mark.parametrize(
    ("program", "sizes", "fault", "property", "kernel"),
    [
        ("even", DYNAMIC, NO_STORE_MASK, MEMORY, 0),
        pytest.param(
            "products",
            STATIC,
            STALE,
            BUFFERS,
            -1,
            marks=pytest.mark.slow(
                "replays two kernels that wait",
                fast="tests/verify/test_buffers.py::test_a_run_that_takes_too_long_confirms_nothing",
            ),
        ),
    ],
)
def test_a_replay_that_takes_too_long_confirms_nothing(emulation, program, sizes, fault, property, kernel):
    code = compiled(emulation, program, sizes)

    def outcome(source):
        found = verified(emulation, code, source, SECONDS, 1)[kernel]
        return next(outcome for outcome in found.outcomes if outcome.property == property)

    assert outcome(fault(code.source)).verdict == REFUTED
    slow = outcome(waiting(fault(code.source)))
    assert (slow.verdict, slow.final) == (UNKNOWN, False)
    assert "; no replay: " in slow.reason
    assert "out of time" in slow.reason
