"""The report of the run that ends: its facts, and where and with what it ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_regional.report.document import RunReport
from pytest_regional.report.facts import Facts

if TYPE_CHECKING:
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


__all__ = ["report_of"]
