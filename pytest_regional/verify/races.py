"""The property ``races``: no two programs write one element, or one what another reads."""

from __future__ import annotations

from collections.abc import Sequence

import z3

from pytest_regional.verify.builder import READ, UPDATE, WRITE, Access
from pytest_regional.verify.counterexamples import example_of, loaded_by
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.outcomes import RACES, REFUTED, Counterexample, Outcome
from pytest_regional.verify.question import HOLDS, Question, timed, variables_of
from pytest_regional.verify.symbols import Expression, constant, symbols_of

_EQUAL_INDICES = "stores at loaded indices, two of which may be equal: PyTorch leaves open which one lasts"


def race_free(question: Question) -> Outcome:
    """Prove that no two programs write one element, or one what another reads, and no operation an element twice."""

    def check() -> tuple[str, str, Counterexample | None]:
        pairs = question.run.scope.renaming()
        accesses = question.run.accesses
        for number, write in enumerate(accesses):
            if write.kind == READ:
                continue
            for other in accesses:
                if other.kind == WRITE and other.order < number and other is not write:
                    continue
                if write.kind == UPDATE and other.kind != READ:
                    continue
                if _may_meet(question, write, other):
                    found = _meeting(question, write, other, pairs)
                    if found is not None:
                        if question.run.equal_indices_allowed and loaded_by((write.offset,)):
                            raise NotVerifiableError(_EQUAL_INDICES)
                        what = "writes twice" if other is write else f"and a {other.kind} ({other.line}) meet"
                        place = f"argument {write.argument}, {write.line}"
                        return REFUTED, f"a {write.kind} {what}: {place}", example_of(question, found, second=True)
        return HOLDS

    return timed(RACES, check)


def _may_meet(question: Question, one: Access, other: Access) -> bool:
    first, second = question.tensors.get(one.argument), question.tensors.get(other.argument)
    if first is None or second is None:
        raise NotVerifiableError(f"argument {one.argument if first is None else other.argument} is no known tensor")
    return first.storage == second.storage


def _meeting(
    question: Question, write: Access, other: Access, pairs: Sequence[tuple[Expression, Expression]]
) -> z3.ModelRef | None:
    """Return values with which a write and another access, of another program or lane, meet."""
    mine, theirs = question.tensors[write.argument], question.tensors[other.argument]
    if not mine.width == theirs.width == write.width == other.width:
        raise NotVerifiableError(f"{write.argument} and {other.argument} share memory with elements of two sizes")
    (mask, address), fits = question.lowered(z3.And(write.path, write.mask), write.offset + mine.start)
    (second_mask, second_address), more = question.lowered(z3.And(other.path, other.mask), other.offset + theirs.start)
    known = [*question.closed([mask, address, *variables_of(question, write)], write.facts), *fits]
    second_known = [*question.closed([second_mask, second_address, *variables_of(question, other)], other.facts), *more]
    other_names = [*pairs, *_marks(known + second_known)]
    twin = [z3.substitute(part, *other_names) for part in (second_mask, second_address, *second_known)]
    if write is other:
        differ = z3.Or(*(v != z3.substitute(v, *other_names) for v in variables_of(question, write)))
    else:
        differ = z3.Or(*(p != z3.substitute(p, *other_names) for p in _programs(question, (write, other))))
        linked = [*_program_links(question)]
        known += linked
        twin += [z3.substitute(part, *other_names) for part in linked]
    meet, known = [mask, twin[0], address == twin[1], differ], [*known, *twin[2:]]
    found = question.refute(meet, known)
    return None if found is None else _soonest(question, meet, known, (write, other), pairs) or found


def _soonest(
    question: Question,
    meet: Sequence[Expression],
    known: Sequence[Expression],
    accesses: tuple[Access, Access],
    pairs: Sequence[tuple[Expression, Expression]],
) -> z3.ModelRef | None:
    """Return values with small sizes, of two programs rather than of one, with which two accesses meet."""
    apart = [program != z3.substitute(program, *pairs) for program in _programs(question, accesses)]
    links = _program_links(question)
    links += [z3.substitute(link, *pairs) for link in links]
    for more in ([z3.Or(*apart)], []) if apart else ([],):
        found = question.small([*meet, *more], [*known, *links], question.symbols())
        if found is not None:
            return found
    return None


def _marks(expressions: Sequence[Expression]) -> list[tuple[Expression, Expression]]:
    """Return second names for the variables that stand for quotients and the like."""
    return [
        (variable, z3.Int(f"{name}'"))
        for name, variable in symbols_of(expressions).items()
        if name.startswith(("quotient#", "wrapped#"))
    ]


def _programs(question: Question, accesses: Sequence[Access]) -> list[Expression]:
    used = {name for access in accesses for name in (v.decl().name() for v in access.variables)}
    return [
        program
        for program in question.run.programs
        if program.decl().name() in used and constant(question.run.scope.bounds[program.decl().name()][2]) != 1
    ]


def _program_links(question: Question) -> list[Expression]:
    """Return what the variables that count programs have to do with indices."""
    names = {program.decl().name() for program in question.run.programs}
    links = []
    for name, index in question.run.scope.indices.items():
        if {index.base.decl().name(), index.lane.decl().name()} & names:
            names.add(name)
            links.append(question.link(name))
    return [*links, *question.limits(symbols_of(links).keys())]
