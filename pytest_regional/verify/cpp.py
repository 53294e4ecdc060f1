"""The loops of C++ kernels: all bodies of one do each element once, and each the same elements as one without vectors.

Inductor writes one kernel several times: with vectors for most of an axis, with shorter ones or without vectors for its
end, with tiles where two axes have vectors. What is asked, for all sizes that the guards allow:

* each index of the scheduled loops is done by one run of one body, and no index outside of them is done;
* a lane of a vector accesses the element that a body without vectors accesses at the lane's index.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import z3

from pytest_regional._torch.cpp_loops import (
    EACH,
    IN_A_ROW,
    TRANSPOSED,
    RawAccess,
    RawBody,
    RawKernel,
    RawLoop,
    RawNest,
    observing_loops,
)
from pytest_regional.verify.kernels import KernelRun
from pytest_regional.verify.outcomes import LOOPS, PROVED, REFUTED, UNKNOWN, Counterexample, NotVerifiableError, Outcome
from pytest_regional.verify.question import Question
from pytest_regional.verify.sizes import from_sympy, known_from
from pytest_regional.verify.symbols import Expression, Scope, constant, floored_quotient
from pytest_regional.verify.verifier import DEFAULT_SECONDS, Verification, Verified

# Loops with more rounds are not run to confirm a refutation.
_MOST_ROUNDS = 1_000_000

_LANE, _OTHER_LANE = sympy.Symbol("lane", integer=True), sympy.Symbol("other lane", integer=True)


@contextlib.contextmanager
def verifying_loops(seconds: float = DEFAULT_SECONDS) -> Iterator[Verification]:
    """Collect the C++ kernels whose code is generated inside."""
    made = Verification(seconds)

    def collect(kernel: RawKernel) -> None:
        made.later(lambda: [verify_kernel(kernel, seconds)])

    with observing_loops(collect):
        yield made


_KNOWN: dict[str, Verified] = {}


def verify_kernel(kernel: RawKernel, seconds: float = DEFAULT_SECONDS) -> Verified:
    """Verify the loops of a C++ kernel for all sizes; an equal one is verified once."""
    known = known_from(kernel.guards, kernel.ranges)
    parts = [seconds, kernel.nests, *sorted(fact.sexpr() for fact in known)]
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
    found = _KNOWN.get(digest)
    if found is None:
        started = time.perf_counter()
        outcomes = tuple(_outcomes(kernel, known, seconds))
        found = _KNOWN[digest] = Verified(kernel.name, {}, outcomes, time.perf_counter() - started, digest)
    return replace(found, kernel=kernel.name)


def _outcomes(kernel: RawKernel, known: Sequence[Expression], seconds: float) -> Iterator[Outcome]:
    deadline = time.monotonic() + seconds
    if not _possible(known, seconds):
        yield Outcome(LOOPS, UNKNOWN, "what is known of the sizes contradicts itself")
        return
    for nest in kernel.nests:
        started = time.perf_counter()
        verdict, reason, found = PROVED, "", None
        try:
            fault = _fault(nest, lambda: Question(_nothing(), {}, known, deadline - time.monotonic()))
        except NotVerifiableError as error:
            verdict, reason = UNKNOWN, str(error)
        else:
            if fault is not None:
                verdict, reason, found = REFUTED, fault.reason, Counterexample(fault.sizes) if fault.sizes else None
        yield Outcome(LOOPS, verdict, reason, time.perf_counter() - started, found)


def _possible(known: Sequence[Expression], seconds: float) -> bool:
    """Say whether there are such sizes, as of none all would be proved; there are where z3 does not know."""
    question = Question(_nothing(), {}, known, seconds)
    try:
        return question.refute([], question.closed([])) is not None
    except NotVerifiableError:
        return True


def _nothing() -> KernelRun:
    return KernelRun(Scope(), [], [], ())


@dataclass(frozen=True)
class _Fault:
    reason: str
    sizes: Mapping[str, int]


def _fault(nest: RawNest, ask: Callable[[], Question]) -> _Fault | None:
    """Return what is wrong with a nest for some sizes, confirmed with these, or None.

    Raises:
        NotVerifiableError: nothing is known, or what was found is not confirmed.
    """
    if len(nest.loops) != len(nest.sizes):
        raise NotVerifiableError(f"{len(nest.loops)} loops for {len(nest.sizes)} sizes")
    variables = [str(loop.variable) for loop in nest.loops]
    if len(set(variables)) != len(variables):
        raise NotVerifiableError(f"loops that share a variable: {', '.join(variables)}")
    fault = _Indices(nest.loops, nest.bodies, nest.sizes, ask()).fault()
    if fault is None and any(access.after for access in nest.plain):
        fault = _Indices(nest.loops[: nest.kept], nest.after, nest.sizes[: nest.kept], ask()).fault()
    if fault is not None:
        return fault
    for after, loops, bodies in ((False, nest.loops, nest.bodies), (True, nest.loops[: nest.kept], nest.after)):
        plain = [access for access in nest.plain if access.after == after]
        for body in bodies:
            fault = _Lanes(loops, body, ask()).fault(plain, [a for a in body.accesses if a.after == after])
            if fault is not None:
                return fault
    return None


def _step_of(loop: RawLoop) -> int:
    step = constant(from_sympy(loop.step))
    if step is None:
        raise NotVerifiableError(f"a loop whose step {loop.step} is not constant")
    return int(step)


def _least(first: Expression, *others: Expression) -> Expression:
    return functools.reduce(lambda a, b: a if a.eq(b) else z3.If(a <= b, a, b), others, first)


def _most(first: Expression, *others: Expression) -> Expression:
    return functools.reduce(lambda a, b: a if a.eq(b) else z3.If(a >= b, a, b), others, first)


def _rounds(low: Expression, high: Expression, offset: Expression, step: int) -> Expression:
    """Return how many of ``offset``, ``offset + step``, ... are at least ``low`` and smaller than ``high``."""
    if step == 1:
        return z3.If(high > low, high - low, z3.IntVal(0))
    before = [floored_quotient(bound - offset + step - 1, z3.IntVal(step)) for bound in (low, high)]
    return z3.If(high > low, before[1] - before[0], z3.IntVal(0))


class _Indices:
    """Which indices the bodies of a nest do."""

    def __init__(
        self, loops: Sequence[RawLoop], bodies: Sequence[RawBody], sizes: Sequence[Any], question: Question
    ) -> None:
        self.loops, self.bodies, self.question = loops, bodies, question
        self.sizes = sizes
        self.point = [z3.Int(str(loop.variable)) for loop in loops]

    def fault(self) -> _Fault | None:
        """Return sizes and an index that is done never, or twice, or is none of the nest, or None.

        Raises:
            NotVerifiableError: nothing is known.
        """
        counts = [[self._count(body, axis) for axis in range(len(self.loops))] for body in self.bodies]
        done = [z3.And(*(count >= 1 for count in axes)) for axes in counts]
        inside = z3.And(
            *(z3.And(at >= 0, at < from_sympy(size)) for at, size in zip(self.point, self.sizes, strict=True))
        )
        twice = [
            *(z3.And(a, b) for a, b in itertools.combinations(done, 2)),
            *(z3.And(one, z3.Or(*(count >= 2 for count in axes))) for one, axes in zip(done, counts, strict=True)),
        ]
        for goal in (
            z3.And(inside, z3.Not(z3.Or(*done))),
            z3.And(z3.Or(*done), z3.Not(inside)),
            z3.Or(*twice),
        ):
            fault = self._asked(goal)
            if fault is not None:
                return fault
        return None

    def _count(self, body: RawBody, axis: int) -> Expression:
        """Return in how many rounds of a loop a body does the index ``point[axis]``."""
        loop, at = self.loops[axis], self.point[axis]
        step = _step_of(loop)
        offset = from_sympy(loop.offset)
        if step <= 0:
            raise NotVerifiableError(f"a loop whose step is {step}")
        starts, ends = _active(body, loop.variable)
        first = _most(offset, *map(from_sympy, starts))
        last = _least(from_sympy(loop.size), *map(from_sympy, ends))
        for variable, start, end in body.inner:
            if variable == loop.variable:
                within = z3.And(at >= from_sympy(start), at < from_sympy(end))
                return z3.If(within, _rounds(first, last, offset, step), z3.IntVal(0))
        lanes = from_sympy(dict(body.lanes).get(loop.variable, 1))
        return _rounds(_most(at - lanes + 1, first), _least(at + 1, last), offset, step)

    def _asked(self, goal: Expression) -> _Fault | None:
        model = _model(self.question, goal)
        if model is None:
            return None
        sizes = _values(model, self.question.symbols())
        point = [_value(model, at) for at in self.point]
        times = self._run(sizes, point)
        place = ", ".join(f"{at} = {value}" for at, value in zip(self.point, point, strict=True))
        inside = all(0 <= at < _number(size, sizes) for at, size in zip(point, self.sizes, strict=True))
        runs = [body for body, count in zip(self.bodies, times, strict=True) for _ in range(min(count, 2))]
        if len(runs) == int(inside):
            raise NotVerifiableError(f"loops, run with {sizes or 'their sizes'}, show no fault at {place or 'all'}")
        if not runs:
            return _Fault(f"no loop does the index {place}", sizes)
        names = " and ".join(body.kind for body in runs)
        if not inside:
            return _Fault(f"{names} does the index {place}, which is outside of the loops", sizes)
        return _Fault(f"the index {place} is done by {names}", sizes)

    def _run(self, sizes: Mapping[str, int], point: Sequence[int]) -> list[int]:
        """Run the loops with these sizes; return how often each body does the index ``point``.

        Raises:
            NotVerifiableError: they have too many rounds.
        """
        found = []
        for body in self.bodies:
            times = 1
            for loop, at in zip(self.loops, point, strict=True):
                times *= _done(loop, body, sizes)[at]
            found.append(times)
        return found


def _done(loop: RawLoop, body: RawBody, sizes: Mapping[str, int]) -> Counter[int]:
    """Run a loop with one body, with these sizes; return how often each index is done.

    Raises:
        NotVerifiableError: it has too many rounds.
    """
    offset, size, step = (_number(value, sizes) for value in (loop.offset, loop.size, loop.step))
    lanes = _number(dict(body.lanes).get(loop.variable, 1), sizes)
    inner = [
        (_number(start, sizes), _number(end, sizes)) for variable, start, end in body.inner if variable == loop.variable
    ]
    active = [
        (_number(start, sizes), _number(end, sizes))
        for variable, start, end in body.active
        if variable == loop.variable
    ]
    if (size - offset) // step + lanes + sum(end - start for start, end in inner) > _MOST_ROUNDS:
        raise NotVerifiableError(f"loops with too many rounds to be run: {loop.variable} up to {size}")
    done: Counter[int] = Counter()
    for value in range(offset, size, step):
        if all(start <= value < end for start, end in active):
            done.update(range(*inner[0]) if inner else range(value, value + lanes))
    return done


def _active(body: RawBody, variable: Any) -> tuple[list[Any], list[Any]]:
    found = [(start, end) for at, start, end in body.active if at == variable]
    return [start for start, _ in found], [end for _, end in found]


class _Lanes:
    """Which elements the lanes of a body access.

    Attributes:
        loops: around what is compared.
        at: for each variable of the loops, and of the body, what it is in a round.
        point: for each variable of the loops the index that a lane does.
        facts: what is known of a lane.
    """

    def __init__(self, loops: Sequence[RawLoop], body: RawBody, question: Question) -> None:
        self.loops, self.body, self.question = loops, body, question
        self.at: dict[Any, Any] = {}
        self.facts: list[Expression] = []
        for loop in loops:
            self.at[loop.variable] = self._round(loop)
        self.point = dict(self.at)
        for (variable, count), symbol in zip(body.lanes, (_LANE, _OTHER_LANE), strict=False):
            lane = from_sympy(symbol)
            self.facts += [lane >= 0, lane < from_sympy(count)]
            if variable in self.point:
                self.point[variable] = self.point[variable] + symbol
        if body.within is not None:
            self.at[body.within] = _OTHER_LANE

    def _round(self, loop: RawLoop) -> Any:
        """Return what a loop's variable is where the body runs."""
        for variable, start, end in self.body.inner:
            if variable == loop.variable:
                value = from_sympy(variable)
                self.facts += [value >= from_sympy(start), value < from_sympy(end)]
                return variable
        step = _step_of(loop)
        number = sympy.Symbol(f"round of {loop.variable}", integer=True)
        expression = loop.variable if step == 1 else loop.offset + step * number
        value = from_sympy(expression)
        starts, ends = _active(self.body, loop.variable)
        self.facts += [value >= from_sympy(start) for start in (loop.offset, *starts)]
        self.facts += [value < from_sympy(end) for end in (loop.size, *ends)]
        return expression

    def fault(self, plain: Sequence[RawAccess], accesses: Sequence[RawAccess]) -> _Fault | None:
        """Return sizes and a lane that accesses what a body without vectors does not access there, or None.

        Raises:
            NotVerifiableError: nothing is known.
        """
        if [(a.kind, a.buffer) for a in plain] != [(a.kind, a.buffer) for a in accesses]:
            return self._unequal(plain, accesses)
        names: dict[str, str] = {}
        for one, access in zip(plain, accesses, strict=True):
            if len(access.loaded) != len(one.loaded):
                raise NotVerifiableError(f"an index of {access.buffer} that is loaded in another way")
            for ours, theirs in zip(access.loaded, one.loaded, strict=True):
                if names.setdefault(ours, theirs) != theirs:
                    raise NotVerifiableError(f"an index of {access.buffer} that is loaded in another way")
            if access.varying and access.lanes != EACH:
                raise NotVerifiableError(f"an index of {access.buffer} that is loaded, by all lanes at once")
            if access.beyond:
                raise NotVerifiableError(f"a load under a mask that may go on behind the last lane, of {access.buffer}")
            found = self._different(one, access, names)
            if found is not None:
                return found
        return None

    def _unequal(self, plain: Sequence[RawAccess], accesses: Sequence[RawAccess]) -> _Fault | None:
        """Return what is stored by one of two bodies alone, if the body is ever run."""
        ours, theirs = (Counter((a.kind, a.buffer) for a in some if a.kind != "load") for some in (accesses, plain))
        for words, left in (("lacks", theirs - ours), ("alone has", ours - theirs)):
            for kind, buffer in left:
                model = _model(self.question, *self.facts)
                if model is None:
                    return None
                sizes = _values(model, self.question.symbols())
                if not all(_done(loop, self.body, sizes) for loop in self.loops):
                    raise NotVerifiableError(f"loops, run with {sizes or 'their sizes'}, do not come to a body")
                return _Fault(f"{self.body.kind} {words} a {kind} of {buffer}", sizes)
        raise NotVerifiableError(f"{self.body.kind} and a body without vectors differ in what they load")

    def _different(self, plain: RawAccess, access: RawAccess, names: Mapping[str, str]) -> _Fault | None:
        """Return a lane for which two accesses differ."""
        at = dict(self.at)
        if access.lanes == EACH and self.body.lanes and self.body.lanes[0][0] in at:
            at[self.body.lanes[0][0]] += _LANE
        written = _named(access.at, names).subs(at, simultaneous=True)
        if access.lanes == IN_A_ROW:
            written = written + _LANE
        elif access.lanes == TRANSPOSED:
            written = written + _LANE * access.stride + _OTHER_LANE
        meant = _named(plain.at, {name: name for name in plain.loaded}).subs(self.point, simultaneous=True)
        if sympy.expand(written - meant) == 0:
            return None
        model = _model(self.question, from_sympy(written) != from_sympy(meant), *self.facts)
        return None if model is None else self._confirmed(model, written, meant, access)

    def _confirmed(self, model: z3.ModelRef, written: Any, meant: Any, access: RawAccess) -> _Fault:
        """Compute both elements, where loops that are run with these sizes come there.

        Raises:
            NotVerifiableError: they do not, or both are the same.
        """
        sizes = _values(model, self.question.symbols())
        free = {s for e in (written, meant, *self.point.values()) for s in e.free_symbols}
        values = {s.name: _value(model, z3.Int(s.name)) for s in free} | dict(sizes)
        elements = _number(written, values), _number(meant, values)
        place = {variable: _number(value, values) for variable, value in self.point.items()}
        words = ", ".join(f"{variable} = {value}" for variable, value in place.items())
        reached = all(_done(loop, self.body, sizes)[place[loop.variable]] for loop in self.loops)
        if not reached or elements[0] == elements[1]:
            raise NotVerifiableError(f"loops, run with {sizes or 'their sizes'}, show no fault at {words}")
        return _Fault(
            f"{access.kind} of {access.buffer}: at {words}, {self.body.kind} accesses element {elements[0]}, and a "
            f"body without vectors element {elements[1]}",
            sizes,
        )


