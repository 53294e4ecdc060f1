"""suites/staleness notices planted caches that give back old results, and raises no alarm at a complete one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_regional import NewProcessError
from pytest_regional.testing import regional as harness
from suites.staleness import runner
from suites.staleness.changes import Changes
from suites.staleness.runner import BEFORE, EMPTY, NEW_PROCESS, RESTARTED, message, verdicts
from suites.staleness.table import TOPICS, by_id, rows

FINDINGS = Path(__file__).parents[1] / "docs" / "findings"
NUMBER, FUNCTION, SIZE = "code-closure_number", "code-closure_torch_function", "inputs-shape"


def checked(backend, *names):
    """Return when each row fails with a planted backend."""
    with harness(f"tests.faults.stale_backend:{backend}", "cpu", expects_regions=False) as regional:
        return verdicts(regional, [by_id(name) for name in names])


@pytest.fixture
def no_new_process(monkeypatch):
    """Leave the new process out, where nothing depends on it."""
    monkeypatch.setattr(runner, "_compiled_in_new_process", lambda *given: {})


@pytest.mark.usefixtures("warm_process")
def test_a_planted_cache_in_another_process():
    found = checked("WITHOUT_NUMBERS", NUMBER, FUNCTION)
    assert {name: set(problems) for name, problems in found.items()} == {
        NUMBER: {NEW_PROCESS, RESTARTED},
        FUNCTION: set(),
    }
    assert f"{NUMBER} is stale" in message(by_id(NUMBER), found[NUMBER])
    assert all("the result from before the change" in text for text in found[NUMBER].values())


@pytest.mark.parametrize(("backend", "stale"), [("COMPLETE", False), ("NOTHING", True)])
def test_a_planted_cache_after_a_restart(no_new_process, backend, stale):
    found = checked(backend, NUMBER, FUNCTION, SIZE)
    assert [bool(problems) for problems in found.values()] == [stale] * 3
    assert all(set(problems) <= {RESTARTED} for problems in found.values())


def test_a_cache_that_a_restart_does_not_clear(no_new_process):
    found = checked("IN_MEMORY", NUMBER)[NUMBER]
    assert RESTARTED in found


def test_a_wrong_result_without_a_cache_is_not_called_stale(no_new_process):
    found = checked("ALWAYS_TWICE", NUMBER)[NUMBER]
    assert set(found) == {RESTARTED, EMPTY}
    assert "no stale result" in message(by_id(NUMBER), found)


def test_a_row_that_cannot_fail_is_refused(no_new_process):
    changes = Changes(__name__)
    changes(2, 2)(lambda n: lambda x: x * n)
    with harness("eager", "cpu", expects_regions=False) as regional:
        (problems,) = verdicts(regional, changes.rows).values()
    assert "the row is no test" in problems[RESTARTED]


def test_a_row_that_raises_does_not_hide_the_others(no_new_process):
    changes = Changes(__name__)
    changes(name="broken")(lambda n: 1 / 0)
    changes(name="whole")(lambda n: lambda x: x * n)
    with harness("eager", "cpu", expects_regions=False) as regional:
        broken, whole = verdicts(regional, changes.rows).values()
    assert "ZeroDivisionError" in broken[BEFORE]
    assert not whole


def test_the_row_that_ends_the_process_is_found():
    class Dying:
        def in_new_process(self, function, names):
            if "b" in names:
                raise NewProcessError("it died")
            return type("Result", (), {"value": {name: "stale" for name in names if name == "c"}})

    found = runner._compiled_in_new_process(Dying(), ["a", "b", "c", "d"])
    assert found == {"b": "the process ended: it died", "c": "stale"}


def test_the_table():
    table = rows()
    assert len(table) >= 150
    assert len(table) == sum(len(topic.changes.rows) for topic in TOPICS), "two rows have one name"
    for row in table.values():
        assert row.text.endswith("."), row.id
        assert re.fullmatch(r"[a-z0-9_]+-\w+", row.id)
        assert not row.finding or (FINDINGS / f"{row.finding}.py").is_file(), row.id
    assert 15 <= sum(row.quick for row in table.values()) <= 24
