"""Writes a report as Markdown, in the order of the form that PyTorch's tracker has for ``torch.compile``."""

from __future__ import annotations

from pathlib import Path

from pytest_regional.bug_report.gathering import BugReport
from pytest_regional.bug_report.running import ScriptRun

_FOLDER = Path(__file__).parent
_TEMPLATE = "github.md.j2"

#: Where an issue of PyTorch's is read.
ISSUE = "https://github.com/pytorch/pytorch/issues/{}"

#: More of what a script prints says nothing new.
_MOST_LINES = 30


def as_markdown(report: BugReport) -> str:
    """Return the report as Markdown: its first line is the issue's title."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(cell=_cell, outcome=_outcome, shortened=_shortened, fenced=_fenced)
    lines = sum(bool(line.strip()) for line in report.script.splitlines())
    return environment.get_template(_TEMPLATE).render(
        report=report,
        subject=report.subject,
        lines=lines,
        issue=ISSUE,
        culprit=report.culprit.partition("\n")[0],
        evidence=report.culprit.partition("\n")[2],
    )


def _outcome(run: ScriptRun) -> str:
    """Return the outcome of a script in a cell of a table."""
    return _cell(run.sentence)


def _cell(text: str) -> str:
    """Return text for a cell of a table: one line, without what would end the cell or begin a tag."""
    line = " ".join(text.split())
    line = line if len(line) <= 160 else f"{line[:160]} ..."
    return line.replace("|", "\\|").replace("<", "&lt;")


def _shortened(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join([*lines[:_MOST_LINES], "..."] if len(lines) > _MOST_LINES else lines)


def _fenced(text: str, language: str = "") -> str:
    """Return a code block; its fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.strip()}\n{fence}"
