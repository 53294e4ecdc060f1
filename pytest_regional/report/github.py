"""What the page of a GitHub run shows: annotations at failing lines, and the summary of the job.

Annotations are workflow commands, lines on stdout. GitHub documents them in "Workflow commands for GitHub Actions" and
publishes no schema. The rules and limits here were written from knowledge of that page, and the tests repeat them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_regional._text import encodable, plural, printable
from pytest_regional.report import step_summary
from pytest_regional.report.document import RunReport
from pytest_regional.report.facts import Facts
from pytest_regional.report.problems import bad_tests, kept_code, message_and_blame, title_of

#: GitHub shows that many errors of a step.
MOST = 10

#: Of what went wrong, lines and characters of each; an annotation is 64 KB at most, and its title 255 characters.
_LINES, _CHARACTERS, _TITLE = 12, 2_000, 255

#: Lines of generated code that are named; the first are the most likely ones.
_CODE_LINES = 3


def annotations_of(facts: Sequence[Facts]) -> Iterator[str]:
    """Yield a line for each test that ended badly, the worst first, as many as GitHub shows."""
    for fact in bad_tests(facts)[:MOST]:
        yield _command(_properties(fact), _message(fact))


def append_summary(report: RunReport, environment: Mapping[str, str]) -> None:
    """Add ``report`` to the summary of the step that runs; nothing outside of a job.

    It says how many failures are no annotations.

    Raises:
        OSError: the file cannot be written; names it.
    """
    if name := environment.get("GITHUB_STEP_SUMMARY"):
        more = len(bad_tests(report.tests)) - MOST
        note = f"GitHub shows {MOST} annotations of a step: {plural(more, 'more failure')} listed only here."
        step_summary.append(report, Path(name), note if more > 0 else "")


def _properties(fact: Facts) -> dict[str, str]:
    place = {"file": fact["file"], "line": str(fact["line"])} if fact.get("file") else {}
    return {**place, "title": title_of(fact)[:_TITLE]}


def _message(fact: Facts) -> str:
    rerun = [f"rerun: {fact['rerun']}"] if fact.get("rerun") else []
    code = [f"generated code: {one['file']}:{one['line']}: {one['what']}" for one in kept_code(fact)[:_CODE_LINES]]
    return "\n".join([*(line[:_CHARACTERS] for line in (*message_and_blame(fact, _LINES), *code)), *rerun])


def _command(properties: dict[str, str], message: str) -> str:
    shown = ",".join(f"{name}={_escaped(value, in_property=True)}" for name, value in properties.items())
    return f"::error {shown}::{_escaped(message)}"


def _escaped(text: str, *, in_property: bool = False) -> str:
    """Return ``text`` as a workflow command takes it: the percent sign first, or it would be escaped twice."""
    escapes = {"%": "%25", "\r": "%0D", "\n": "%0A", **({":": "%3A", ",": "%2C"} if in_property else {})}
    plain = encodable(printable(text))
    return "".join(escapes.get(char, char) for char in plain)
