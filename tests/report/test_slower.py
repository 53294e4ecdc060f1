"""What compiles slower than before, by phase, region and test: found where it is, and not where it is noise."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pytest_regional.report.history import TimedRun
from pytest_regional.report.slower import Limit, LimitError, slower_times

MLP, TAIL = "region mlp of the forward graph", "region tail of the forward graph"


def run(draw, tests=20, *, noise=0.1, slow=(), machine="one", torch="2.13.0", not_measured=()):
    """Return a run whose times differ by ``noise``; ``slow``: test (or None for all), region, phase and factor."""

    def times(test):
        regions = {
            what: {phase: seconds * draw.lognormvariate(0, noise) for phase, seconds in phases.items()}
            for what, phases in {MLP: {"passes": 0.1, "inductor": 0.4}, TAIL: {"passes": 0.1, "inductor": 0.2}}.items()
        }
        for one, what, phase, factor in slow:
            if one in (None, test):
                regions[what][phase] *= factor
        phases = {phase: sum(region[phase] for region in regions.values()) for phase in ("passes", "inductor")}
        phases["dynamo"] = 0.1 * draw.lognormvariate(0, noise)
        return {"phases": phases, "regions": regions, "not_measured": list(not_measured)}

    found = {(f"test_{number}", "reference", "cpu"): times(number) for number in range(tests)}
    return TimedRun("2026-01-01", {"torch": torch}, {"model": machine}, found)


def test_equal_runs_are_not_slower():
    draw = random.Random(0)
    alarms = 0
    for _ in range(60):
        found = slower_times([run(draw) for _ in range(5)], run(draw))
        alarms += any(found.beyond(Limit.of(f"{phase}:10%")) for phase in ("total", "passes", "inductor", "dynamo"))
    assert alarms <= 1


def test_what_slows_one_region_of_all_tests_is_found_there():
    draw = random.Random(1)
    found = slower_times([run(draw)], run(draw, slow=[(None, MLP, "passes", 1.6)]))
    beyond = found.beyond(Limit.of("passes:15%"))
    assert [row.what for row in beyond][:2] == ["20 tests", MLP]
    assert not found.beyond(Limit.of("inductor:15%"))
    lines = list(found.lines())
    assert lines[0] == "compile times, compared with 1 run before:"
    assert any(line.startswith(f"  {MLP}: passes 1.") for line in lines)
    assert not any(TAIL in line for line in lines)


def test_one_slow_test_is_found_by_name():
    draw = random.Random(2)
    found = slower_times([run(draw) for _ in range(6)], run(draw, slow=[(3, MLP, "inductor", 4)]))
    beyond = found.beyond(Limit.of("inductor:20%"))
    assert [row.what for row in beyond] == ["test_3 on reference (cpu)"]
    assert "slower tests" in "\n".join(found.lines())


def test_two_runs_of_few_tests_have_no_noise_and_say_so():
    draw = random.Random(3)
    found = slower_times([run(draw, 2)], run(draw, 2, slow=[(None, MLP, "passes", 5)]))
    assert not found.decides(Limit.of("passes:20%"))
    assert not found.beyond(Limit.of("passes:20%"))
    assert "(noise not known)" in "\n".join(found.lines())
    assert slower_times([run(draw, 2)] * 4, run(draw, 2)).decides(Limit.of("20%"))


def test_another_machine_is_not_compared_and_another_torch_is_named():
    draw = random.Random(4)
    found = slower_times([run(draw, machine="two"), run(draw, torch="2.11.0")], run(draw))
    assert found.runs == 1
    assert found.notes == [
        "compile times of 1 run on another machine are not compared",
        "compile times are those of torch 2.13.0, and 2.11.0 before",
    ]
    alone = slower_times([run(draw, machine="two")], run(draw))
    assert not alone.phases
    assert alone.notes == ["compile times of 1 run on another machine are not compared"]


def with_cpu(timed, factor=1.0):
    """Return the run with CPU times, which are ``factor`` of the time that passed."""

    def scaled(phases):
        return {name: factor * seconds for name, seconds in phases.items()}

    tests = {
        key: {
            **times,
            "cpu": {
                "phases": scaled(times["phases"]),
                "regions": {what: scaled(phases) for what, phases in times["regions"].items()},
            },
        }
        for key, times in timed.tests.items()
    }
    return replace(timed, tests=tests)


def test_either_clock_is_compared():
    draw = random.Random(6)
    earlier = [with_cpu(run(draw)), with_cpu(run(draw))]
    busy = with_cpu(run(draw, slow=[(None, MLP, "passes", 3)]), 0.3)
    limit = Limit.of("passes:20%")
    assert slower_times(earlier, busy).beyond(limit)
    assert not slower_times(earlier, busy, "cpu").beyond(limit)
    slow = with_cpu(run(draw), 2)
    assert not slower_times(earlier, slow).beyond(limit)
    found = slower_times(earlier, slow, "cpu")
    assert {row.what for row in found.beyond(limit)} >= {"20 tests", MLP}
    assert next(found.lines()) == "compile times on the CPU clock, compared with 2 runs before:"


def test_runs_that_know_no_cpu_times_are_not_compared_on_that_clock():
    draw = random.Random(7)
    found = slower_times([run(draw), with_cpu(run(draw))], with_cpu(run(draw)), "cpu")
    assert (found.runs, found.notes) == (1, ["1 run has no times on the CPU clock and is not compared"])
    none = slower_times([with_cpu(run(draw))], run(draw), "cpu")
    assert not none.phases
    assert "1 run has no times on the CPU clock and is not compared" in none.notes


def test_a_phase_that_one_torch_does_not_measure_is_left_out():
    draw = random.Random(5)
    found = slower_times([run(draw, not_measured=["passes"])], run(draw))
    assert "passes" not in {row.phase for row in found.phases}
    assert "inductor" in {row.phase for row in found.phases}


@pytest.mark.parametrize(
    ("text", "phase", "ratio"), [("20%", "total", 1.2), ("passes:5%", "passes", 1.05), ("total: 12.5 %", None, 0)]
)
def test_limits(text, phase, ratio):
    if phase is None:
        with pytest.raises(LimitError, match="expected a percentage, such as 20%"):
            Limit.of(text)
    else:
        assert Limit.of(text) == Limit(phase, ratio)
        assert Limit.of(str(Limit.of(text))) == Limit.of(text)


def test_a_limit_of_no_phase_names_the_nearest():
    with pytest.raises(LimitError, match="Did you mean 'passes'"):
        Limit.of("pases:20%")
