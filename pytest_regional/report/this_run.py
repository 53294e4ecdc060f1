"""The report of the run that ends: its facts, and where and with what it ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pytest_regional._torch.cpp import described_processor
from pytest_regional.report.document import RunReport
from pytest_regional.report.facts import Facts, read, within_repository
from pytest_regional.report.unfinished import CRASH

if TYPE_CHECKING:
    import pytest

    from pytest_regional._config import Settings


_PACKAGES = ("pytest-regional", "torch", "triton", "pytest", "pytest-xdist", "hypothesis")


def report_of(
    settings: Settings,
    root: Path,
    facts: Sequence[Facts],
    goldens: Sequence[Mapping[str, str]],
    lost_workers: int,
    unfinished: str = "",
) -> RunReport:
    """Return the report of this run.

    Args:
        settings: of the run.
        root: pytest's root.
        facts: of each marked test.
        goldens: what became of each golden.
        lost_workers: workers of pytest-xdist that died.
        unfinished: why it did not end as it should have; empty where it did.
    """
    return RunReport(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions=dict(_versions()),
        machine={
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "model": _model(),
        },
        options={
            "backends": list(settings.backends),
            "devices": list(settings.devices),
            "seed": settings.seed,
            "audit": settings.audit,
        },
        tests=[_with_scripts(fact, root) for fact in facts],
        lost_workers=lost_workers,
        unfinished=unfinished,
        goldens=list(goldens),
    )


def _model() -> str:
    """Return what the processor calls itself; empty where Linux does not say it."""
    named = (line.partition(":")[2].strip() for line in described_processor() if line.startswith("model name"))
    return next(named, "")


def _with_scripts(fact: Facts, root: Path) -> Facts:
    """Return ``fact`` with the scripts of its findings, which a report shows where their files are not."""
    if not fact["fuzz"]:
        return fact
    findings = [_with_script(finding, root) for finding in fact["fuzz"]["findings"]]
    return {**fact, "fuzz": {**fact["fuzz"], "findings": findings}}


def _with_script(finding: dict[str, Any], root: Path) -> dict[str, Any]:
    script = Path(finding["script"])
    return {**finding, "text": _text_of(script), "file": within_repository(script, root)}


def _text_of(script: Path) -> str:
    return script.read_text(encoding="utf-8") if script.is_file() else ""


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    for package in _PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue


class CollectedFacts:
    """Facts by test. A test has some from its setup on, so that one that takes its process with it is known too."""

    def __init__(self) -> None:
        self._by_test: dict[str, Facts] = {}
        self._ended: set[str] = set()

    def note(self, report: pytest.TestReport) -> None:
        """Take what rides on ``report``, of whatever phase, from whatever process."""
        if report.when == "teardown":
            self._ended.add(report.nodeid)
        elif report.when == "setup":
            self._ended.discard(report.nodeid)
        fact = read(report)
        if fact is None:
            self._note_other(report)
        elif report.when == "call" or report.outcome != "passed":
            self._by_test[report.nodeid] = fact
        elif report.when == "setup":
            fact["outcome"] = "not finished"
            self._by_test[report.nodeid] = fact

    def _note_other(self, report: pytest.TestReport) -> None:
        # What pytest-xdist reports in place of a worker that died has no facts, and no phase of pytest's.
        if report.when in ("setup", "call", "teardown") or report.outcome != "failed":
            return
        crash: dict[str, Any] = getattr(report, CRASH, {})
        known = self._by_test.get(report.nodeid)
        if known is None and "facts" in crash:  # in its setup, before which nothing was reported
            known = cast("Facts", crash["facts"])
        if known is not None and (crash or report.nodeid not in self._ended):
            self._by_test[report.nodeid] = _crashed(known, crash.get("phase", ""), str(report.longrepr))

    def process_ends(self) -> None:
        """Take what has begun, in this process, for what ends with it."""
        for fact in self._by_test.values():
            if fact["outcome"] == "not finished":
                fact["outcome"] = "crashed"

    def of(self, test: str) -> Facts | None:
        """Return the facts of the test with that id, if it is a marked one that began."""
        return self._by_test.get(test)

    @property
    def facts(self) -> list[Facts]:
        """All facts, in the order in which the tests began."""
        return list(self._by_test.values())


def _crashed(fact: Facts, phase: str, text: str) -> Facts:
    where = f"{text}\nin its {phase}" if phase else text
    return cast(
        "Facts",
        {**fact, "outcome": "crashed", "failure": where, "message": where, **({"phase": phase} if phase else {})},
    )
