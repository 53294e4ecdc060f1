"""The programs of a grid: one after the other, or taking turns where they wait for each other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from pytest_regional.emulation.errors import EmulationError, UnsupportedByEmulationError
from pytest_regional.emulation.interpreter.builder import builder
from pytest_regional.emulation.interpreter.regions import LaunchMemory

# Operations in a row, all programs together, that may leave memory as it is before waiting counts as forever.
_PATIENCE = 20_000

_MOST_TOGETHER = 4096

Program: TypeAlias = tuple[int, int, int]


def programs_of(grid: Sequence[int], reverse: bool = False) -> Iterator[Program]:
    """Yield the programs of a grid in the order in which they run: x fastest, as a GPU starts them."""
    x, y, z = (range(size)[::-1] if reverse else range(size) for size in (*grid, 1, 1)[:3])
    return ((i, j, k) for k in z for j in y for i in x)


def run_in_order(body: Callable[[], Any], programs: Iterable[Program], memory: LaunchMemory) -> None:
    """Run every program to its end before the next."""
    made = builder()
    made.patience = _PATIENCE
    for program in programs:
        made.grid_idx = memory.program = program
        made.progressed()
        body()


class _Turns:
    """Programs on threads of which one runs at a time; it hands over at every atomic operation.

    Programs that wait for another one spin on an atomic operation, so each such wait is one turn.
    """

    def __init__(self, body: Callable[[], Any], programs: Sequence[Program], memory: LaunchMemory) -> None:
        self.body = body
        self.memory = memory
        self.waiting = list(programs)
        self.doors = {program: threading.Semaphore(0) for program in programs}
        self.running: Program | None = None
        self.finished = threading.Semaphore(0)
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Run all programs."""
        threads = [threading.Thread(target=self._thread, args=(program,), daemon=True) for program in self.waiting]
        for thread in threads:
            thread.start()
        self._next()
        self.finished.acquire()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _thread(self, program: Program) -> None:
        self.doors[program].acquire()
        try:
            if self.failure is None:
                with np.errstate(all="ignore"), torch.no_grad():
                    self.body()
        except BaseException as failure:  # noqa: BLE001  raised again by the thread that launched
            self.failure = self.failure or failure
        builder().progressed()
        self._next()

    def _next(self) -> None:
        """Let the next program run, or end the launch."""
        if not self.waiting:
            self.finished.release()
            return
        self.running = self.waiting.pop(0)
        builder().grid_idx = self.memory.program = self.running
        self.doors[self.running].release()

    def pause(self) -> None:
        """Let every other program run up to its next atomic operation."""
        if self.failure is not None:
            raise EmulationError("another program of this launch failed")
        program = self.running
        assert program is not None
        self.waiting.append(program)
        self._next()
        self.doors[program].acquire()


def run_together(body: Callable[[], Any], programs: Iterable[Program], memory: LaunchMemory) -> None:
    """Run programs that wait for each other, as those of a cooperative reduction do at its barrier.

    Raises:
        UnsupportedByEmulationError: they are too many, since each one has a thread.
    """
    order = list(itertools.islice(programs, _MOST_TOGETHER + 1))
    if len(order) > _MOST_TOGETHER:
        raise UnsupportedByEmulationError(
            f"{memory.kernel}: more than {_MOST_TOGETHER} programs that wait for each other"
        )
    turns = _Turns(body, order, memory)
    made = builder()
    made.pause = turns.pause
    made.patience = _PATIENCE + 100 * len(order)
    try:
        turns.run()
    finally:
        del made.pause
