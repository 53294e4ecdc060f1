"""The programs of a grid: one after the other, or taking turns where they wait for each other."""

from __future__ import annotations

import ast
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch

from pytest_regional._torch.triton import jit_source
from pytest_regional.emulation.device import EmulationError, UnsupportedByEmulationError
from pytest_regional.emulation.interpreter.builder import builder
from pytest_regional.emulation.interpreter.functions import is_jitted
from pytest_regional.emulation.interpreter.segments import LaunchMemory

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


_ANSWERS: WeakKeyDictionary[Any, tuple[str, bool]] = WeakKeyDictionary()


def may_wait(function: Any) -> bool:
    """Say whether programs of the jitted ``function`` may wait for other programs."""
    source = jit_source(function)
    known = _ANSWERS.get(function.fn)
    if known is None or known[0] != source:
        known = _ANSWERS[function.fn] = (source, any(_waits(reached) for reached in _reached(function, {})))
    return known[1]


def _waits(function: Any) -> bool:
    if "while" not in jit_source(function):
        return False
    loops = (node for node in ast.walk(_tree(function)) if isinstance(node, ast.While))
    return any(_touches_memory(function, loop) for loop in loops)


def _touches_memory(function: Any, tree: ast.AST) -> bool:
    """Say whether ``tree``, a part of ``function``, has an atomic operation or a volatile load, or calls what has."""
    if any(_is_atomic(node) for node in ast.walk(tree)):
        return True
    seen: dict[int, Any] = {}
    reached = [inner for called in _called(function, tree) for inner in _reached(called, seen)]
    return any(_is_atomic(node) for inner in reached for node in ast.walk(_tree(inner)))


def _is_atomic(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == "volatile"
    return isinstance(node, (ast.Attribute, ast.Name)) and _last_name(node).startswith("atomic_")


def _last_name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


def _reached(function: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield a jitted function and those that it calls, each once."""
    if id(function.fn) in seen:
        return
    seen[id(function.fn)] = function
    yield function
    for called in _called(function, _tree(function)):
        yield from _reached(called, seen)


def _called(function: Any, tree: ast.AST) -> Iterator[Any]:
    """Yield the jitted functions that a part of ``function`` names."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and is_jitted(found := _global(function, node)):
            yield found


def _global(function: Any, node: ast.expr) -> Any:
    """Return what a dotted name in a kernel stands for in its module, or None."""
    if isinstance(node, ast.Name):
        return function.fn.__globals__.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _global(function, node.value)
        return None if owner is None else getattr(owner, node.attr, None)
    return None


def _tree(function: Any) -> ast.AST:
    return _parsed(jit_source(function))


@functools.lru_cache(maxsize=256)
def _parsed(source: str) -> ast.AST:
    """Parse a function once: kernels share most of those they call."""
    return ast.parse(source)
