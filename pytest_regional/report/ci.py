"""What a CI service shows of a run: tests that ended badly, the worst first, and findings, each once.

In three forms: annotations at failing lines (workflow commands of GitHub), SARIF 2.1.0 for code scanning, and GitLab's
code quality report. GitHub and GitLab publish no schema of the first and the last: rules and limits were written from
knowledge of their pages, and the tests repeat them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pytest_regional._base.text import encodable, printable
from pytest_regional.report.document import BAD, OUTCOMES, RunReport, column_of
from pytest_regional.report.facts import CodeLine, Facts


def bad_tests(facts: Iterable[Facts]) -> list[Facts]:
    """Return the facts of tests that ended badly: the worst ending first, in one ending by name."""
    bad = [fact for fact in facts if fact["outcome"] in BAD]
    return sorted(bad, key=lambda fact: (OUTCOMES.index(fact["outcome"]), fact["test"], column_of(fact)))


def title_of(fact: Facts) -> str:
    """Return what ended how, in a line."""
    phase = fact.get("phase", "call")
    where = "" if phase == "call" else f" in its {phase}"
    return f"{fact['test']} on {column_of(fact)}: {fact['outcome']}{where}"


def blame_of(fact: Facts) -> list[str]:
    """Return what is to blame, a sentence each; nothing where it was not looked for or not found."""
    sentences = [one["sentence"] for one in fact.get("culprits", ())]
    return sentences or [one for one in (fact.get("blame"),) if one]


def kept_code(fact: Facts) -> list[CodeLine]:
    """Return the lines of generated code that the failure concerns, of files in ``--regional-report=DIR/`` alone.

    Others are in pytest's directory for temporary files, where nobody finds them who reads a report elsewhere.
    """
    return [one for one in fact.get("generated_code", ()) if "file" in one]


def message_of(fact: Facts, lines: int) -> str:
    """Return the first ``lines`` of what went wrong."""
    said = (fact.get("message") or fact["failure"] or fact["outcome"]).strip().splitlines()
    return "\n".join([*said[:lines], *(["..."] if len(said) > lines else [])])


def message_and_blame(fact: Facts, lines: int) -> list[str]:
    """Return the first ``lines`` of what went wrong, and what is to blame if they do not say it."""
    said = message_of(fact, lines)
    return [*said.splitlines(), *(f"to blame: {sentence}" for sentence in blame_of(fact) if sentence not in said)]


@dataclass(frozen=True)
class FoundDefect:
    """A finding of a run, of all processes and tests that met it.

    Attributes:
        name: of its files, the same in every run.
        found: the smallest one's data, as a report holds it.
        unit: what was checked: ``program`` or ``sequence``.
        hits: how often it was met.
        fact: of the fuzz test that found it.
    """

    name: str
    found: dict[str, Any]
    unit: str
    hits: int
    fact: Facts

    @property
    def oracle(self) -> str:
        """The oracle that is violated; reports of earlier versions do not say it."""
        return str(self.found.get("oracle", "finding"))

    @property
    def script(self) -> str:
        """The path of its script, relative to the repository where it is in it."""
        return str(self.found.get("file") or self.found["script"])

    @property
    def place(self) -> tuple[str, int]:
        """File and line to show it at: of its fuzz test, or its script where that test is not in the repository."""
        return (self.fact["file"], self.fact["line"]) if self.fact.get("file") else (self.script, 1)


def findings_of(facts: Iterable[Facts]) -> Sequence[FoundDefect]:
    """Return the findings of fuzz tests by name; shards may find the same, of which the smallest is kept."""
    hits: Counter[str] = Counter()
    smallest: dict[str, tuple[dict[str, Any], Facts]] = {}
    for fact in facts:
        campaign = fact["fuzz"] or {"findings": ()}
        hits.update(campaign.get("hits", {}))
        for found in campaign["findings"]:
            known = smallest.get(found["name"])
            if known is None or found.get("size", 0) < known[0].get("size", 0):
                smallest[found["name"]] = (found, fact)
    return [
        FoundDefect(name, found, (fact["fuzz"] or {}).get("unit", "program"), hits[name], fact)
        for name, (found, fact) in sorted(smallest.items())
    ]


#: GitHub shows that many errors of a step.
MOST = 10

#: Of what went wrong, lines and characters of each; an annotation is 64 KB at most, and its title 255 characters.
_LINES, _CHARACTERS, _TITLE = 12, 2_000, 255

#: Lines of generated code that are named; the first are the most likely ones.
_CODE_LINES = 3


def annotations_of(facts: Sequence[Facts]) -> Iterator[str]:
    """Yield a line for each test that ended badly, the worst first, as many as GitHub shows."""
    for fact in bad_tests(facts)[:MOST]:
        place = {"file": fact["file"], "line": str(fact["line"])} if fact.get("file") else {}
        properties = {**place, "title": title_of(fact)[:_TITLE]}
        shown = ",".join(f"{name}={_escaped(value, in_property=True)}" for name, value in properties.items())
        code = [f"generated code: {one['file']}:{one['line']}: {one['what']}" for one in kept_code(fact)[:_CODE_LINES]]
        lines = [line[:_CHARACTERS] for line in (*message_and_blame(fact, _LINES), *code)]
        lines += [f"rerun: {fact['rerun']}"] if fact.get("rerun") else []
        message = "\n".join(lines)
        yield f"::error {shown}::{_escaped(message)}"


def _escaped(text: str, *, in_property: bool = False) -> str:
    """Return ``text`` as a workflow command takes it: the percent sign first, or it would be escaped twice."""
    escapes = {"%": "%25", "\r": "%0D", "\n": "%0A", **({":": "%3A", ",": "%2C"} if in_property else {})}
    plain = encodable(printable(text))
    return "".join(escapes.get(char, char) for char in plain)


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_of(report: RunReport) -> dict[str, Any]:
    """Return the log of the findings of ``report`` as plain data."""
    findings = findings_of(report.tests)
    rules = {defect.oracle: defect for defect in findings}
    driver = {
        "name": "pytest-regional",
        "version": importlib.metadata.version("pytest-regional"),
        "rules": [_rule(name, defect) for name, defect in sorted(rules.items())],
    }
    # A run that did not finish has not looked for all that an earlier one found.
    ended = {"exitCodeDescription": printable(report.unfinished)} if report.unfinished else {}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [{"executionSuccessful": not report.unfinished, **ended}],
                "columnKind": "utf16CodeUnits",
                "results": [_result(defect, sorted(rules)) for defect in findings],
            }
        ],
    }


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
    related = [(script, 1, "The script that shows it")]
    related += [
        (one["file"], one["line"], f"Generated code: {one['what']}")
        for one in kept_code(fact)
        if one.get("finding") == defect.found["name"]
    ]
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


#: Of what went wrong, lines, and characters of a description.
_ISSUE_LINES, _ISSUE_CHARACTERS = 3, 500

#: A process that died is worse than a test that failed.
_SEVERITIES = {"crashed": "blocker", "not finished": "blocker", "error": "critical", "failed": "critical"}


def issues_of(report: RunReport) -> Iterator[dict[str, Any]]:
    """Yield an issue for each test that ended badly and for each finding."""
    for fact in bad_tests(report.tests):
        severity = _SEVERITIES.get(fact["outcome"], "major")
        place = (fact["file"], fact["line"]) if fact.get("file") else (fact["test"].partition("::")[0], 1)
        # Not the line, nor the message: a failure that stays is the same issue when the file above it changes.
        identity = f"{fact['test']} {column_of(fact)}"
        said = " ".join(line.strip() for line in message_and_blame(fact, _ISSUE_LINES))
        description = f"{fact['test']} on {column_of(fact)}: {said}"
        yield _issue(f"regional/{fact['outcome'].replace(' ', '-')}", description, severity, place, identity)
    for defect in findings_of(report.tests):
        check, title = f"regional/{defect.oracle}", str(defect.found["title"])
        yield _issue(check, title, "critical", defect.place, fingerprints_of(defect)["regionalFinding/v1"])


def _issue(check: str, description: str, severity: str, place: tuple[str, int], identity: str) -> dict[str, Any]:
    path, line = place
    return {
        "description": encodable(printable(description))[:_ISSUE_CHARACTERS],
        "check_name": check,
        "fingerprint": hashlib.sha256(f"{check} {identity}".encode(errors="backslashreplace")).hexdigest(),
        "severity": severity,
        "location": {"path": path, "lines": {"begin": max(line, 1)}},
    }
