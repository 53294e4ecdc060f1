"""Reports of runs are written, read and merged."""

from __future__ import annotations

import json

import pytest

from pytest_regional._base.documents import DocumentError
from pytest_regional.report.document import OUTCOMES, SHOWN, RunReport, merged
from pytest_regional.report.outputs import write_report


def fact(test, outcome="passed", *, backend="reference", device="cpu", seconds=0.0, **counters):
    return {
        "version": 1,
        "test": test,
        "suite": "it",
        "backend": backend,
        "device": device,
        "requires": [],
        "outcome": outcome,
        "counters": counters,
        "worst_parity": None,
        "compile_seconds": seconds,
        "slowest_compiles": [],
        "causes": {},
        "fuzz": None,
        "details": None,
        "failure": "",
    }


def report(*tests, torch="2.13.0", created="2026-01-01T00:00:00+00:00", **about):
    return RunReport(created, {"torch": torch}, {"cores": 2}, {"seed": 1}, list(tests), **about)


def whole(*tests, **more):
    about = {"created": "", "versions": {}, "machine": {}, "options": {}}
    return json.dumps({"version": 1, "tests": tests, **about, **more})


def golden(state, test="test_it", **about):
    file = "tests/__goldens__/test_it.txt"
    return {"file": file, "test": test, "backend": "torch", "name": "", "device": "cpu", "state": state, **about}


def test_what_is_written_is_read(tmp_path):
    written = report(fact("a", region_compiles=2), fact("b", "failed"), lost_workers=1)
    path = tmp_path / "new" / "report.json"
    write_report(written, path)
    assert RunReport.read(path) == written
    assert json.loads(path.read_text())["version"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is not JSON"),
        ("[]", "is no report"),
        ("", "is empty: the run that should have written it ended before"),
        ('{"version": 1}', "is no report"),
        ('{"version": 2, "tests": []}', "a format that this version does not know"),
        ('{"version": 1, "tests": []}', "the document: Object missing required field `created`"),
        ('{"version": 1, "version": 1, "tests": []}', "has the field 'version' twice"),
        (whole(other=1), "Object contains unknown field `other`"),
        (whole(1), r"tests\[0\]: Expected `object`, got `int`"),
        (whole({}), r"tests\[0\]: Object missing required field `version`"),
        (whole({**fact("t"), "culprits": [{}]}), r"tests\[0\].culprits\[0\]: Object missing required field `sentence`"),
        (whole(fact("a", "well")), r"tests\[0\].outcome: Invalid enum value 'well'"),
        (whole(fact("a", cache_hits=1.5)), r"tests\[0\].counters\[...\]: Expected `int`, got `float`"),
        (whole(fact("a"), goldens=[golden("well")]), r"goldens\[0\].state: Invalid enum value 'well'"),
        (whole(fact("a"), fact("a", "failed")), r"tests\[1\] is a duplicate: 'a'"),
    ],
)
def test_an_invalid_report_is_an_error(tmp_path, text, said):
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DocumentError, match=said) as raised:
        RunReport.read(path)
    assert str(path) in str(raised.value)


def test_every_outcome_has_its_place_in_a_table():
    assert sorted(SHOWN) == sorted(OUTCOMES)


def test_goldens_are_read_and_a_report_without_them_is_as_before(tmp_path):
    path = tmp_path / "report.json"
    write_report(report(fact("a"), goldens=[golden("same")]), path)
    assert RunReport.read(path).goldens == [golden("same")]
    write_report(report(fact("a")), path)
    assert "goldens" not in json.loads(path.read_text())
    assert RunReport.read(path).goldens == []


def test_of_a_golden_in_several_reports_what_a_test_found_is_kept():
    whole = merged(
        [
            report(goldens=[golden("unused"), golden("same", "test_b")]),
            report(goldens=[golden("same"), golden("changed", "test_b")]),
            report(),
        ]
    )
    assert whole.goldens == [golden("same"), golden("changed", "test_b")]


def test_shards_make_one_report():
    one = report(fact("a"), created="2026-01-01T00:00:00+00:00", lost_workers=1)
    other = report(fact("b"), created="2026-01-02T00:00:00+00:00", torch="2.15.0")
    whole = merged([one, other])
    assert [test["test"] for test in whole.tests] == ["a", "b"]
    assert (whole.created, whole.lost_workers, whole.merged_from) == ("2026-01-02T00:00:00+00:00", 1, 2)
    assert whole.versions == {"torch": "2.13.0, 2.15.0"}
    assert whole.options == {"seed": 1}


def test_of_one_test_in_several_reports_the_worst_ending_is_kept():
    whole = merged([report(fact("a", "skipped"), fact("b", "crashed")), report(fact("a"), fact("b")), report()])
    assert {test["test"]: test["outcome"] for test in whole.tests} == {"a": "passed", "b": "crashed"}


def test_one_test_on_two_backends_is_two():
    assert len(merged([report(fact("a")), report(fact("a", backend="torch"))]).tests) == 2
