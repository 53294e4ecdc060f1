"""The mutants themselves: they fit the reference, leave nothing behind, and a kill is a kill only where it counts."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.fuzz_false_alarms import known_alarms
from pytest_regional.backends import registry
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Step
from pytest_regional.fuzz.operators.table import families, operators
from pytest_regional.fuzz.oracles import ORACLES, OracleViolationError
from tests.faults import by_fuzz, by_suites, table, telling
from tests.faults.by_fuzz import Hunt, alarms_of
from tests.faults.by_suites import ROOT, told_in
from tests.faults.detection import KILLS
from tests.faults.needs import meets
from tests.faults.odd import BACKENDS, ODD
from tests.faults.of_backends import FAULTS, arithmetic, caching, configs, graphs, order, passes, plans, sharing, values
from tests.faults.planting import CALLS_FOLDER, Mutant, Patch, PlantingError, spec_of
from tests.faults.results import Results
from tests.faults.verdict import Alarm, Verdict, verdict_of_tests
from tests.fuzz.generator.declared import DECLARED

EVERY = {**FAULTS, **ODD}
THEMES = (plans, values, arithmetic, graphs, sharing, configs, order, caching, passes)
#: Claims that are checked by random sequences of cache operations, or by tests that start threads.
NOT_OF_ONE_PROGRAM = {"caches", "threads"}

A, B = (Region("a"),), (Region("b"),)
#: Two regions with an op between; the second has two results that look alike.
PROGRAM = Program(
    (TensorInput((4, 4), requires_grad=True), TensorInput((4, 4), requires_grad=True)),
    (
        Step("mul", (0, 1), (), (2,), A),
        Step("sin", (2,), (), (3,)),
        Step("add", (3, 1), (), (4,), B),
        Step("cos", (3,), (), (5,), B),
    ),
    (4, 5),
)


def hunt(mutant, programs=3, **options):
    return Hunt(mutant, [PROGRAM] * programs, programs, 60.0, modes=("interpret",), **options).run()


def test_there_are_enough_and_names_are_their_own():
    names = [mutant.name for theme in THEMES for mutant in theme.FAULTS] + [mutant.name for mutant in BACKENDS]
    assert len(names) == len(set(names)) == len(EVERY)
    assert len(FAULTS) >= 40
    assert len(ODD) >= 20


def test_the_code_that_a_mutant_replaces_exists():
    for mutant in EVERY.values():
        assert mutant.patches or mutant.wrap, mutant
        for patch in mutant.patches:
            owner, name = patch.owner()
            assert callable(getattr(owner, name)) or not patch.counted, mutant


def test_a_missing_patch_target_is_an_error():
    for target in ("partition:no_such_function", "no_such_module:f", "partition:_Dag.no_such_method"):
        with pytest.raises(PlantingError, match="not there to be replaced"):
            Patch(target, lambda original: original).owner()


def test_a_fault_says_who_is_meant_to_notice():
    for name, fault in FAULTS.items():
        assert fault.oracles or fault.suites, name
        assert set(fault.oracles) <= {*ORACLES, *NOT_OF_ONE_PROGRAM, "order"}, name
        assert [suite for suite in fault.suites if not (ROOT / suite).is_file()] == [], name


def test_the_first_suite_exists_and_belongs_to_the_fault():
    for name, test in json.loads(KILLS.read_text()).items():
        file, _, function = test.partition("::")
        assert file in FAULTS[name].suites, name
        assert f"def {function}(" in (ROOT / file).read_text(), name


def test_the_suite_that_killed_before_runs_first_and_then_the_others(monkeypatch):
    asked = []

    def run(command, environment, timeout):
        asked.append([part for part in command if part.startswith("suites/")])
        line = {"test": f"{SUITE}::test_it", "outcome": "passed" if len(asked) == 2 else "failed", "text": ""}
        Path(environment[telling.FILE]).write_text(json.dumps({**line, "error": "ParityError"}) + "\n")
        Path(environment[CALLS_FOLDER], "called").touch()
        return True, ""

    monkeypatch.setattr(by_suites, "_run", run)
    for _ in range(2):
        assert by_suites.checked_by_suites(MEANT, first=f"{SUITE}::test_it").outcome == "killed"
    assert asked == [[f"{SUITE}::test_it"], [f"{SUITE}::test_it"], [SUITE]]


def test_a_fault_whose_tests_are_all_skipped_survives(monkeypatch):
    def run(command, environment, timeout):
        line = {"test": f"{SUITE}::test_it", "outcome": "skipped", "error": "", "text": ""}
        Path(environment[telling.FILE]).write_text(json.dumps(line) + "\n")
        return True, ""

    monkeypatch.setattr(by_suites, "_run", run)
    verdict = by_suites.checked_by_suites(MEANT)
    assert (verdict.outcome, verdict.notes) == ("survived", ("all 1 tests were skipped",))


def test_what_is_odd_has_no_oracles_to_break():
    assert [mutant for mutant in ODD.values() if mutant.oracles or mutant.suites] == []


def test_after_a_mutant_all_is_as_before():
    for mutant in EVERY.values():
        places = [patch.owner() for patch in mutant.patches]
        before = [getattr(owner, name) for owner, name in places]
        with pytest.raises(KeyError), mutant.planted.active(), mutant.planted.active():
            planted = [getattr(owner, name) for owner, name in places]
            raise KeyError
        assert [getattr(owner, name) for owner, name in places] == before, mutant
        assert all(one is not other for one, other in zip(planted, before, strict=True)), mutant


def test_each_is_a_backend_by_name():
    for name in ("region_keys_merged", "latest_first"):
        spec = registry.resolve(f"tests.faults.backends:{name}")
        assert spec.name == name
        assert spec.origin == f"tests.faults.backends:{name}"
    with pytest.raises(registry.BackendImportError, match="no mutant is called 'right'"):
        registry.resolve("tests.faults.backends:right")


@pytest.mark.parametrize(("name", "oracle"), [("results_exchanged", "parity"), ("last_op_left_out", "plan")])
def test_a_fault_is_noticed_by_its_oracle(name, oracle):
    verdict = hunt(FAULTS[name])
    assert verdict.outcome == "killed"
    assert (verdict.kill.source, verdict.kill.example, verdict.kill.mode) == (oracle, 1, "interpret")


def test_what_is_odd_is_not_complained_of():
    assert alarms_of(spec_of(ODD["operands_exchanged"]), [PROGRAM], 1) == []
    assert ODD["operands_exchanged"].planted.calls


def test_what_autograd_gets_wrong_without_the_backend_is_no_alarm():
    (known,) = (one for one in known_alarms() if one.name == "aot_eager-compiles-compile-71693d9b")
    assert alarms_of("reference", [known.program], 1) == []


def test_after_a_mutant_the_reference_is_right_again():
    wrong = alarms_of(spec_of(FAULTS["backward_wrong"]), [PROGRAM], 1)
    assert [alarm.source for alarm in wrong] == ["parity"]
    assert alarms_of("reference", [PROGRAM], 1) == []


def test_the_wrong_oracle_kills_nothing():
    fault = Mutant("x", "", ("configs",), patches=FAULTS["results_exchanged"].patches)
    verdict = hunt(fault, programs=1)
    assert verdict.outcome == "survived"
    assert verdict.kill is None
    assert {alarm.source for alarm in verdict.others} == {"parity"}


def test_programs_in_which_a_fault_cannot_act_are_counted_and_not_checked(monkeypatch):
    monkeypatch.setattr(by_fuzz, "check", lambda *arguments, **options: pytest.fail("checked"))
    verdict = hunt(Mutant("x", "", ("parity",), patches=FAULTS["nan_lost"].patches, needs=("input:nonfinite",)))
    assert (verdict.outcome, verdict.tried) == ("survived", 3)
    assert verdict.notes == ("no program has what the fault needs: input:nonfinite",)


def test_requirements_of_a_fault_on_programs():
    assert meets(PROGRAM, ["inside:cos"])
    assert meets(PROGRAM, ["op:mm", "training + inside:family:pointwise"])
    assert meets(PROGRAM, ["inside:independent"])
    assert not meets(PROGRAM, ["inside:sin", "training + inside:mm"])
    one_each = replace(PROGRAM, steps=PROGRAM.steps[:3], outputs=(4,))
    assert not meets(one_each, ["inside:independent"])


def test_a_fault_needs_what_there_is_and_shows_somewhere():
    for name, fault in FAULTS.items():
        words = {word for need in fault.needs for word in need.split(" + ")}
        inside = {word.rpartition(":")[2] for word in words if word.startswith(("inside:", "op:"))}
        assert inside <= {*operators(), *families(), "independent"}, name
        assert {word for word in words if not word.startswith(("inside:", "op:"))} <= {*DECLARED}, name
        assert fault.modes, name


def test_running_out_of_time_kills_nothing(monkeypatch):
    monkeypatch.setattr(by_fuzz, "check", lambda *arguments, **options: time.sleep(30))
    verdict = hunt(FAULTS["results_exchanged"], each=0.05)
    assert verdict.outcome == "timeout"
    assert verdict.kill is None


def test_a_suite_that_fails_on_the_reference_kills_nothing(monkeypatch):
    def broken(*arguments, **options):
        raise OracleViolationError("parity", "run", "always", origin="an oracle that is wrong")

    monkeypatch.setattr(by_fuzz, "check", broken)
    verdict = hunt(FAULTS["results_exchanged"])
    assert verdict.outcome == "never called"
    assert verdict.notes == tuple(
        f"the reference breaks parity on example {number} too: an oracle that is wrong" for number in (1, 2, 3)
    )


def test_an_uncalled_mutant_is_an_error_and_no_survivor():
    unused = Patch("regions:shortened", lambda original: original)
    assert hunt(Mutant("x", "", ("parity",), patches=(unused,))).outcome == "never called"
    missing = Patch("regions:no_such_function", lambda original: original)
    with pytest.raises(PlantingError):
        hunt(Mutant("x", "", ("compiles",), patches=(missing,)))


SUITE = "suites/regions/test_effects.py"
MEANT = Mutant("x", "", ("parity",), (SUITE,))


@pytest.mark.parametrize(
    ("alarm", "outcome"),
    [
        (Alarm(f"{SUITE}::test_mutation", "ParityError"), "killed"),
        (Alarm("suites/caching/test_hits.py::test_inference", "ParityError"), "survived"),
        (Alarm(f"{SUITE}::test_mutation", "KeyError"), "survived"),
        (Alarm(f"{SUITE}::test_mutation", "RegionalTimeoutError"), "timeout"),
        (Alarm(f"{SUITE}::test_mutation", "NewProcessError", "it did not answer within 5 s"), "timeout"),
        (Alarm("the whole run", "TimeoutExpired"), "timeout"),
    ],
)
def test_a_failed_test_counts_by_what_it_asserts(alarm, outcome):
    verdict = verdict_of_tests(MEANT, [alarm], called=True, tried=1, seconds=1)
    assert verdict.outcome == outcome
    assert (verdict.kill is alarm) == (outcome == "killed")
    assert verdict_of_tests(MEANT, [alarm], called=False, tried=1, seconds=1).outcome == "never called"


def test_results_are_read_back_and_rendered(tmp_path):
    kill = Alarm("parity", "OracleViolationError", "value of output", 7, "interpret")
    results = Results(tmp_path / "results.json")
    results.note("results_exchanged", "fuzz", Verdict("killed", kill, (Alarm("plan", "OracleViolationError"),), 7, 1.5))
    results.note_right("reference", "fuzz", [], 60)
    again = Results.read(results.file)
    assert again.verdicts == results.verdicts
    assert table.is_green(again)
    text = table.rendered(again, FAULTS, ODD)
    assert "parity, mode interpret (by plan first) | 7 |" in text
    assert "0 alarms in 60 tests and programs" in text
    again.note("nan_lost", "suites", Verdict("survived"))
    assert not table.is_green(again)
    document = tmp_path / "detection.md"
    document.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write_between_marks(document, "new")
    assert document.read_text() == f"before\n{table.BEGIN}\nnew\n{table.END}\nafter\n"


def test_the_plugin_tells_of_a_failed_test_and_stops_where_it_is_enough(pytester, monkeypatch):
    told = pytester.path / "told.jsonl"
    monkeypatch.setenv(telling.FILE, str(told))
    monkeypatch.setenv(telling.ENOUGH, "AssertionError")
    pytester.makepyfile(
        test_it="""
        import pytest

        def test_right():
            pass

        def test_not_for_this_backend():
            pytest.skip("no")

        @pytest.mark.parametrize("error", [KeyError("k"), TimeoutError(), AssertionError("seen"), ValueError()])
        def test_wrong(error):
            raise error
        """
    )
    pytester.runpytest_inprocess("-p", "tests.faults.telling", "-p", "no:cacheprovider", "-p", "no:randomly")
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert [(line["outcome"], line["error"]) for line in lines] == [
        ("passed", ""),
        ("skipped", ""),
        ("failed", "KeyError"),
        ("failed", "TimeoutError"),
        ("failed", "AssertionError"),
    ]
    alarms, passed, skipped = told_in(told)
    assert (passed, skipped) == (1, 1)
    assert alarms[-1] == Alarm("test_it.py::test_wrong[error2]", "AssertionError", "seen")


def test_any_error_is_enough_but_one_of_time(monkeypatch):
    monkeypatch.setenv(telling.ENOUGH, "*")
    assert telling.is_enough("KeyError")
    assert not telling.is_enough("TimeoutError")
    monkeypatch.setenv(telling.ENOUGH, "")
    assert not telling.is_enough("KeyError")
