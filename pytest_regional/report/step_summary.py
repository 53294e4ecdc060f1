"""The report as Markdown: the summary of a GitHub job, a comment on a merge request.

GitHub shows the summary of a step on the page of the run, up to 1 MiB of it; one that is larger is not shown at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_regional._base.text import encodable, fenced, plural, printable
from pytest_regional.report.ci import MOST, bad_tests, blame_of, findings_of, message_of, title_of
from pytest_regional.report.document import BAD, RunReport, advice, rows_of, slowest_of, totals_of
from pytest_regional.report.facts import Facts

#: What GitHub shows of a step, in bytes of UTF-8.
LIMIT = 1024 * 1024

#: For the line that says what was cut.
_RESERVE = 500

#: Of a failure, lines and characters; of a run, code generations, and tests in a list that is cut.
_LINES, _CHARACTERS, _SLOWEST = 40, 4_000, 5


def append_summary(report: RunReport, environment: Mapping[str, str]) -> None:
    """Add ``report`` to the summary of the step that runs, as far as there is room for it; nothing outside of a job.

    It says how many failures are no annotations.
    """
    if name := environment.get("GITHUB_STEP_SUMMARY"):
        more = len(bad_tests(report.tests)) - MOST
        note = f"GitHub shows {MOST} annotations of a step: {plural(more, 'more failure')} listed only here."
        room = LIMIT - (Path(name).stat().st_size if Path(name).is_file() else 0)
        with open(name, "a", encoding="utf-8") as file:
            file.write(summary_of(report, room, note if more > 0 else ""))


def summary_of(report: RunReport, room: int = LIMIT, note: str = "") -> str:
    """Return the summary, ``room`` bytes at most.

    What does not fit is left out from the end, and a line says how much: first failures, of which the worst stand
    first, then findings. Empty where there is no room for a heading.
    """
    shown: list[str] = []
    slowest = [
        f"| {seconds:.2f} | {_text(what)} | {_code(test)} |"
        for seconds, what, test in slowest_of(report.tests, _SLOWEST)
    ]
    heading = ["\n### Slowest compiles\n\n| seconds | what | test |\n|---:|---|---|"] if slowest else []
    tail = "\n".join([*heading, *slowest])
    left = room - _RESERVE - len(tail.encode())
    cut: dict[str, int] = {}
    for what, block in _blocks(report, note):
        size = len(block.encode()) + 1
        if cut or size > left:
            cut[what] = cut.get(what, 0) + 1
        else:
            shown.append(block)
            left -= size
    if not shown:
        return ""
    if cut:
        missing = ", ".join(plural(count, what) for what, count in cut.items() if what)
        shown.append(f"\nNot shown here, because there is no more room: {missing}. The JSON report has all of it.\n")
    return "\n".join([*shown, tail]) + "\n"


def _blocks(report: RunReport, note: str) -> Iterator[tuple[str, str]]:
    """Yield what each block is called if it is cut, and the block; the most important first. Headings have no name."""
    bad, count = bad_tests(report.tests), len(report.tests)
    verdict = f"{len(bad)} of {plural(count, 'test')} failed" if bad else f"{plural(count, 'test')}, none failed"
    lines = [f"## Regional conformance: {verdict}", ""]
    if report.unfinished:
        lines += [f"**The run did not finish:** {_text(report.unfinished)}", ""]
    if report.lost_workers:
        lines += [f"**{plural(report.lost_workers, 'worker')} died:** the totals are incomplete.", ""]
    about = [f"{name} {report.versions[name]}" for name in ("torch", "triton") if name in report.versions]
    about += [f"seed {report.options['seed']}"] if "seed" in report.options else []
    yield "", "\n".join([*lines, _text(", ".join(about)), ""])
    if report.tests:
        yield "table", "\n".join(_table(report.tests))
        yield "line of totals", f"\n{_text(totals_of(report.tests))}\n"
    if note:
        yield "note", f"{_text(note)}\n"
    lines = [f"- {_text(line)}" for line in advice(report.tests)]
    if lines:
        yield "list", "\n".join([*lines, ""])
    findings = findings_of(report.tests)
    if findings:
        yield "", f"### {plural(len(findings), 'finding')}\n"
    for defect in findings:
        hits = f", {plural(defect.hits, 'hit')}" if defect.hits else ""
        title = _text(str(defect.found["title"]))
        yield "finding", f"- **{_text(defect.name)}**{hits}: {_code(defect.script)}<br>{title}"
    if bad:
        yield "", f"\n### {plural(len(bad), 'failure')}\n"
    for fact in bad:
        yield "failure", "\n".join(_failure(fact))


def _table(facts: Sequence[Facts]) -> Iterator[str]:
    columns, rows = rows_of(facts)
    yield f"| suite | {' | '.join(map(_text, columns))} |"
    yield f"|---|{'---|' * len(columns)}"
    for name, cells in rows:
        shown = (f"**{_text(cell)}**" if any(word in cell for word in BAD) else _text(cell) for cell in cells)
        yield f"| {_text(name) if name == 'all' else _code(name)} | {' | '.join(shown)} |"


def _failure(fact: Facts) -> Iterator[str]:
    yield f"<details><summary>{_code(title_of(fact))}</summary>"
    yield ""
    for sentence in blame_of(fact):
        yield f"**To blame:** {_text(sentence)}\n"
    yield fenced(encodable(printable(message_of(fact, _LINES)[:_CHARACTERS])), "text")
    if fact.get("file"):
        yield f"\n{_code(fact['file'])}, line {fact['line']}"
    if fact.get("rerun"):
        yield "\nTo run it again:\n"
        yield fenced(encodable(printable(fact["rerun"])), "console")
    yield "\n</details>\n"


#: What Markdown, or GitHub's kind of it, gives a meaning: markup, mentions, references, formulas.
_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~&@$!]")


def _text(text: str) -> str:
    """Return ``text`` for a line of Markdown, in which it means itself."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", encodable(printable(" ".join(text.split()))))


def _code(text: str) -> str:
    """Return ``text`` as code, for a line of Markdown and for one of HTML."""
    return f"<code>{_text(text)}</code>"
