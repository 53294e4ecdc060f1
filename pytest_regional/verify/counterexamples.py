"""What a model of z3 says: sizes, programs, and what memory holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import z3

from pytest_regional.verify.outcomes import Counterexample
from pytest_regional.verify.question import Question
from pytest_regional.verify.symbols import Expression, constant, evaluated


def example_of(question: Question, model: z3.ModelRef, second: bool = False) -> Counterexample:
    """Return what a model of z3 says about sizes, programs and loaded integers."""
    values = {item.name(): constant(model[item]) for item in model.decls() if item.arity() == 0}
    numbers = {name: int(value) for name, value in values.items() if value is not None}
    sizes = {name: value for name, value in numbers.items() if "#" not in name}
    places = tuple(_place(question, numbers, sizes, mark) for mark in ("", "'")[: 1 + second])
    return Counterexample(sizes, places, _loaded(model))


def _place(question: Question, numbers: Mapping[str, int], sizes: Mapping[str, int], mark: str) -> tuple[int, int, int]:
    """Return the place in the grid of one of the programs of a model."""
    found = {
        name.removesuffix("'"): n for name, n in numbers.items() if "#" in name and name.endswith("'") == (mark != "")
    }
    for name, index in reversed(question.run.scope.indices.items()):
        if name in found:
            width = int(evaluated(index.width, sizes))
            base, lane = divmod(found[name], width) if width else (0, 0)
            found.setdefault(index.base.decl().name(), base)
            found.setdefault(index.lane.decl().name(), lane)
    x, y, z = (found.get(program.decl().name(), 0) for program in question.run.programs)
    return x, y, z


def loaded_by(expressions: Iterable[Expression]) -> set[str]:
    """Return the arguments whose elements integers in ``expressions`` depend on."""
    found, seen, stack = set(), set(), list(expressions)
    while stack:
        expression = stack.pop()
        if expression.get_id() in seen:
            continue
        seen.add(expression.get_id())
        stack.extend(expression.children())
        if z3.is_app(expression) and expression.decl().name().startswith("loaded "):
            found.add(expression.decl().name().split(" ")[1])
    return found


def _loaded(model: z3.ModelRef) -> dict[str, dict[int | None, int]]:
    """Return the integers that a model puts into memory, by argument and element."""
    found: dict[str, dict[int | None, int]] = {}
    for item in model.decls():
        if not item.name().startswith("loaded ") or item.arity() != 1:
            continue
        argument, version = item.name().split(" ")[1:3]
        table = model[item]
        if version != "0" or not isinstance(table, z3.FuncInterp):
            continue
        rest = constant(table.else_value())
        values: dict[int | None, int] = {None: int(rest or 0)}
        for entry in map(table.entry, range(table.num_entries())):
            place, value = constant(entry.arg_value(0)), constant(entry.value())
            if place is not None and value is not None:
                values[int(place)] = int(value)
        found[argument] = values
    return found
