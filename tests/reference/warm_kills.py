"""Processes that are killed while they store traces and results, and what the next process finds."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_regional.reference.caching import store
from pytest_regional.reference.caching.container import CacheWarning
from tests.reference.warm_programs import Programs, warm_run

#: So long a process lives at most after it began to write, in seconds: enough for a result, its trace, and often more.
LONGEST_LIFE = 0.06
#: No process stores more.
_PROGRAMS = 1000


@dataclass
class Killed:
    """What was found after processes were killed while they stored.

    Attributes:
        trials: how many were killed.
        in_the_middle: those that left a file they were writing.
        loaded: programs that the next process called without a trace.
        broken: entries that the next process warned of.
        wrong: outputs of the next process that are not eager's.
        next_store_failed: times when the next process stored a program, and the one after it had to trace.
    """

    trials: int = 0
    in_the_middle: int = 0
    loaded: int = 0
    broken: int = 0
    wrong: int = 0
    next_store_failed: int = 0


def kill_while_storing_traces(folder: Path, trials: int, *, seed: int = 0, longest: float = LONGEST_LIFE) -> Killed:
    """Kill processes at a random moment after they began to write; each stores ever new programs in the usual place.

    Args:
        folder: an empty one, for the programs.
        trials: how many processes.
        seed: what the moments are drawn from.
        longest: so many seconds a process lives at most after it began to write.
    """
    killed, moments = Killed(), random.Random(seed)
    with _ready_to_fork(folder):
        warm_run(lambda x: x + 1, torch.ones(3))  # imports what a first compile needs
        for trial in range(trials):
            first = trial * _PROGRAMS
            begun = folder / f"begun {trial}"
            child = os.fork()
            if not child:
                try:
                    _store_until_killed(folder, first, begun)
                finally:
                    os._exit(1)  # whatever happens, a fork does not go on with what its parent does
            while not begun.exists():
                if os.waitpid(child, os.WNOHANG)[0]:
                    raise RuntimeError("a process ended before it stored anything")
                time.sleep(0.0005)
            time.sleep(moments.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
            if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
                raise RuntimeError("a process ended before it was killed")
            killed.trials += 1
            killed.in_the_middle += any(_cache_folder().rglob("*.regional-tmp"))
            _inspect(folder, first, killed)
    return killed


def _cache_folder() -> Path:
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])


@contextlib.contextmanager
def _ready_to_fork(folder: Path) -> Iterator[None]:
    """Have one thread, programs that can be imported, and no bytecode, which would hide that a file has changed."""
    threads, no_bytecode = torch.get_num_threads(), sys.dont_write_bytecode
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = no_bytecode
        torch.set_num_threads(threads)


def _store_until_killed(folder: Path, first: int, begun: Path) -> None:
    write = store.write_atomically

    def noted_write(*args: Any, **kwargs: Any) -> None:
        begun.touch()
        write(*args, **kwargs)

    store.write_atomically = noted_write
    programs = Programs(folder)
    for number in range(first, first + _PROGRAMS):
        programs.write(_source(number))
        warm_run(programs.begin().fn, torch.ones(3))


def _source(number: int) -> str:
    return f"def fn(x): return x * {number}"


def _inspect(folder: Path, first: int, killed: Killed) -> None:
    """Call what a killed process stored, and store what it did not."""
    programs = Programs(folder)
    for number in itertools.count(first):
        programs.write(_source(number))
        if _calls(programs, number, killed) == 0:
            killed.loaded += 1
            continue
        killed.next_store_failed += _calls(programs, number, killed) != 0
        return


def _calls(programs: Programs, number: int, killed: Killed) -> int:
    """Call program ``number`` in a process that begins now; return how many frames were traced."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        output, traced = warm_run(programs.begin().fn, torch.ones(3))
    killed.broken += sum(issubclass(warning.category, CacheWarning) for warning in said)
    killed.wrong += not torch.equal(output, torch.ones(3) * number)
    return traced
