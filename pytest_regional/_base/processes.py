"""Child processes (Linux only): finding and ending them, marks on servers and guards, forks, and stacks of threads."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest

#: Inductor's pool outlives the test that first needed it.
_POOL = b"torch._inductor.compile_worker"

#: The name of a process that watches over another one: see :mod:`pytest_regional.harness._child`.
_GUARD = "regional-guard"

#: The name of one that others are forked from: see :mod:`pytest_regional.harness.fork_server`. It outlives tests.
_SERVER = "regional-server"

#: What a process is known by: its number, which another one may get later, and when it began.
Identity = tuple[int, int]


class Process(NamedTuple):
    """One process: its number, its parent's, and when it began, in clock ticks since the machine did; its name.

    Also its state (``Z`` once it has ended), and the ticks of processor time that it, and those it waited for, used.
    """

    number: int
    parent: int
    began: int
    name: str = ""
    state: str = ""
    ticks: int = 0

    @property
    def identity(self) -> Identity:
        """What it is known by."""
        return self.number, self.began

    @staticmethod
    def read(number: int) -> Process:
        """Return what proc(5) says of a process; an ``OSError`` where it is not there."""
        text = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
        start, _, rest = text.rpartition(")")
        fields = rest.split()
        name, ticks = start.partition("(")[2], sum(map(int, fields[11:15]))
        return Process(number, parent=int(fields[1]), began=int(fields[19]), name=name, state=fields[0], ticks=ticks)


def descendants() -> set[Identity]:
    """Return all processes below this one.

    Those whose parent has ended, as a daemon's has, are not below it any more, and nowhere seen.
    """
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # CONFIG_PROC_CHILDREN
        return {process.identity for process in _below(os.getpid())}
    found: set[Identity] = set()
    waiting = [os.getpid()]
    while waiting:
        for child in children(waiting.pop()):
            with contextlib.suppress(OSError):
                found.add(Process.read(child).identity)
                waiting.append(child)
    return found


def started_after(before: Container[Identity]) -> list[int]:
    """Return the numbers of this process's descendants but those in ``before``, the oldest first.

    No clock is asked: the time of a machine and that of its containers may be two. Inductor's pool is none of them:
    other tests wait for its answers.
    """
    return [
        process.number for process in _below(os.getpid(), but=is_of_inductors_pool) if process.identity not in before
    ]


def with_all_below(number: int) -> list[int]:
    """Return the number of a process and those of its descendants, the oldest first."""
    return [number, *(process.number for process in _below(number))]


def end(numbers: Iterable[int]) -> list[int]:
    """Kill these processes; return the numbers of those that there were.

    A compiler that is killed alone would leave what it started running: ``g++`` its ``cc1plus``, a script its programs.
    """
    ended = []
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
            ended.append(number)
    return ended


def catches(number: int, signum: int) -> bool:
    """Say whether a process has a handler for a signal."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{number}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def runs(number: int) -> bool:
    """Say whether a process is there and has not ended; one that nobody waited for has."""
    with contextlib.suppress(OSError):
        return Process.read(number).state != "Z"
    return False


