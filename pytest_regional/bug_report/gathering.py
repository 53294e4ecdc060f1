"""Collects what a report says: which script shows the defect, under which changes it stays, and what it comes from."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._base.text import fenced
from pytest_regional.bug_report.known_issues import Known, KnownIssue, Seen
from pytest_regional.bug_report.running import TOO_SLOW, Changes, ScriptRun, ScriptRunner
from pytest_regional.bug_report.scripts import STAGES, Subject
from pytest_regional.harness.process import interpreter_environment, run_interpreter

#: Added to the seeds of the script; random numbers are drawn as in eager, so that inputs alone are others.
RESEEDED = (1, 2, 3)

_COLLECT_ENV_SECONDS = 120.0


@dataclass(frozen=True)
class BugReport:
    """All that a report says.

    Attributes:
        subject: what it is about.
        backend: what the script compiles with; empty where the script says it.
        script: a program that shows the defect.
        shown: what became of it.
        stages: the script with each backend, in order.
        reseeded: the script with other seeds and Inductor's ``fallback_random``.
        same: what ``torch._dynamo.utils.same`` says, with a float64 run as the reference; empty where not measured.
        parity: what the harness's rule says; likewise.
        culprit: what the defect comes from, with the experiments in further lines.
        similar: issues that it may be a duplicate of, the likeliest first.
        environment: what ``torch.utils.collect_env`` prints.
        releases: by release of PyTorch what became of the script.
        regression: in a sentence, between which releases it came.
        trace: the name of the archive with PyTorch's structured trace; empty for none.
    """

    subject: Subject
    backend: str
    script: str
    shown: ScriptRun
    stages: Mapping[str, ScriptRun]
    reseeded: Sequence[ScriptRun] = ()
    same: str = ""
    parity: str = ""
    culprit: str = ""
    similar: Sequence[Known] = ()
    environment: str = ""
    releases: Mapping[str, ScriptRun] | None = None
    regression: str = ""
    trace: str = ""


def gather(
    subject: Subject,
    runner: ScriptRunner,
    *,
    backend: str = "",
    blame_seconds: float = 60.0,
    issues: Sequence[KnownIssue] = (),
    trace: Path | None = None,
) -> BugReport:
    """Run what a report needs, each in a process.

    A script of which one run takes too long is run no more.

    Args:
        subject: what it is about.
        runner: runs scripts with this PyTorch.
        backend: one more backend for the ablation; empty for none.
        blame_seconds: how long to search for what it comes from; 0 to leave that out.
        issues: those that it may be a duplicate of.
        trace: a folder for PyTorch's structured trace.

    Raises:
        RegionalRuntimeError: no script shows it; says what each did.
    """
    compiler, script, shown = _shown(subject, runner)
    names = dict.fromkeys((*STAGES, *filter(None, (compiler, backend))))
    others = [Changes(name) for name in names if name != compiler]
    runs = runner.run_each(script, [*others, *(Changes(seed=seed, fallback_random=True) for seed in RESEEDED)])
    ran = {one.backend: run for one, run in zip(others, runs, strict=False)}
    stages = {name: ran.get(name, shown) for name in names}
    hung = next((run for run in runs if run.outcome == TOO_SLOW), None)
    measured = hung or runner.run(script, Changes(measure=True, blame_seconds=blame_seconds))
    if trace is not None and measured.outcome != TOO_SLOW:
        # By itself: the search for the culprit compiles many times.
        runner.run(script, trace=trace)
    facts = measured.facts
    culprit = "\n".join(filter(None, (facts.get("culprit", ""), facts.get("evidence", "")))) or subject.culprit
    if not culprit and measured.outcome == TOO_SLOW:
        culprit = f"Not searched to the end: a run of the script took too long ({measured.said})."
    seen = Seen(
        # What the signature of a finding says comes before what was measured.
        subject.fails or facts.get("fails", ""),
        (*subject.operators, *facts.get("operators", "").split()),
        subject.features | frozenset(facts.get("features", "").split()),
        culprit.partition("\n")[0],
        subject.name,
    )
    return BugReport(
        subject,
        compiler,
        script,
        shown,
        stages,
        runs[len(others) :],
        str(facts.get("same", "")),
        str(facts.get("parity", "")),
        culprit,
        seen.similar_to(issues),
        _environment(),
    )


def _shown(subject: Subject, runner: ScriptRunner) -> tuple[str, str, ScriptRun]:
    """Return the backend and the plainest script that shows the defect, and what became of it."""
    ended = []
    for backend, scripts in subject.scripts.items():
        if not scripts:
            continue
        runs = runner.run_until_one_shows(scripts, subject.raises)
        ended += [f"{backend or 'script'} {number}: {run.sentence}" for number, run in enumerate(runs)]
        last = runs[-1]
        raised = subject.raises is not None and last.outcome == "raises" and subject.raises in last.said
        if raised or last.outcome in ("wrong", "died"):
            return backend, scripts[len(runs) - 1], last
    raise RegionalRuntimeError(f"{subject.name} is not reproduced here. What each script did:\n" + "\n".join(ended))


def _environment() -> str:
    """Return what ``torch.utils.collect_env`` prints: PyTorch asks for that."""
    module = "torch.utils.collect_env"
    try:
        done = run_interpreter(module, [], interpreter_environment(), _COLLECT_ENV_SECONDS)
    except subprocess.TimeoutExpired:
        # All else of the report is there, and cost minutes.
        return f"python -m {module} took longer than {_COLLECT_ENV_SECONDS:g} s: run it, and put here what it prints"
    lines = done.stdout.strip().splitlines()
    said = ("RuntimeWarning", "Collecting environment information")
    return "\n".join(line for line in lines if not any(one in line for one in said) and line.strip() != "warn(")


#: Where an issue of PyTorch's is read.
ISSUE = "https://github.com/pytorch/pytorch/issues/{}"

#: More of what a script prints says nothing new.
_MOST_LINES = 30


def as_markdown(report: BugReport) -> str:
    """Return the report as Markdown: its first line is the issue's title."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(cell=_cell, shortened=_shortened, fenced=fenced)
    lines = sum(bool(line.strip()) for line in report.script.splitlines())
    return environment.get_template("github.md.j2").render(
        report=report,
        subject=report.subject,
        lines=lines,
        issue=ISSUE,
        culprit=report.culprit.partition("\n")[0],
        evidence=report.culprit.partition("\n")[2],
    )


def _cell(text: str) -> str:
    """Return text for a cell of a table: one line, without what would end the cell or begin a tag."""
    line = " ".join(text.split())
    line = line if len(line) <= 160 else f"{line[:160]} ..."
    return line.replace("|", "\\|").replace("<", "&lt;")


def _shortened(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join([*lines[:_MOST_LINES], "..."] if len(lines) > _MOST_LINES else lines)
