"""Where a worker keeps findings, and programs that reached something new: in the store, for all workers."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.folder import AnyFinding, FindingError, FindingsFolder, from_data, to_data
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.workers.member import Member


class StoreFindings:
    """The findings of a campaign's store, and those that were known before.

    Args:
        member: this worker.
        scratch: a directory for scripts that are tried.
    """

    def __init__(self, member: Member, scratch: Path) -> None:
        self._member, self._scratch = member, scratch
        self._read: dict[tuple[str, int], AnyFinding | None] = {}

    def readable(self) -> Iterator[AnyFinding]:
        """Yield them; what a stranger may have put there is left out."""
        for name, version, data in self._member.known_findings():
            if (name, version) not in self._read:
                self._read[name, version] = finding_in(data)
            if (finding := self._read[name, version]) is not None:
                yield finding

    def save_shown(self, finding: AnyFinding, *, run: bool = True) -> Path:
        """Keep a finding in the store; return the name that its script will have."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            script = FindingsFolder(Path(folder)).save_shown(finding, run=run)
            text = script.read_text(encoding="utf-8")
        data = {"finding": to_data(finding), "script": text, "title": finding.title, "size": finding.size}
        self._member.keep(finding.name, data)
        return Path(f"{finding.name}.py")


def finding_in(data: Any) -> AnyFinding | None:
    """Return the finding that an entry of the store holds; None where it holds none."""
    try:
        return from_data(data["finding"])
    except (FindingError, KeyError, TypeError):
        return None


class StoreCorpus:
    """The kept programs of one mode in a campaign's store; :mod:`~pytest_regional.fuzz.workers.pruning` deletes some.

    Args:
        member: this worker.
        mode: in which they reach what they reach.
    """

    def __init__(self, member: Member, mode: str) -> None:
        self._member, self._mode = member, mode

    def programs(self, part: int = 0, parts: int = 1) -> Iterator[Program]:
        """Yield none: what others keep is adopted, not checked again."""
        return iter(())

    def save(self, program: Program, keys: Collection[str]) -> None:
        """Keep a program for all workers."""
        data = {"mode": self._mode, "program": files.to_data(program), "size": len(program.steps), "keys": sorted(keys)}
        self._member.keep_program(f"{self._mode}-{program.identity}", data)

    def drop(self, program: Program) -> None:
        """Do nothing: the program may be the smallest one for what another worker knows of."""


__all__ = ["StoreCorpus", "StoreFindings", "finding_in"]
