"""Findings of fuzz tests in SARIF 2.1.0, as GitHub's code scanning and other viewers read it.

Each oracle is a rule. A finding has the same fingerprint in every run and on every machine: what is the same defect is
one alert, which closes when a run does not find it any more.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pytest_regional._files import dumps
from pytest_regional._text import encodable, printable
from pytest_regional.report.document import RunReport
from pytest_regional.report.problems import FoundDefect, findings_of, kept_code

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def write(report: RunReport, path: Path) -> None:
    """Write the findings of ``report`` to ``path``, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps(log_of(report), indent=1) + "\n", encoding="utf-8", errors="backslashreplace")


def log_of(report: RunReport) -> dict[str, Any]:
    """Return the log as plain data."""
    findings = findings_of(report.tests)
    rules = {defect.oracle: defect for defect in findings}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver([_rule(name, defect) for name, defect in sorted(rules.items())])},
                "invocations": [_invocation(report)],
                "columnKind": "utf16CodeUnits",
                "results": [_result(defect, sorted(rules)) for defect in findings],
            }
        ],
    }


def _driver(rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": "pytest-regional", "version": importlib.metadata.version("pytest-regional"), "rules": rules}


def _invocation(report: RunReport) -> dict[str, Any]:
    # A run that did not finish has not looked for all that an earlier one found.
    ended = {"exitCodeDescription": printable(report.unfinished)} if report.unfinished else {}
    return {"executionSuccessful": not report.unfinished, **ended}


def _rule(name: str, defect: FoundDefect) -> dict[str, Any]:
    said = str(defect.found.get("rule", "")) or f"A program violates the oracle {name}."
    text = f"{said} The oracles are explained in docs/fuzzing-oracles.md of pytest-regional."
    return {
        "id": name,
        "shortDescription": {"text": f"Oracle {name}"},
        "fullDescription": {"text": said},
        "help": {"text": text},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["torch.compile", "fuzzing"]},
    }


def _result(defect: FoundDefect, rules: Sequence[str]) -> dict[str, Any]:
    fact, script = defect.fact, defect.script
    rerun = f"\nrerun: {fact['rerun']}" if fact.get("rerun") else ""
    title = encodable(printable(str(defect.found["title"])))
    related = [(script, 1, "The script that shows it"), *_code_of(defect)]
    return {
        "ruleId": defect.oracle,
        "ruleIndex": rules.index(defect.oracle),
        "level": "error",
        "message": {"text": f"{title}\nScript: {script}{rerun}"},
        "locations": [_location(*defect.place)],
        "relatedLocations": [
            {"id": number, **_location(path, line), "message": {"text": text}}
            for number, (path, line, text) in enumerate(related, 1)
        ],
        "partialFingerprints": fingerprints_of(defect),
        "properties": {
            "backend": fact["backend"],
            "device": fact["device"],
            "test": fact["test"],
            "hits": defect.hits,
        },
    }


def _code_of(defect: FoundDefect) -> Iterator[tuple[str, int, str]]:
    """Yield lines of the code that was generated for the program of a finding, if its file is kept."""
    for one in kept_code(defect.fact):
        if one.get("finding") == defect.found["name"]:
            yield one["file"], one["line"], f"Generated code: {one['what']}"


def _location(path: str, line: int) -> dict[str, Any]:
    # A path that is not of the repository is an address by itself.
    artifact = {"uri": quote(path)} if path.startswith("/") else {"uri": quote(path), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": max(line, 1)}}}


def fingerprints_of(defect: FoundDefect) -> dict[str, str]:
    """Return what identifies a finding: backend and signature, of which its name is made, and neither line nor text.

    GitHub looks at the first of the two alone.
    """
    digest = hashlib.sha256(defect.name.encode(errors="backslashreplace")).hexdigest()
    return {"primaryLocationLineHash": f"{digest[:16]}:1", "regionalFinding/v1": digest}
