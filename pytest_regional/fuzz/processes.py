"""Runs a campaign on processes of this machine: each has every Nth shard, and is started again when it dies.

The module is also what a process runs. SIGTERM ends it after the current program. The end of its standard input says
that its parent is gone: it ends at once, with the compilers that it started.

A program that crashes its process (SIGSEGV, SIGABRT) is reported as a crash, checked once more, and then left. SIGKILL
comes from elsewhere in most cases (somebody, or the kernel for want of memory): such a program is reported when it
comes a second time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_regional._base.errors import RegionalError, RegionalRuntimeError
from pytest_regional._base.limits import MARKERS
from pytest_regional._base.processes import cpu_seconds_of
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.files import Signature
from pytest_regional.fuzz.shards import CANNOT, DEATHS, DONE, GROWN, CampaignFolder, Plan, Progress, Work

#: The module that a process runs.
CHILD = "pytest_regional.fuzz.processes"

#: Seconds between two looks at the processes, and between two calls of ``look``.
_LOOK, _TELL = 0.2, 2.0

#: A process is killed that has used so many times a program's limit of processor time on one program, as the limit
#: could not end the check; or that has used none for so many seconds, as something that waits for ever.
_STUCK_FACTOR, _IDLE_SECONDS = 3.0, 300.0

#: A campaign ends after so many deaths in a row outside of any check.
_DEATHS_IN_A_ROW = 3

#: Lines of a process's output that are shown where it could not work.
_LINES = 15


@dataclass
class _Running:
    """A process that runs.

    Attributes:
        begun: when the program that it checks was written, in nanoseconds; 0 where it checks none.
        used_before: seconds of processor time that it had used then.
        used: seconds of processor time that it had used when it was last looked at.
        used_at: when it was last seen to have used some, on the monotonic clock.
    """

    work: Work
    process: subprocess.Popen[bytes]
    begun: int = 0
    used_before: float = 0.0
    used: float = 0.0
    used_at: float = 0.0


class Processes:
    """Processes of this machine that check the shards of one campaign.

    Args:
        work: what they do together.
        number: how many there are.
        lock: the file descriptor that :meth:`CampaignFolder.locked` yields.
        look: called every few seconds.
    """

    def __init__(self, work: Work, number: int, lock: int, look: Callable[[], None] = lambda: None) -> None:
        self._work, self._number, self._lock, self._look = work, number, lock, look
        self._folder = CampaignFolder(work.findings, work.identity)
        self._until = None if work.seconds is None else time.monotonic() + work.seconds
        self._running: list[_Running] = []
        self._started = self._deaths = 0
        self._stopping = False

    def run(self) -> None:
        """Check all shards, as long as there is time; what a killed command left is checked again.

        Raises:
            RegionalRuntimeError: the processes cannot do what they are to do.
        """
        shutil.rmtree(self._folder.path / MARKERS, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="pytest-regional-") as scratch:
            try:
                for place in range(self._number):
                    shards = self._work.shards[place :: self._number]
                    if not self._stopping and any(self._folder.left(shards, self._work.programs)):
                        self._start(shards, Path(scratch))
                told = time.monotonic()
                while self._running:
                    time.sleep(_LOOK)
                    for one in list(self._running):
                        if one.process.poll() is not None:
                            self._settle(one)
                        elif self._is_stuck(one):
                            one.process.kill()
                    if time.monotonic() - told >= _TELL:
                        told = time.monotonic()
                        self._look()
            finally:
                for one in self._running:
                    _end_session(one.process)
                    one.process.wait()

    def stop(self) -> None:
        """Have all processes end after the programs that they check; none is started any more."""
        self._stopping = True
        for one in self._running:
            one.process.terminate()

    def _start(self, shards: range, scratch: Path) -> None:
        self._started += 1
        scratch = scratch / str(self._started)  # short: paths of sockets in it have at most 107 characters (unix(7))
        scratch.mkdir()
        seconds = None if self._until is None else max(self._until - time.monotonic(), 0.0)
        made = dataclasses.replace(self._work, shards=shards, seconds=seconds, scratch=scratch)
        threads = str(max(1, (os.cpu_count() or 1) // self._number))
        with (scratch / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", CHILD],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={"OMP_NUM_THREADS": threads, **os.environ, "TMPDIR": str(scratch)},
                pass_fds=(self._lock,),
                start_new_session=True,  # Ctrl-C is for this process
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and says why
            pickle.dump(made, process.stdin)
            process.stdin.flush()
        self._running.append(_Running(made, process))

    def _settle(self, one: _Running) -> None:
        """Deal with a process that ended."""
        self._running.remove(one)
        _end_session(one.process)
        lines = (one.work.scratch / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        status, says = one.process.returncode, "\n".join(lines[-_LINES:]).strip()
        shutil.rmtree(one.work.scratch, ignore_errors=True)
        if status == CANNOT:
            raise RegionalRuntimeError(says)
        if status not in (DONE, GROWN):
            self._died(one, status, says)
        if status != DONE and not self._stopping:
            self._start(one.work.shards, one.work.scratch.parent)

    def _died(self, one: _Running, status: int, says: str) -> None:
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        marker = self._marker(one)
        if marker is None:
            self._deaths += not self._stopping  # a process that had just started is stopped so
            if self._deaths >= _DEATHS_IN_A_ROW:
                raise RegionalRuntimeError(
                    f"{self._deaths} processes in a row died outside of a check; the last one {how}: {says}"
                )
            return
        self._deaths = 0
        shard = int(marker.stem.partition("-")[0])
        before = self._folder.progress(shard)
        deaths = before.deaths + 1
        if deaths >= DEATHS or status != -signal.SIGKILL:
            save_crash(self._folder, marker, self._work.plan, shard, how, says)
        if deaths >= DEATHS:
            self._folder.write(shard, dataclasses.replace(before + Progress(done=1, examples=1), deaths=0))
        else:
            self._folder.write(shard, dataclasses.replace(before, deaths=deaths))
        marker.unlink()

    def _marker(self, one: _Running) -> Path | None:
        """Return the file that holds the program that a process checks; None while it checks none."""
        return next((self._folder.path / MARKERS).glob(f"*-{one.process.pid}.json"), None)

    def _is_stuck(self, one: _Running) -> bool:
        marker, used, now = self._marker(one), cpu_seconds_of(one.process.pid), time.monotonic()
        with contextlib.suppress(OSError):  # it is checked, and the file gone
            begun = marker.stat().st_mtime_ns if marker else 0
            if begun != one.begun:
                one.begun, one.used_before, one.used_at = begun, used, now
            if used != one.used:
                one.used, one.used_at = used, now
            spins = used - one.used_before > _STUCK_FACTOR * self._work.plan.limit
            return marker is not None and (spins or now - one.used_at > _IDLE_SECONDS)
        return False


def save_crash(folder: CampaignFolder, marker: Path, plan: Plan, shard: int, how: str, says: str) -> None:
    """Save the program that ended a process as a finding.

    It goes to a separate folder, since nobody knows whether the program or somebody else ended the process.
    """
    from pytest_regional.fuzz.findings.folder import Finding, FindingsFolder, installed_versions

    part = plan.part_of(shard)
    program = files.load(marker)
    finding = Finding(
        Signature("compiles", "compile", f"the process {how}"),
        program,
        program,
        f"A process {how} while it checked this program.\n{says}",
        backend=part.backend,
        device=part.device,
        mode=part.mode,
        versions=installed_versions(),
    )
    name = f"{part.backend.rpartition(':')[2]}-{part.mode}-{program.identity}"
    FindingsFolder(folder.findings / "crashes").save(finding, name)


def _end_session(leader: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session, and the compilers and kernels that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)


def _end_with_parent() -> None:
    """Wait for the end of standard input, with which the parent is gone; then end with all that was started."""
    while os.read(0, 4096):
        continue  # sys.stdin has a lock, which this thread must not hold when the interpreter ends
    scratch = Path(os.environ["TMPDIR"])
    shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(OSError):
        scratch.parent.rmdir()
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    """Do what a process of a campaign is to do, a pickled :class:`Work` on standard input; return the exit status."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    try:
        work: Work = pickle.load(sys.stdin.buffer)
    except EOFError:
        _end_with_parent()
    threading.Thread(target=_end_with_parent, name="regional-parent", daemon=True).start()
    sys.path[:0] = work.python_path
    # Importing torch takes seconds, in which the parent may die.
    from pytest_regional.fuzz.shard_worker import Worker

    try:
        return Worker(work, stop).run()
    except RegionalError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return CANNOT


if __name__ == "__main__":
    sys.exit(main())
