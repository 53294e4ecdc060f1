"""A worker process: ``python -m pytest_regional.fuzz.workers.worker``, with an :class:`Assignment` on standard input.

It ends when its time is over, when there is nothing left to do, on SIGTERM and SIGINT, and when standard input ends, as
it does when the process that started it dies: always behind the program that is being checked.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from pytest_regional._errors import RegionalError
from pytest_regional._limits import MOST_SECONDS
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.campaign import Campaign, Failure, Known, quiet_logs
from pytest_regional.fuzz.draw.annotations import VARIANTS, with_other_annotations
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import random_programs
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.folder import installed_versions, signature_of
from pytest_regional.fuzz.findings.replaying import check_finding
from pytest_regional.fuzz.guidance import MUTATED, Guidance
from pytest_regional.fuzz.model.claims import disclaimed
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.fuzz.programs import CAPTURE, Programs
from pytest_regional.fuzz.settings import settings_of_mode
from pytest_regional.fuzz.store import open_store
from pytest_regional.fuzz.workers.assignment import CANNOT, DECLARED_DEAD, DONE, GROWN, Assignment
from pytest_regional.fuzz.workers.entries import Left
from pytest_regional.fuzz.workers.keeping import StoreCorpus, StoreFindings, finding_in
from pytest_regional.fuzz.workers.member import DeclaredDeadError, Member
from pytest_regional.fuzz.workers.plan import Batch, Part
from pytest_regional.fuzz.workers.records import Task, Totals, WorkerRecord
from pytest_regional.harness.regional import Regional
from pytest_regional.testing import regional

#: Seconds between two signs of life, and between two looks for something to do.
BEAT, LOOK = 5.0, 1.0


class Stop:
    """Whether a worker is to end: a signal came, standard input ended, or something went wrong elsewhere.

    Attributes:
        came: set when it is.
        error: what went wrong, if that is the reason.
    """

    def __init__(self) -> None:
        self.came = threading.Event()
        self.error: BaseException | None = None

    def on_signals(self) -> None:
        """Be set by the first SIGTERM or SIGINT; the second one interrupts the program that is being checked."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.came.is_set():
            raise KeyboardInterrupt
        self.came.set()

    def at_end_of(self, stream: TextIO) -> None:
        """Be set when ``stream`` ends."""

        def read() -> None:
            for _ in stream:
                continue
            self.came.set()

        threading.Thread(target=read, name="regional-end-of-input", daemon=True).start()

    @contextlib.contextmanager
    def beating(self, member: Member) -> Iterator[None]:
        """Show that the worker lives, until the context ends; be set when others took over."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT):
                try:
                    member.beat()
                except Exception as error:  # noqa: BLE001 - raised again by the thread that checks programs
                    self.error = error
                    self.came.set()
                    return

        thread = threading.Thread(target=beat, name="regional-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if self.error is not None:
            raise self.error


@dataclass
class PublishedPrograms(Programs):
    """Programs, each of which is in the store while it is checked.

    Attributes:
        publish: called with a program that is about to be checked.
    """

    publish: Callable[[Program], None] = lambda program: None

    def check(self, example: Program, known: Known) -> Failure[Program] | None:
        """Publish the program, then check it."""
        self.publish(example)
        return super().check(example, known)


class Worker:
    """Checks programs until there is nothing left to do, or it is stopped.

    Args:
        assignment: what it is to do.
        member: its place in the campaign.
        stop: when it is to end.
    """

    def __init__(self, assignment: Assignment, member: Member, stop: Stop) -> None:
        self._assignment, self._plan = assignment, assignment.plan
        self._member, self._stop = member, stop
        self._findings = StoreFindings(member, assignment.scratch)
        self._until = time.monotonic() + (MOST_SECONDS if assignment.seconds is None else assignment.seconds)
        self._campaigns: dict[int, Campaign[Program]] = {}
        self._guidances: dict[int, Guidance] = {}
        self._harness: tuple[int, Regional] | None = None
        self._harnesses = contextlib.ExitStack()
        self._task = Task()
        self._skip = self._drawn = self._next = 0
        self._attempts = 0
        self._reported: set[str] = set()

    def run(self) -> int:
        """Work; leave to others what is begun; return how it ends."""
        ends = DONE
        with self._harnesses:
            while not self._is_over():
                if resident_bytes() > self._assignment.memory:
                    ends = GROWN
                    break
                if not self._something_done():
                    if self._member.others_work():
                        self._stop.came.wait(LOOK)
                    elif not self._something_done():  # the last one of them may have left something just now
                        break
        self._member.end(self._totals())
        return ends

    def _is_over(self) -> bool:
        return self._stop.came.is_set() or time.monotonic() >= self._until

    def _something_done(self) -> bool:
        if (left := self._member.next_left(range(len(self._plan.parts)))) is not None:
            self._check_left(left)
        elif (found := self._member.next_elsewhere()) is not None:
            self._check_elsewhere(*found)
        elif (batch := self._member.next_batch()) is not None:
            self._check_batch(batch)
        else:
            return False
        return True

    def _check_batch(self, batch: Batch) -> None:
        campaign = self._campaign(batch.part)
        self._skip, self._drawn, self._next = batch.drawn, 0, batch.begin
        self._task = Task("batch", batch=batch, part=batch.part)
        self._adopt()
        before = campaign.result.examples
        campaign.budget = Budget(seconds=max(self._until - time.monotonic(), 0.001))
        campaign.check(self._programs(batch, campaign))
        self._member.release()
        if self._next < self._plan.size_of(batch.number):
            left = replace(batch, begin=self._next, drawn=self._all_drawn)
            self._member.does(replace(self._task, batch=left, since=time.time()), self._totals())
            # Another worker may come to it at once, and this one ends.
            self._stop.came.set()
            return
        self._member.finish_batch(batch, campaign.result.examples - before, self._new_keys(batch.part))
        self._member.does(Task(), self._totals())

    @property
    def _all_drawn(self) -> int:
        """How many programs of the batch were drawn; those that other workers drew are skipped at the first draw."""
        return max(self._drawn, self._skip)

    def _programs(self, batch: Batch, campaign: Campaign[Program]) -> Iterator[Program]:
        drawn = campaign.subject.draw(self._plan.seed_of(batch.number))
        for position in range(batch.begin, self._plan.size_of(batch.number)):
            self._task = Task("batch", batch=replace(batch, begin=position), part=batch.part)
            program = next(drawn)
            self._next = position + 1
            yield program

    def _check_left(self, left: Left) -> None:
        campaign = self._campaign(left.part)
        self._task, self._attempts = Task("postponed", part=left.part, name=left.name), left.attempts
        try:
            program = files.from_data(left.program)
        except files.ProgramFileError:
            program = None  # written by a stranger, or by another release
        if program is not None:
            campaign.check_one(program)
        self._attempts = 0
        self._member.release()
        self._member.finish_left(left)
        self._member.does(Task(), self._totals())

    def _check_elsewhere(self, name: str, data: Any) -> None:
        finding = finding_in(data)
        backends = {part.backend for part in self._plan.parts}
        if finding is None or (":" in finding.backend and finding.backend not in backends):
            self._member.finish_elsewhere(name, "error", "it cannot be read, or names a backend of its own")
        else:
            self._close_harness()
            outcome, detail = check_finding(finding, finding.backend, finding.device)
            self._member.finish_elsewhere(name, str(outcome), detail)
        self._member.does(Task(), self._totals())

    def _publish(self, program: Program) -> None:
        self._member.release()
        task = self._task
        if task.batch is not None:
            task = replace(task, batch=replace(task.batch, drawn=self._all_drawn))
        totals = self._totals()
        if task.batch is not None:
            totals[self._plan.parts[task.part].name].examples -= 1  # this one, which is not checked yet
        self._member.does(replace(task, program=files.to_data(program), since=time.time()), totals)

    def _claim(self, part: int, violation: OracleViolationError, program: Program) -> bool:
        # What AOTAutograd breaks is one finding, whatever the backend.
        backend = CAPTURE if violation.without_backend else self._plan.parts[part].backend
        return self._member.claim(f"{backend}: {signature_of(violation)}", part, files.to_data(program), self._attempts)

    def _totals(self) -> dict[str, Totals]:
        return {
            self._plan.parts[number].name: Totals.of(campaign.result) for number, campaign in self._campaigns.items()
        }

    def _new_keys(self, part: int) -> set[str]:
        """Return the coverage keys that this worker reached and has not reported."""
        new = set(self._guidances[part].corpus.reached) - self._reported if part in self._guidances else set()
        self._reported |= new
        return new

    def _campaign(self, part: int) -> Campaign[Program]:
        """Return the campaign of a part, on an open harness."""
        if self._harness is None or self._harness[0] != part:
            self._close_harness()
            where = self._plan.parts[part]
            opened = regional(where.backend, where.device, expects_regions=False)
            self._harness = part, self._harnesses.enter_context(opened)
            subject = self._subject(part, where, self._harness[1])
            if part in self._campaigns:
                self._campaigns[part].subject = subject
            else:
                made = Campaign(subject, Budget(seconds=1), self._plan.seed, self._findings)
                made.stopped, made.claim = self._stop.came.is_set, functools.partial(self._claim, part)
                self._campaigns[part] = made
        return self._campaigns[part]

    def _close_harness(self) -> None:
        self._harness = None
        self._harnesses.close()

    def _subject(self, part: int, where: Part, harness: Regional) -> PublishedPrograms:
        without = frozenset() if self._plan.audit else disclaimed(harness._spec)
        settings = tuple(one for one in settings_of_mode(where.mode) if one.name in self._plan.settings)
        options = Options(without=without, settings=settings)

        def drawn(seed: int) -> Iterator[Program]:
            programs = random_programs(seed, options=options)
            if where.mode == "aten":  # it costs less than to draw one
                programs = with_other_annotations(programs, VARIANTS, seed, without)
            for program in programs:
                self._drawn += 1
                if self._drawn > self._skip:
                    yield program

        return PublishedPrograms.of(
            harness,
            where.backend,
            where.mode,
            drawn=drawn,
            blames=self._plan.blames,
            without=without,
            limit=self._plan.limit,
            running=self._assignment.running,
            guidance=self._guidance(part, where, options),
            publish=self._publish,
        )

    def _guidance(self, part: int, where: Part, options: Options) -> Guidance | None:
        """Return what counts coverage, and mutates programs if the plan says so; nothing is recorded in mode aten."""
        if where.mode == "aten":
            return None
        if part not in self._guidances:
            share = 0.0 if self._plan.guidance == "off" else MUTATED
            kept = None if self._plan.guidance == "off" else StoreCorpus(self._member, where.mode)
            self._guidances[part] = Guidance(hash_of(self._assignment.name), options, kept, share=share)
        return self._guidances[part]

    def _adopt(self) -> None:
        """Take over what other workers kept."""
        if self._plan.guidance == "off":
            return
        for _, data in self._member.kept():
            try:
                mode, keys, program = data["mode"], [str(key) for key in data["keys"]], files.from_data(data["program"])
            except (KeyError, TypeError, files.ProgramFileError):
                continue  # written by a stranger, or by another release
            self._reported.update(keys)
            for part, guidance in self._guidances.items():
                if self._plan.parts[part].mode == mode:
                    guidance.corpus.adopt(program, keys)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 where that is not known (proc(5), Linux)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def hash_of(name: str) -> int:
    """Return a number for a name, the same in every process."""
    return int.from_bytes(name.encode(), "big")


def main() -> int:
    """Do what the first line of standard input says; return the exit status."""
    parent = os.getppid()
    stop = Stop()
    stop.on_signals()
    assignment = Assignment.loads(sys.stdin.readline())
    stop.at_end_of(sys.stdin)
    sys.path[:0] = assignment.python_path
    try:
        return _work(assignment, stop)
    finally:
        if os.getppid() != parent:
            _remove_scratch(assignment.scratch)


def _remove_scratch(folder: Path) -> None:
    """Remove a worker's directory, and the one that it is in if no other worker has one there."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def _work(assignment: Assignment, stop: Stop) -> int:
    assignment.scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(open_store(assignment.store, tell=_tell)) as store:
        record = WorkerRecord(
            assignment.environment,
            socket.gethostname(),
            os.getpid(),
            assignment.place,
            installed_versions(),
        )
        member = Member(store, assignment.plan, assignment.name, record)
        try:
            with quiet_logs(), stop.beating(member):
                return Worker(assignment, member, stop).run()
        except DeclaredDeadError as error:
            print(error, file=sys.stderr)
            return DECLARED_DEAD
        except RegionalError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            member.end(why=str(error))
            return CANNOT


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


__all__ = ["PublishedPrograms", "Worker", "main"]

if __name__ == "__main__":
    sys.exit(main())
