"""Results as a file that a run adds to, so that the detection can be done in pieces."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.verdict import Alarm, Verdict

HALVES = ("suites", "fuzz")


@dataclass
class Results:
    """What is known so far.

    Attributes:
        file: where it is kept; None for nowhere.
        versions: of what the verdicts were found with, by half.
        verdicts: by mutant, then by half.
        alarms: what was said of backends that are right, by backend, then by half; an empty list is what is wanted.
        asked: how many tests and programs those were, likewise.
    """

    file: Path | None = None
    versions: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, dict[str, Verdict]] = field(default_factory=dict)
    alarms: dict[str, dict[str, list[Alarm]]] = field(default_factory=dict)
    asked: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path | None) -> Results:
        """Return what ``file`` holds, or nothing yet."""
        if file is None or not file.exists():
            return cls(file)
        data = json.loads(file.read_text())
        verdicts = {
            name: {half: Verdict.from_data(verdict) for half, verdict in halves.items()}
            for name, halves in data["verdicts"].items()
        }
        alarms = {
            name: {half: [Alarm(**alarm) for alarm in found] for half, found in halves.items()}
            for name, halves in data["alarms"].items()
        }
        return cls(file, data["versions"], verdicts, alarms, data["asked"])

    def note(self, mutant: str, half: str, verdict: Verdict) -> None:
        """Keep a verdict."""
        self.verdicts.setdefault(mutant, {})[half] = verdict
        self.write()

    def note_right(self, backend: str, half: str, found: list[Alarm], asked: int) -> None:
        """Keep what was said of a backend that is right."""
        self.alarms.setdefault(backend, {})[half] = found
        self.asked.setdefault(backend, {})[half] = asked
        self.write()

    def write(self) -> None:
        """Write everything to the file, if there is one."""
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self.as_data(), indent=1) + "\n")

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "versions": self.versions,
            "verdicts": {
                name: {half: verdict.as_data() for half, verdict in halves.items()}
                for name, halves in self.verdicts.items()
            },
            "alarms": {
                name: {half: [vars(alarm) for alarm in found] for half, found in halves.items()}
                for name, halves in self.alarms.items()
            },
            "asked": self.asked,
        }
