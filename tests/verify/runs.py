"""One kernel run twice: by the emulator on tensors, and on symbols; what both say that it does to memory, as sets."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import z3

from pytest_regional._torch.triton import type_of_argument
from pytest_regional.emulation.interpreter.accesses import LaunchMemory
from pytest_regional.verify.kernels import KernelRun, Pointer, run_kernel
from pytest_regional.verify.properties import READ, UPDATE, WRITE, Access
from pytest_regional.verify.question import Question, Tensor
from pytest_regional.verify.symbols import Expression
from tests.emulation.interpreter.launching import run

Touched = dict[tuple[str, str], set[tuple[int, int, int, int]]]
"""For each kind of access and argument: places in the grid, each with an element that the program there touches."""

_MOST = 500
_PLACE = [z3.Int(name) for name in ("x", "y", "z", "element")]


@dataclass(frozen=True)
class Case:
    """A kernel, its grid, and what it is given: tensors, integers, and constants, whose names are in capitals."""

    kernel: Any
    grid: tuple[int, int, int]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.kernel.__name__)


def case(kernel: Any, *grid: int, **arguments: Any) -> Case:
    return Case(kernel, (*grid, 1, 1, 1)[:3], arguments)


def touched(given: Case) -> Touched:
    """Return what the emulator's run of a kernel does to memory."""
    found: Touched = defaultdict(set)
    updating: list[bool] = []

    def note(kind: str, memory: Any, region: Any, indices: Any) -> None:
        if not updating:
            found[kind, region.argument] |= {(*memory.program, int(index)) for index in indices.reshape(-1)}

    def noting(kind: str) -> Any:
        def method(self: Any, region: Any, indices: Any, *rest: Any, **named: Any) -> None:
            note(kind, self, region, indices)
            with _among(updating) if kind == UPDATE else contextlib.nullcontext():
                original[kind](self, region, indices, *rest, **named)

        return method

    original = {READ: LaunchMemory.reading, WRITE: LaunchMemory.writing, UPDATE: LaunchMemory.updating}
    methods = {original[kind].__name__: noting(kind) for kind in original}
    with mock.patch.multiple(LaunchMemory, **methods):
        run(given.kernel, given.grid, together=False, **copied(given.arguments))
    return dict(found)


@contextlib.contextmanager
def _among(entered: list[bool]) -> Iterator[None]:
    entered.append(True)
    yield
    entered.pop()


def copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


def symbolic_run(given: Case) -> tuple[KernelRun, list[Expression]]:
    """Run a kernel on symbols: its grid and integers are variables. Return the run, and what the variables are."""
    facts: list[Expression] = []

    def size(name: str, value: int) -> Expression:
        variable = z3.Int(name)
        facts.append(variable == value)
        return variable

    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for name, value in given.arguments.items():
        if isinstance(value, torch.Tensor):
            values[name], types[name] = Pointer(name), type_of_argument(value).replace("*k", "*")
        elif name.isupper():
            values[name], types[name] = value, "constexpr"
        else:
            values[name], types[name] = size(name, value), type_of_argument(value)
    # The emulator, as the launcher, makes constants of no integer; a grid of one program is known to be one.
    grid = [z3.IntVal(1) if n == 1 else size(f"grid {axis}", n) for axis, n in enumerate(given.grid)]
    return run_kernel(given.kernel, values, types, grid), facts


def question_about(given: Case, *, seconds: float = 20.0, known: Sequence[Expression] = ()) -> Question:
    """Return the questions about a case: its sizes fixed, every tensor in memory of its own."""
    ran, facts = symbolic_run(given)
    tensors = {
        name: Tensor(name, z3.IntVal(0), tuple(map(z3.IntVal, v.shape)), tuple(map(z3.IntVal, v.stride())), v.dtype)
        for name, v in given.arguments.items()
        if isinstance(v, torch.Tensor)
    }
    return Question(ran, tensors, [*facts, *known], seconds)


def possible(given: Case, *, data: bool = True) -> Touched:
    """Return what the run on symbols says that a kernel may do to memory.

    Args:
        given: the case.
        data: whether loaded integers are what the tensors hold, instead of anything.
    """
    question = question_about(given)
    found: Touched = defaultdict(set)
    for access in question.run.accesses:
        found[access.kind, access.argument] |= set(_places(question, access, given, data))
    return {key: places for key, places in found.items() if places}


def _places(question: Question, access: Access, given: Case, data: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield programs and elements of one access: all models of what is known about it."""
    solver, fits = _solver(question, access, given, data)
    solver.push()
    solver.add(z3.Not(z3.And(*fits)))
    assert solver.check() == z3.unsat, "an index may overflow"
    solver.pop()
    count = 0
    while solver.check() == z3.sat:
        model = solver.model()
        place = [model.eval(variable, model_completion=True) for variable in _PLACE]
        solver.add(z3.Or(*(variable != value for variable, value in zip(_PLACE, place, strict=True))))
        x, y, z, element = (int(value.as_long()) for value in place)
        count += 1
        assert count < _MOST, f"so many elements that it may be any: {x, y, z}, {element}"
        yield x, y, z, element
    assert solver.check() == z3.unsat, solver.reason_unknown()


def _solver(question: Question, access: Access, given: Case, data: bool) -> tuple[z3.Solver, list[Expression]]:
    """Return what is known where an access happens, and which integers have to fit their types."""
    (path, mask, offset), fits = question.lowered(access.path, access.mask, access.offset)
    goal = [path, mask, *(a == b for a, b in zip(_PLACE, (*question.run.programs, offset), strict=True))]
    solver = z3.Solver()
    solver.set("timeout", 10_000)
    solver.add(*goal, *question.closed([*goal, *access.variables], access.facts))
    if data:
        solver.add(*_held(solver.assertions(), given))
    return solver, fits


def _held(expressions: Sequence[Expression], given: Case) -> Iterator[Expression]:
    """Yield what tensors hold before a kernel runs, for the functions that stand for it."""
    functions: dict[str, Any] = {}
    stack, seen = list(expressions), set()
    while stack:
        expression = stack.pop()
        if expression.get_id() not in seen:
            seen.add(expression.get_id())
            stack += expression.children()
            if z3.is_app(expression) and expression.decl().name().startswith("loaded "):
                functions[expression.decl().name()] = expression.decl()
    for name, function in functions.items():
        _, argument, version, _, _ = name.split(" ")
        if version != "0":
            continue  # written by the kernel itself: anything
        for place, value in enumerate(given.arguments[argument].reshape(-1).tolist()):
            if function.range() == z3.IntSort():
                yield function(place) == int(value)


def impossible(given: Case, *, data: bool = True) -> list[tuple[str, str, tuple[int, int, int, int]]]:
    """Return what the emulator's run of a kernel does to memory and the run on symbols says cannot be."""
    question = question_about(given)
    missing = []
    for (kind, argument), places in touched(given).items():
        solvers = [
            _solver(question, access, given, data)[0]
            for access in question.run.accesses
            if (access.kind, access.argument) == (kind, argument)
        ]
        for place in sorted(places):
            if not any(
                solver.check(*(v == n for v, n in zip(_PLACE, place, strict=True))) == z3.sat for solver in solvers
            ):
                missing.append((kind, argument, place))
    return missing