def _named(index: Any, names: Mapping[str, str]) -> Any:
    """Return an index with the names of loaded integers replaced, by variables of which nothing is known."""
    return index.xreplace({s: sympy.Symbol(names[s.name]) for s in index.free_symbols if s.name in names})


def _model(question: Question, *goal: Expression) -> z3.ModelRef | None:
    """Return values for which all of ``goal`` holds, with small sizes where there are such, or None if there are none.

    Raises:
        NotVerifiableError: z3 does not know.
    """
    (plain,), _ = question.lowered(z3.And(*goal))
    known, sizes = question.closed([plain]), question.symbols()
    # Most often there are none: all sizes are asked for at once, and small ones where that has another answer.
    try:
        found = question.refute([plain], known)
    except NotVerifiableError:
        found = question.small([plain], known, sizes)
        if found is None:
            raise
        return found
    return found if found is None else question.small([plain], known, sizes) or found


def _value(model: z3.ModelRef, variable: Expression) -> int:
    return int(model.eval(variable, model_completion=True).as_long())


def _values(model: z3.ModelRef, variables: Sequence[Expression]) -> dict[str, int]:
    return {str(variable): _value(model, variable) for variable in variables}


def _number(expression: Any, values: Mapping[str, int]) -> int:
    """Return an expression of sizes as a number.

    Raises:
        NotVerifiableError: it has a variable that has no value.
    """
    if isinstance(expression, int):
        return expression
    found = expression.subs({s: values[s.name] for s in expression.free_symbols if s.name in values})
    if not found.is_Integer:
        raise NotVerifiableError(f"an expression that is no number: {found}")
    return int(found)
