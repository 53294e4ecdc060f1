"""The report of the run that ends: its facts, and where and with what it ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pytest_regional.report.document import RunReport
from pytest_regional.report.facts import Facts, read
from pytest_regional.report.progress import CRASH

if TYPE_CHECKING:
    import pytest

    from pytest_regional._config import Settings


_PACKAGES = ("pytest-regional", "torch", "triton", "pytest", "pytest-xdist", "hypothesis")


def report_of(settings: Settings, facts: Sequence[Facts], lost_workers: int, unfinished: str = "") -> RunReport:
    """Return the report of this run, and, where it did not end as it should have, why: ``unfinished``."""
    return RunReport(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions=dict(_versions()),
        machine={"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
        options={
            "backends": list(settings.backends),
            "devices": list(settings.devices),
            "seed": settings.seed,
            "audit": settings.audit,
        },
        tests=[_with_scripts(fact) for fact in facts],
        lost_workers=lost_workers,
        unfinished=unfinished,
    )


def _with_scripts(fact: Facts) -> Facts:
    """Return ``fact`` with the scripts of its findings, which a report shows where their files are not."""
    if not fact["fuzz"]:
        return fact
    findings = [{**finding, "text": _text_of(Path(finding["script"]))} for finding in fact["fuzz"]["findings"]]
    return {**fact, "fuzz": {**fact["fuzz"], "findings": findings}}


def _text_of(script: Path) -> str:
    return script.read_text(encoding="utf-8") if script.is_file() else ""


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    for package in _PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue


def _write_html(report: RunReport, path: Path) -> None:
    from pytest_regional.report import page

    page.write(report, path)


_WRITERS: dict[str, Callable[[RunReport, Path], None]] = {".json": RunReport.write, ".html": _write_html}

#: Endings of names that a report can have.
ENDINGS = tuple(_WRITERS)


def write_report(report: RunReport, path: Path) -> None:
    """Write ``report`` to ``path``, whose folder is made and whose ending is one of :data:`ENDINGS`."""
    _WRITERS[path.suffix](report, path)


def wrong_name(path: Path) -> str:
    """Return what is wrong with the name of a report; nothing where all is well."""
    return "" if path.suffix in ENDINGS else f"expected a name that ends in {' or '.join(ENDINGS)}"


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
            self._by_test[report.nodeid] = _crashed(known, crash.get("phase", ""), report.longreprtext)

    def process_ends(self) -> None:
        """Take what has begun, in this process, for what ends with it."""
        for fact in self._by_test.values():
            if fact["outcome"] == "not finished":
                fact["outcome"] = "crashed"

    @property
    def facts(self) -> list[Facts]:
        """All facts, in the order in which the tests began."""
        return list(self._by_test.values())


def _crashed(fact: Facts, phase: str, text: str) -> Facts:
    where = f"{text}\nin its {phase}" if phase else text
    return cast("Facts", {**fact, "outcome": "crashed", "failure": where, **({"phase": phase} if phase else {})})
