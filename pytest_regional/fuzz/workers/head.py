"""Runs a campaign with workers of one engine: starts and replaces them, passes on what they find, and ends them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from pytest_regional._errors import RegionalError
from pytest_regional._files import write_whole
from pytest_regional.fuzz.findings import strict_json
from pytest_regional.fuzz.findings.strict_json import Field, MalformedError
from pytest_regional.fuzz.store import Store
from pytest_regional.fuzz.workers.assignment import CANNOT, DONE, MOST_BYTES, Assignment
from pytest_regional.fuzz.workers.deaths import declare_dead
from pytest_regional.fuzz.workers.engines import Ending, Engine
from pytest_regional.fuzz.workers.plan import Plan
from pytest_regional.fuzz.workers.status import CampaignStatus, CrashRow, FoundRow, StatusReader

#: Seconds between two looks at the workers, and at the store.
LOOK, READ = 0.2, 2.0

#: A worker whose record has not changed for so many seconds is dead; it changes every five.
SILENT_SECONDS = 60.0

#: A worker that checks one program for so many times the limit is killed: the limit itself could not end the check.
STUCK_FACTOR, STUCK_SECONDS = 3.0, 300.0

#: A campaign ends after so many deaths in a row, for each worker, of workers that had checked nothing.
DEATHS_IN_A_ROW = 3


class WorkersError(RegionalError, RuntimeError):
    """Workers cannot do what they are to do; says why."""


class Screen(Protocol):
    """Shows a campaign while it goes on."""

    def shows(self, status: CampaignStatus) -> None:
        """Show how it is."""

    def found(self, row: FoundRow, script: Path) -> None:
        """Show a new finding."""

    def crashed(self, row: CrashRow, part: str, script: Path) -> None:
        """Show that a worker died of a program."""

    def says(self, text: str) -> None:
        """Show a line of text."""


@dataclass
class Outcome:
    """What came of a campaign, as far as one command ran it.

    Attributes:
        status: how the campaign is.
        findings: names of those that were new.
        crashes: of workers, that were new.
        interrupted: whether somebody ended it.
    """

    status: CampaignStatus
    findings: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def exit_status(self) -> int:
        """0 where nothing is new, or else 1."""
        return int(bool(self.findings or self.crashes))


class Head:
    """Runs a campaign.

    Args:
        store: holds the campaign.
        url: of the store, as workers open it.
        plan: of the campaign.
        engine: starts workers.
        screen: shows how it goes.
        findings: the directory of findings; known ones are not reduced again, new ones are written there.
        scratch: a directory for those in which workers write.
        seconds: for how long; None for no limit.
        python_path: directories in which workers find modules of backends, too.
        memory: bytes beyond which a worker is replaced.
    """

    def __init__(
        self,
        store: Store,
        url: str,
        plan: Plan,
        engine: Engine,
        screen: Screen,
        *,
        findings: Path,
        scratch: Path,
        seconds: float | None = None,
        python_path: Sequence[str] = (),
        memory: int = MOST_BYTES,
    ) -> None:
        self._store, self._url, self._plan = store, url, plan
        self._engine, self._screen = engine, screen
        self._findings, self._scratch, self._python_path = findings, scratch, tuple(python_path)
        self._memory = memory
        self._until = None if seconds is None else time.monotonic() + seconds
        self._reader = StatusReader(store, plan)
        self._running: set[str] = set()
        self._seen: dict[str, tuple[int, float]] = {}
        self._shown: set[tuple[str, int]] = set()
        self._deaths = 0
        self._stop = threading.Event()
        self._stopping = False

    def run(self, workers: int) -> Outcome:
        """Run it with so many workers, and at least one for each environment; return what came of it.

        Raises:
            WorkersError: workers cannot do what they are to do.
            StoreError: the store cannot be used any more.
        """
        status = self._reader.read()
        # What no command has written yet was found just before one died.
        written = self._store.names("written")
        before = {row.name for row in status.findings if row.name in written}
        before |= {row.name for row in status.crashes if row.name in written}
        self._shown = {(row.name, row.size) for row in status.findings if row.name in written}
        self._shown |= {(row.name, 0) for row in status.crashes if row.name in written}
        checked = status.checked + sum(row.name in before for row in status.crashes)
        outcome = Outcome(status)
        self._pass_on_known()
        with self._signals(), contextlib.closing(self._engine):
            for number in range(max(workers, len(self._plan.environments))):
                environments = self._plan.environments
                self._start(f"{_host()}-{os.getpid()}-{number}", environments[number % len(environments)])
            read = 0.0
            while self._running:
                self._stop.wait(LOOK)
                for ending in self._engine.endings():
                    self._settle(ending)
                if not self._stopping and (self._stop.is_set() or self._is_over):
                    self._stopping = True
                    if self._stop.is_set():
                        self._screen.says("ending behind the programs at hand; once more ends it at once")
                    self._engine.stop()
                if time.monotonic() - read >= READ or not self._running:
                    outcome.status = self._look()
                    read = time.monotonic()
        outcome.status = self._look()
        outcome.interrupted = self._stop.is_set()
        outcome.findings = [row.name for row in outcome.status.findings if row.name not in before]
        outcome.crashes = [row.name for row in outcome.status.crashes if row.name not in before]
        self._check_that_something_happened(outcome, checked)
        return outcome

    def _check_that_something_happened(self, outcome: Outcome, before: int) -> None:
        """Raise an error where no program was checked, and somebody may take that for a success."""
        after = outcome.status.checked + len(outcome.status.crashes)
        if outcome.interrupted or self._plan.programs == 0 or after > before:
            return
        if self._plan.programs is None or not after:
            raise WorkersError("no program was checked in this time, of which starting workers takes a part: give more")

    def _pass_on_known(self) -> None:
        """Put what is known on this machine into the store, for workers on others, who see whether it is a finding."""
        there = self._store.names("known")
        for path in sorted(self._findings.glob("*.json")):
            if path.stem not in there:
                with contextlib.suppress(MalformedError):  # no finding: those who read the directory say so
                    self._store.write("known", path.stem, {"finding": strict_json.read(path)}, version=0)

    @property
    def _is_over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Have the first SIGINT or SIGTERM end the campaign behind the programs at hand, and the second at once."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt
            self._stop.set()

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self, place: str, environment: str) -> None:
        token = secrets.token_hex(4)
        name = f"{place}-{token}"
        seconds = None if self._until is None else max(self._until - time.monotonic(), 0.0)
        self._engine.start(
            Assignment(
                self._url,
                self._plan,
                name,
                place,
                environment,
                self._scratch / token,  # short: paths of sockets in it have at most 107 characters (unix(7))
                seconds,
                self._python_path,
                self._memory,
            )
        )
        self._running.add(name)

    def _settle(self, ending: Ending) -> None:
        """Deal with a worker that ended."""
        assignment = ending.assignment
        self._running.discard(assignment.name)
        if ending.status == CANNOT:
            raise WorkersError(f"a worker in environment {assignment.environment!r}: {ending.says.strip()}")
        if not ending.by_itself:
            self._died(ending)
        if ending.status != DONE and not self._stopping:
            self._start(assignment.place, assignment.environment)

    def _died(self, ending: Ending) -> None:
        assignment = ending.assignment
        status = self._reader.read().workers.get(assignment.name)
        checked = sum(one.examples for one in status.totals.values()) if status else 0
        self._deaths = 0 if checked or (status and status.task.program) else self._deaths + 1
        declare_dead(self._store, assignment.name, ending.says, ending.program)
        if self._deaths >= DEATHS_IN_A_ROW:
            raise WorkersError(
                f"{self._deaths} workers in a row ended before they checked anything; the last one "
                f"{ending.says or 'said nothing'}"
            )

    def _look(self) -> CampaignStatus:
        status = self._reader.read()
        self._watch(status)
        for row in status.findings:
            if (row.name, row.size) not in self._shown:
                self._shown.add((row.name, row.size))
                self._screen.found(row, self._write_finding(row))
                self._store.write("written", row.name, {}, version=0)
        for crash in status.crashes:
            if (crash.name, 0) not in self._shown:
                self._shown.add((crash.name, 0))
                self._screen.crashed(crash, self._plan.parts[crash.part].name, self._write_crash(crash))
                self._store.write("written", crash.name, {}, version=0)
        self._screen.shows(status)
        return status

    def _watch(self, status: CampaignStatus) -> None:
        """Take over from workers of other machines that are silent, and kill own ones that are stuck."""
        now = time.monotonic()
        for name, worker in status.workers.items():
            if worker.settled:
                continue
            version, since = self._seen.get(name, (-1, now))
            changed = worker.beat != version
            self._seen[name] = worker.beat, now if changed else since
            silent = not changed and now - since > SILENT_SECONDS
            if name in self._running:
                if silent or self._is_stuck(worker.task.since if worker.task.program else None):
                    self._engine.kill(name)
            elif silent or worker.is_over:
                declare_dead(self._store, name, f"silent for {SILENT_SECONDS:.0f} s")

    def _is_stuck(self, since: float | None) -> bool:
        longest = STUCK_FACTOR * self._plan.limit + STUCK_SECONDS
        return since is not None and time.time() - since > longest

    def _write_finding(self, row: FoundRow) -> Path:
        """Write a finding of the store into the directory of findings; return the path of its script."""
        from pytest_regional.fuzz.findings.folder import FindingError, FindingsFolder, from_data

        data = self._reader.finding(row.name)
        try:
            finding = from_data(data["finding"])
        except FindingError as error:
            self._screen.says(f"the finding {row.name} in the store cannot be read: {error}")
            return self._findings
        script = FindingsFolder(self._findings).save(finding)
        write_whole(script, str(data["script"]).encode())
        return script

    def _write_crash(self, row: CrashRow) -> Path:
        """Write a crash as a finding; return the path of its script.

        It is in a directory of its own: whether the program, or somebody else, ended the process is not known.
        """
        from pytest_regional.fuzz.findings.files import program_in
        from pytest_regional.fuzz.findings.folder import Finding, FindingsFolder
        from pytest_regional.fuzz.findings.provenance import Signature

        part = self._plan.parts[row.part]
        folder = FindingsFolder(self._findings / "crashes")
        try:
            program = program_in(Field(row.program))
        except MalformedError as error:
            self._screen.says(f"the program of the crash {row.name} in the store cannot be read: {error}")
            return folder.path
        finding = Finding(
            Signature("compiles", "compile", f"the process {row.ending}"),
            program,
            program,
            f"A worker {row.ending} while it checked this program.",
            backend=part.backend,
            device=part.device,
            mode=part.mode,
            versions=row.versions,
        )
        return folder.save(finding, f"{part.backend.rpartition(':')[2]}-{part.mode}-{row.name}")


def _host() -> str:
    """Return the name of this machine, as far as names in a store may hold it."""
    letters = (one if one.isascii() and one.isalnum() else "-" for one in socket.gethostname()[:40])
    return "".join(letters).strip("-") or "host"


__all__ = ["Head", "Outcome", "Screen", "WorkersError"]
