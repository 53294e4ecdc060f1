"""Where threads and processes are that hang: the test's own code first, threads of pytest and of this plugin last.

A new process of ``in_new_process`` is asked by a signal, whose handler is written in C: it answers inside of code of
another language too, and while the lock of the interpreter is held.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from pytest_regional._base import processes

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
    """Return the stacks of this process's threads.

    Args:
        interrupted: the frame in which the main thread was interrupted.
    """
    main = threading.main_thread()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {identity: frame for identity, frame in sys._current_frames().items() if identity != main.ident}
    stacks = [
        (names.get(identity, str(identity)), traceback.extract_stack(frame)) for identity, frame in frames.items()
    ]
    own = traceback.extract_stack(interrupted)
    shown = [f"Thread {main.name}:\n{_lines(_from_the_test(own))}"]
    stacks.sort(key=lambda stack: _is_of_a_runner([frame.filename for frame in stack[1]]))
    shown += [f"Thread {name}:\n{_lines(stack)}" for name, stack in stacks]
    return "\n".join(shown)


def _lines(stack: Sequence[traceback.FrameSummary]) -> str:
    return "".join(traceback.format_list(list(stack)))


def _from_the_test(stack: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return ``stack`` without the frames that lead to a test; the whole where all of it is of who runs tests."""
    last = max((index for index, frame in enumerate(stack) if _is_pytests_call(frame)), default=-1)
    return list(stack[last + 1 :] or stack)


def _is_pytests_call(frame: traceback.FrameSummary) -> bool:
    return frame.name in _PYTESTS_CALLS and "_pytest" in frame.filename


def _is_of_a_runner(files: Sequence[str]) -> bool:
    """Say whether the thread with these files on its stack, the outermost first, was begun by who runs the tests."""
    first = next((file for file in files if not _STANDARD.search(file)), None)
    return first is None or bool(_RUNNERS.search(first))


def of_processes(numbers: Sequence[int]) -> str:
    """Return the stacks of those processes that can be asked."""
    until = time.monotonic() + ANSWER_SECONDS
    return "".join(_stacks(number, until) for number in numbers)


def _stacks(number: int, until: float) -> str:
    environment = processes.environment_of(number)
    path = environment.get(VARIABLE)
    if path is not None and Path(path).exists() and processes.catches(number, signal.SIGUSR1):
        text = _asked(number, Path(path), until)
        return f"Process {number} (most recent call first):\n{text}" if text else f"Process {number} does not answer\n"
    return ""


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
    threads.sort(key=_rank)
    return "".join(_without_runners(text).rstrip("\n") + "\n" for text in threads)


def _rank(thread: str) -> int:
    files = _FAULTHANDLER_FILE.findall(thread)[::-1]
    if any(file.endswith("/harness/_child.py") for file in files):
        return 0
    return 2 if _is_of_a_runner(files) else 1


def _without_runners(thread: str) -> str:
    """Return the stack without the frames at its outer end that are the runners', unless it has no others."""
    header, *lines = thread.rstrip("\n").split("\n")
    kept = list(_without_outer(lines))
    return "\n".join([header, *(kept or lines)])


def _without_outer(lines: Sequence[str]) -> Iterator[str]:
    own = [index for index, line in enumerate(lines) if not _RUNNERS.search(line)]
    yield from lines[: own[-1] + 1] if own else ()