def cpu_seconds() -> float:
    """Return the processor time that this process has used, all its threads, and those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def cpu_seconds_of(number: int) -> float:
    """Return the processor time that a process and all below it have used, with those that they waited for."""
    ticks, waiting = 0, [number]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            ticks += Process.read(one).ticks
            waiting.extend(children(one))
    return ticks / os.sysconf("SC_CLK_TCK")


def children(number: int) -> Iterator[int]:
    """Yield the children of a process, which takes less than a look at all processes (100 of them take 6 ms)."""
    threads = Path(f"/proc/{number}/task")
    with contextlib.suppress(OSError):
        for thread in list(threads.iterdir()):
            with contextlib.suppress(OSError):
                yield from map(int, (thread / "children").read_text(encoding="ascii").split())


def _below(number: int, but: Callable[[int], bool] = lambda _: False) -> list[Process]:
    found, family, servers = [], {number}, set()
    for process in sorted(_processes(), key=lambda one: (one.began, one.number)):
        if process.parent in family and not but(process.number):
            family.add(process.number)
            # What a server has just forked has its name for a moment.
            if process.name == _SERVER and process.parent not in servers:
                servers.add(process.number)
            else:
                found.append(process)
    return found


def _processes() -> Iterator[Process]:
    for entry in Path("/proc").glob("[0-9]*"):
        # One that ends while it is read is not there to be killed.
        with contextlib.suppress(OSError):
            process = Process.read(int(entry.name))
            if process.name != _GUARD:
                yield process


_OWN_NAME = Path("/proc/self/comm")


def call_this_a_guard() -> None:
    """Have nobody look for this process, or end it, where all below another one are meant."""
    call_this(_GUARD)


def call_this_a_server() -> str:
    """Have nobody end this process where those are meant that it has forked; return what it was called."""
    called = _OWN_NAME.read_text(encoding="utf-8", errors="replace").strip() if _OWN_NAME.exists() else ""
    call_this(_SERVER)
    return called


def call_this(name: str) -> None:
    """Give this process a name, where processes have one that can be changed."""
    if _OWN_NAME.exists():
        _OWN_NAME.write_text(name, encoding="utf-8")


def is_server(number: int) -> bool:
    """Say whether a process is one that others are forked from."""
    with contextlib.suppress(OSError):
        return Process.read(number).name == _SERVER
    return False


def is_of_inductors_pool(number: int) -> bool:
    """Say whether a process is one of Inductor's compile workers."""
    try:
        return _POOL in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


#: Called in each process that is forked from this one.
IN_FORKS: list[Callable[[], object]] = []


def _in_a_fork() -> None:
    for call in list(IN_FORKS):
        call()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_fork)


def guard_forks(config: pytest.Config) -> Callable[[], None]:
    """Take from each forked process what is not for it, until the function that is returned is called."""
    # The files through which a worker talks with its controller: private attributes of execnet (2.1). Where they
    # are not found, a worker that dies is noticed when all processes that it forked have ended.
    pipes: list[int] = []
    for plugin in config.pluginmanager.get_plugins() if hasattr(config, "workerinput") else ():
        io = getattr(getattr(getattr(plugin, "channel", None), "gateway", None), "_io", None)
        for name in ("infile", "outfile"):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                pipes.append(getattr(io, name).fileno())

    def forget() -> None:
        # They wait for a thread that is in the parent alone (CPython 3.10 to 3.14).
        faulthandler.cancel_dump_traceback_later = lambda: None
        faulthandler.dump_traceback_later = lambda *arguments, **keywords: None
        for pipe in pipes:
            # The number stays taken: the copy of execnet closes it when it is collected.
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, pipe, inheritable=False)
                os.close(nowhere)

    IN_FORKS.append(forget)
    return lambda: IN_FORKS.remove(forget)


#: Names, to a new process and to all below it, the file that it writes its stacks to when it is asked.
VARIABLE = "PYTEST_REGIONAL_STACKS"

#: Seconds that all processes together have for their answers; an answer takes a tenth.
ANSWER_SECONDS = 3.0

#: Files of who runs a test: a thread that they began is theirs, and their frames below a test show nothing.
_RUNNERS = re.compile(
    r"/(_pytest|pluggy|xdist|execnet)/|/pytest_regional/(?!suites)|<frozen runpy>|/runpy\.py|/pytest/__main__\.py"
)
#: pytest's functions that call a test, one of unittest, a fixture, and the end of a fixture (8.0 to 9.2).
_PYTESTS_CALLS = ("pytest_pyfunc_call", "runtest", "call_fixture_func", "finish", "_teardown_yield_fixture")
_STANDARD = re.compile(r"/(threading|socketserver|queue|selectors|concurrent/futures/\w+)\.py")
_FAULTHANDLER_FILE = re.compile(r'^  File "(.*)", line ', re.MULTILINE)


