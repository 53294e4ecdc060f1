"""Check kept findings again: each is fixed, still fails, or is an error."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pytest_regional._base.documents import DocumentError
from pytest_regional._base.text import first_line
from pytest_regional.fuzz.findings.folder import AnyFinding, FindingsFolder
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.testing import regional


class Outcome(Enum):
    """How the replay of one finding ended; the value is the exit status of the command."""

    FIXED = 0
    STILL_FAILS = 1
    ERROR = 2

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Replay:
    """One finding, checked again.

    Attributes:
        path: its file.
        outcome: what the check showed.
        detail: what was seen.
    """

    path: Path
    outcome: Outcome
    detail: str


def replay(paths: Sequence[Path], *, backend: str | None = None, device: str | None = None) -> Iterator[Replay]:
    """Check the findings in ``paths`` (folders, or finding files), one after the other.

    A backend that a finding names as ``module:attribute`` is not imported: the file may be anybody's. It is an error.

    Args:
        paths: where they are.
        backend: check on this backend, not on the one that each was found on; a ``module:attribute`` is imported.
        device: likewise.
    """
    for path in paths:
        for file in FindingsFolder(path).paths() if path.is_dir() else [path]:
            yield _replayed(file, backend, device)


def _replayed(path: Path, backend: str | None, device: str | None) -> Replay:
    try:
        finding = FindingsFolder(path.parent).read(path)
    except DocumentError as error:
        return Replay(path, Outcome.ERROR, str(error))
    if backend is None and ":" in finding.backend:
        asking = f"replay --backend={finding.backend} {shlex.quote(str(path))}"
        said = f"its backend {finding.backend} is not imported unasked: python -m pytest_regional {asking}"
        return Replay(path, Outcome.ERROR, said)
    try:
        # The backend is imported here.
        with regional(backend or finding.backend, device or finding.device, expects_regions=False) as harness:
            finding.check(harness)
    except OracleViolationError as violation:
        other = violation.origin != finding.signature.origin
        note = f" (it was {finding.signature.origin})" if other else ""
        seen = f"{violation.oracle} ({violation.stage}): {violation.origin}{note}"
        return Replay(path, Outcome.STILL_FAILS, seen)
    except Exception as error:  # noqa: BLE001 - said of this finding; the others are checked, and 1 means that one still fails
        return Replay(path, Outcome.ERROR, first_line(error))
    return Replay(path, Outcome.FIXED, f"{finding.signature.oracle} holds")


def exit_status(replays: Sequence[Replay]) -> int:
    """Return 0 where all are fixed, 1 where one still fails, 2 where one could not be checked."""
    return max((one.outcome.value for one in replays), default=0)


def finding_beside(script: Any) -> AnyFinding:
    """Return the finding whose script is ``script``."""
    path = Path(script).with_suffix(".json")
    return FindingsFolder(path.parent).read(path)
