"""Failures and findings as GitLab's code quality report, which a merge request shows against its target branch.

GitLab documents the keys in "Code Quality report format" and publishes no schema. They were written from knowledge of
that page, and the schema of the tests repeats them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_regional._files import dumps
from pytest_regional._text import encodable, printable
from pytest_regional.report.document import RunReport, column_of
from pytest_regional.report.facts import Facts
from pytest_regional.report.problems import bad_tests, findings_of, message_and_blame
from pytest_regional.report.sarif import fingerprints_of

_LINES, _CHARACTERS = 3, 500

#: A process that died is worse than a test that failed.
_SEVERITIES = {"crashed": "blocker", "not finished": "blocker", "error": "critical", "failed": "critical"}


def write(report: RunReport, path: Path) -> None:
    """Write the issues of ``report`` to ``path``, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps(list(issues_of(report)), indent=1) + "\n", encoding="utf-8", errors="backslashreplace")


def issues_of(report: RunReport) -> Iterator[dict[str, Any]]:
    """Yield an issue for each test that ended badly and for each finding."""
    for fact in bad_tests(report.tests):
        severity = _SEVERITIES.get(fact["outcome"], "major")
        place = (fact["file"], fact["line"]) if fact.get("file") else (fact["test"].partition("::")[0], 1)
        # Not the line, nor the message: a failure that stays is the same issue when the file above it changes.
        identity = f"{fact['test']} {column_of(fact)}"
        yield _issue(f"regional/{fact['outcome'].replace(' ', '-')}", _description(fact), severity, place, identity)
    for defect in findings_of(report.tests):
        check, title = f"regional/{defect.oracle}", str(defect.found["title"])
        yield _issue(check, title, "critical", defect.place, fingerprints_of(defect)["regionalFinding/v1"])


def _description(fact: Facts) -> str:
    said = " ".join(line.strip() for line in message_and_blame(fact, _LINES))
    return f"{fact['test']} on {column_of(fact)}: {said}"


def _issue(check: str, description: str, severity: str, place: tuple[str, int], identity: str) -> dict[str, Any]:
    path, line = place
    return {
        "description": encodable(printable(description))[:_CHARACTERS],
        "check_name": check,
        "fingerprint": hashlib.sha256(f"{check} {identity}".encode(errors="backslashreplace")).hexdigest(),
        "severity": severity,
        "location": {"path": path, "lines": {"begin": max(line, 1)}},
    }