def write_when_asked() -> None:
    """Have this process write the stacks of all its threads when it is asked, and at a crash; called at its start."""
    faulthandler.enable()
    path = os.environ.get(VARIABLE)
    if path and hasattr(faulthandler, "register"):  # not on Windows
        # faulthandler keeps the file open. Forks write to the same one.
        faulthandler.register(signal.SIGUSR1, file=open(path, "a", encoding="utf-8"), all_threads=True)  # noqa: SIM115


def of_threads(interrupted: FrameType | None) -> str:
    """Return the stacks of this process's threads; the main one was interrupted in the frame ``interrupted``."""
    main = threading.main_thread()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {identity: frame for identity, frame in sys._current_frames().items() if identity != main.ident}
    stacks = [
        (names.get(identity, str(identity)), traceback.extract_stack(frame)) for identity, frame in frames.items()
    ]
    stacks.sort(key=lambda stack: _is_of_a_runner([frame.filename for frame in stack[1]]))
    own = traceback.extract_stack(interrupted)
    calls = [place for place, one in enumerate(own, 1) if one.name in _PYTESTS_CALLS and "_pytest" in one.filename]
    # Without the frames that lead to a test; the whole where all of it is of who runs tests.
    from_the_test = own[calls[-1] :] if calls else []
    shown = [(main.name, from_the_test or own), *stacks]
    return "\n".join(f"Thread {name}:\n{''.join(traceback.format_list(list(stack)))}" for name, stack in shown)


def _is_of_a_runner(files: Sequence[str]) -> bool:
    """Say whether the thread with these files on its stack, the outermost first, was begun by who runs the tests."""
    first = next((file for file in files if not _STANDARD.search(file)), None)
    return first is None or bool(_RUNNERS.search(first))


def of_processes(numbers: Sequence[int]) -> str:
    """Return the stacks of those processes that can be asked."""
    until = time.monotonic() + ANSWER_SECONDS
    shown = []
    for number in numbers:
        path = None
        with contextlib.suppress(OSError):
            # What the process began with.
            environment = Path(f"/proc/{number}/environ").read_text(encoding="utf-8", errors="replace").split("\0")
            path = next((one.partition("=")[2] for one in environment if one.startswith(f"{VARIABLE}=")), None)
        if path is not None and Path(path).exists() and catches(number, signal.SIGUSR1):
            text = _asked(number, Path(path), until)
            shown.append(
                f"Process {number} (most recent call first):\n{text}" if text else f"Process {number} does not answer\n"
            )
    return "".join(shown)


def _asked(number: int, path: Path, until: float) -> str:
    """Ask the process for its stacks, which it adds to the file ``path``; return them, ordered."""
    size = before = path.stat().st_size
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGUSR1)
    while time.monotonic() < until:
        time.sleep(0.05)
        now = path.stat().st_size
        if now > before and now == size:
            break
        size = now
    with path.open(encoding="utf-8", errors="replace") as file:
        file.seek(before)
        return ordered(file.read())


def ordered(dump: str) -> str:
    """Return what ``faulthandler`` wrote: the thread of the test first, without what leads to it, runners' last."""
    threads = [text for text in re.split(r"^(?=Thread |Current thread )", dump, flags=re.MULTILINE) if text.strip()]
    shown = []
    for thread in sorted(threads, key=_rank):
        header, *lines = thread.rstrip("\n").split("\n")
        own = [index for index, line in enumerate(lines, 1) if not _RUNNERS.search(line)]
        # Without the frames at its outer end that are the runners', unless it has no others.
        shown.append("\n".join([header, *(lines[: own[-1]] if own else lines)]) + "\n")
    return "".join(shown)


def _rank(thread: str) -> int:
    files = _FAULTHANDLER_FILE.findall(thread)[::-1]
    if any(file.endswith("/harness/_child.py") for file in files):
        return 0
    return 2 if _is_of_a_runner(files) else 1
