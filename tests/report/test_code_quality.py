"""Failures and findings for GitLab. It publishes no schema: this one follows what is known of its documentation."""

from __future__ import annotations

import json

import pytest

from pytest_regional.report.ci import issues_of
from pytest_regional.report.outputs import write_report
from tests.report.ci_sample import failed, sample
from tests.report.schemas import check
from tests.report.test_document import report

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "properties": {
            "description": {"type": "string", "minLength": 1},
            "check_name": {"type": "string", "minLength": 1},
            "fingerprint": {"type": "string", "minLength": 1},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path"],
                "properties": {
                    "path": {"type": "string", "minLength": 1, "not": {"pattern": "^\\./"}},
                    "lines": {
                        "type": "object",
                        "required": ["begin"],
                        "properties": {"begin": {"type": "integer", "minimum": 1}},
                    },
                },
            },
        },
    },
}


@pytest.mark.parametrize("name", ["gl-code-quality-report.json", "new/our.codequality.json"])
def test_what_is_written_is_what_gitlab_reads(tmp_path, name):
    write_report(sample(), tmp_path / name)
    issues = json.loads((tmp_path / name).read_text(encoding="utf-8"))
    check(issues, SCHEMA)
    assert [issue["check_name"] for issue in issues] == [
        "regional/crashed",
        "regional/failed",
        "regional/failed",
        "regional/failed",
        "regional/failed",
        "regional/order",
        "regional/parity",
    ]


def test_an_invalid_report_is_noticed():
    with pytest.raises(AssertionError, match=r"\$\[0\]: 'severity' is a required property"):
        check([{key: value for key, value in next(issues_of(sample())).items() if key != "severity"}], SCHEMA)


def test_each_issue_is_another_and_stays_the_same():
    fingerprints = [issue["fingerprint"] for issue in issues_of(sample())]
    assert len(set(fingerprints)) == len(fingerprints)
    before, after = (failed("test_a", line=line, message=f"line {line}") for line in (1, 2))
    (one,), (other,) = issues_of(report(before)), issues_of(report(after))
    assert one["fingerprint"] == other["fingerprint"]
    assert (one["location"], other["location"]["lines"]) == (
        {"path": "python/tests/test_block.py", "lines": {"begin": 1}},
        {"begin": 2},
    )


def test_the_description_says_what_is_to_blame_once():
    (issue,) = issues_of(report(failed("test_a", message="wrong\n  blame: region 'mlp'", blame="region 'mlp'")))
    assert issue["description"] == "tests/test_block.py::test_a on reference (cpu): wrong blame: region 'mlp'"
    (issue,) = issues_of(report(failed("test_a", message="wrong", blame="region 'mlp'")))
    assert issue["description"] == "tests/test_block.py::test_a on reference (cpu): wrong to blame: region 'mlp'"
