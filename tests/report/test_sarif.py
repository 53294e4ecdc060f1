"""Findings as SARIF: valid by the published schema, what GitHub needs besides, and fingerprints that stay."""

from __future__ import annotations

import json

import pytest

from pytest_regional.report.ci import sarif_of
from pytest_regional.report.outputs import write_report
from tests.report.ci_sample import NASTY, failed, finding, fuzzed, sample
from tests.report.schemas import SARIF, check, published
from tests.report.test_document import report


def results_of(log):
    return log["runs"][0]["results"]


def test_what_is_written_is_valid(tmp_path):
    path = tmp_path / "new" / "findings.sarif"
    write_report(sample(), path)
    log = json.loads(path.read_text(encoding="utf-8"))
    check(log, published(SARIF))
    assert len(results_of(log)) == 2


@pytest.mark.parametrize("broken", [{"version": "3"}, {"runs": [{}]}], ids=str)
def test_an_invalid_log_is_noticed(broken):
    with pytest.raises(AssertionError, match=r"\$"):
        check({**sarif_of(sample()), **broken}, published(SARIF))


def test_without_findings_and_with_odd_texts_it_is_valid():
    odd = finding("reference-parity-run-1", title=NASTY + "\x00\ud800", file="", script="/a b/ü#?.py")
    for one in (report(), report(failed("test_a")), report(fuzzed(odd), unfinished="SIGTERM ended it")):
        check(json.loads(json.dumps(sarif_of(one))), published(SARIF))
    assert sarif_of(one)["runs"][0]["invocations"][0]["executionSuccessful"] is False


def test_each_oracle_is_a_rule_with_help_and_each_finding_names_its_own():
    log = sarif_of(sample())
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["order", "parity"]
    assert all(rule["help"]["text"] and rule["fullDescription"]["text"] for rule in rules)
    for result in results_of(log):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]


def test_a_finding_is_shown_at_its_fuzz_test_and_names_its_script():
    result = results_of(sarif_of(sample()))[1]
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("python/tests/test_block.py", 12)
    script = result["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert script == "regional-findings/reference-parity-run-6b3fbda6.py"
    assert result["properties"]["hits"] == 4
    assert "rerun: pytest" in result["message"]["text"]


def test_a_finding_names_the_code_of_its_program_that_is_kept():
    code = {"line": 72, "what": "the code", "path": "/w/kept/a b/00.py"}
    lines = [
        {**code, "finding": "n", "file": "kept/a b/00.py"},
        {**code, "finding": "m", "file": "kept/other.py"},
        {**code, "finding": "n"},
        {**code, "finding": "n", "file": "/elsewhere/00.py"},
    ]
    log = sarif_of(report({**fuzzed(finding("n")), "generated_code": lines}))
    check(json.loads(json.dumps(log)), published(SARIF))
    (result,) = results_of(log)
    related = [one["physicalLocation"] for one in result["relatedLocations"][1:]]
    assert [(one["artifactLocation"], one["region"]["startLine"]) for one in related] == [
        ({"uri": "kept/a%20b/00.py", "uriBaseId": "%SRCROOT%"}, 72),
        ({"uri": "/elsewhere/00.py"}, 72),
    ]
    assert [one["id"] for one in result["relatedLocations"]] == [1, 2, 3]


def test_a_finding_of_an_installed_suite_is_shown_at_its_script():
    elsewhere = {**fuzzed(finding("n")), "file": ""}
    (result,) = results_of(sarif_of(report(elsewhere)))
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "regional-findings/n.py"


def test_fingerprints_depend_on_the_defect_alone():
    moved = {**fuzzed(finding("n", size=9, title="other", script="/elsewhere/n.py"), shard=1), "line": 99}
    one, other, third = (
        results_of(sarif_of(report(test)))[0] for test in (fuzzed(finding("n")), moved, fuzzed(finding("m")))
    )
    assert one["partialFingerprints"] == other["partialFingerprints"] != third["partialFingerprints"]
    assert set(one["partialFingerprints"]) == {"primaryLocationLineHash", "regionalFinding/v1"}
