"""One kernel, and what is asked of z3 about it."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import z3

from pytest_regional.verify.builder import Access
from pytest_regional.verify.kernels import KernelRun
from pytest_regional.verify.outcomes import PROVED, UNKNOWN, Counterexample, NotVerifiableError, Outcome
from pytest_regional.verify.symbols import Expression, Lowering, Scope, constant, parts_of, symbols_of


@dataclass(frozen=True)
class Tensor:
    """A tensor argument of a launch.

    Attributes:
        storage: a name of the memory it lies in; arguments with the same one may overlap.
        start: where it starts in that memory, in elements.
        sizes: of its axes.
        strides: of its axes, in elements.
        dtype: of its elements.
        given: whether it is an input or a constant of the graph, which may hold anything.
        room: how many elements that memory has, where it is known and this tensor is not all of it.
    """

    storage: str
    start: Expression
    sizes: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    dtype: torch.dtype
    given: bool = False
    room: Expression | None = None

    @property
    def width(self) -> int:
        """Return the bytes of an element."""
        return int(self.dtype.itemsize)

    def span(self) -> Expression:
        """Return how many elements lie between its first and its last, both counted; for a tensor that has any."""
        return z3.IntVal(1) + z3.Sum([(n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True)])

    def within(self, offset: Expression, span: Expression) -> Expression:
        """Return whether an element, counted from the first, is one of ``span`` and lies inside of the memory."""
        inside = z3.And(offset >= 0, offset < span)
        if self.room is None:
            return inside
        return z3.And(inside, self.start + offset >= 0, self.start + offset < self.room)

    def count(self) -> Expression:
        """Return how many elements it has."""
        return z3.Product(list(self.sizes)) if self.sizes else z3.IntVal(1)


# Small enough to be run, and to be read; tried in this order before any size is allowed.
_SMALL = (16, 256, 4096, 1 << 17, (1 << 31) + 4096)
_FEW = 4096

# A search that goes astray rarely comes back, one that begins anew often arrives: parts of the time that is left.
_SHARES = (0.25, 0.33, 1.0)

# Units of work (``rlimit``) that z3 5.4 does in a second of processor time: 1.3 to 5 million in the tests.
_WORK = 2_000_000


class Question:
    """One kernel, with what is known when it is launched, and the time that is left for it.

    Attributes:
        numbers: integer arguments, and the limits of their types.
    """

    def __init__(
        self, run: KernelRun, tensors: Mapping[str, Tensor], facts: Sequence[Expression], seconds: float
    ) -> None:
        self.run = run
        self.tensors = tensors
        self.sizes = list(facts)
        self.seconds = seconds
        self.numbers: dict[str, tuple[Expression, int, int]] = {}
        self.start()
        self.lowering = Lowering(run.scope)
        # What holds for all programs, lanes and rounds, without marks, each with its number in the kernel.
        self.facts = [(-1, self.lowering.of(fact)) for fact in self.sizes]
        for number, fact in enumerate(list(run.scope.facts)):
            self.facts.append((number, self.lowering.of(fact)))
            for alias in run.scope.aliases:
                other = run.scope.replaced(fact, [alias])
                if not other.eq(fact):
                    self.facts.append((number, self.lowering.of(other)))
        self._spans: dict[Tensor, Expression] = {}

    @classmethod
    def of_sizes(cls, facts: Sequence[Expression], seconds: float) -> Question:
        """Return a question about sizes, and no kernel."""
        return cls(KernelRun(Scope(), [], [], ()), {}, facts, seconds)

    def start(self) -> None:
        """Begin to count the time for this kernel."""
        self.deadline = time.process_time() + self.seconds

    def limits(self, names: Iterable[str]) -> list[Expression]:
        """Return the limits of variables, and of those that their limits mention."""
        found: list[Expression] = []
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.run.scope.bounds:
                continue
            seen.add(name)
            variable, low, high = self.run.scope.bounds[name]
            found.append(variable >= self.lowering.of(low))
            if high is not None:
                top = self.lowering.of(high)
                found.append(variable < top)
                waiting += symbols_of([top])
        return found

    def closed(self, expressions: Sequence[Expression], facts: int = 0) -> list[Expression]:
        """Return all that is known of what expressions mention, where the first ``facts`` of the kernel hold."""
        known = [fact for number, fact in self.facts if number < facts]
        names: set[str] = set()
        count = -1
        while count != len(names):
            count = len(names)
            names |= symbols_of([*expressions, *known, *self.lowering.known]).keys()
            # What an index has to do with program and lane, where one of them is mentioned without it.
            linked = [
                self.link(name)
                for name, index in self.run.scope.indices.items()
                if name in names and not names.isdisjoint((index.base.decl().name(), index.lane.decl().name()))
            ]
            names |= symbols_of(linked).keys()
        return [*known, *linked, *self.limits(names), *self.lowering.known]

    def link(self, name: str) -> Expression:
        """Return what an index is made of."""
        index = self.run.scope.indices[name]
        width = self.lowering.of(index.width)
        return self.run.scope.bounds[name][0] == index.base * width + index.lane

    def refute(self, expressions: Sequence[Expression], known: Sequence[Expression] = ()) -> z3.ModelRef | None:
        """Return values for which all of ``expressions`` hold, or None if there are none.

        Raises:
            NotVerifiableError: z3 does not know, or not in time.
        """
        parts = [*expressions, *known]
        quotients = [Quotient(*quotient) for quotient in self.lowering.quotients]
        asked = [z3.simplify(part, som=True) for part in (*parts, *quotient_lemmas(parts, quotients))]
        for seed, share in enumerate(_SHARES):
            left = self.deadline - time.process_time()
            if left <= 0:
                raise NotVerifiableError("out of time", final=False)
            # What z3 finds depends on the numbers of its terms: in a context of its own they are always the same.
            context = z3.Context()
            solver = z3.Solver(ctx=context)
            # z3 counts its work, and times only by the clock: that is for what it does not count.
            solver.set("rlimit", max(1, int(left * share * _WORK)))
            solver.set("timeout", max(1, int(left * share * 10_000)))
            solver.set("random_seed", seed)
            solver.add(*(part.translate(context) for part in asked))
            answer = solver.check()
            if answer == z3.unsat:
                return None
            if answer == z3.sat:
                return solver.model().translate(z3.main_ctx())
        raise NotVerifiableError(f"z3 does not know: {solver.reason_unknown()}", final=False)

    def span(self, tensor: Tensor) -> Expression:
        """Return how many elements lie between a tensor's first and its last; none where a size may be 0 and is.

        Raises:
            NotVerifiableError: z3 does not know.
        """
        found = self._spans.get(tensor)
        if found is None:
            (plain, *sizes), _ = self.lowered(tensor.span(), *tensor.sizes)
            empty = z3.Or(*(size <= 0 for size in sizes))
            known = [self.lowering.of(fact) for fact in self.sizes]
            possible = sizes and self.refute([empty], [*known, *self.lowering.known]) is not None
            found = self._spans[tensor] = z3.If(empty, z3.IntVal(0), plain) if possible else plain
        return found

    def smallest(
        self, expressions: Sequence[Expression], sizes: Sequence[Expression], facts: int = 0
    ) -> z3.ModelRef | None:
        """Return values for which all of ``expressions`` hold, with small sizes where there are such.

        Raises:
            NotVerifiableError: z3 does not know whether there are any.
        """
        known = self.closed([*expressions, *sizes], facts)
        return self.small(expressions, known, sizes) or self.refute(expressions, known)

    def small(
        self, expressions: Sequence[Expression], known: Sequence[Expression], sizes: Sequence[Expression]
    ) -> z3.ModelRef | None:
        """Return values for which all of ``expressions`` hold with small sizes, or None if none are found."""
        for limit in _SMALL if sizes else ():
            bounds = [size <= limit for size in sizes]
            try:
                found = self.refute([*expressions, *bounds], known)
            except NotVerifiableError:
                break
            if found is None:
                continue
            # As many as possible are to be the smallest, so that tensors of them can be made.
            for size in sizes if limit > _FEW else ():
                bounds.append(size <= _SMALL[0])
                try:
                    smaller = self.refute([*expressions, *bounds], known)
                except NotVerifiableError:
                    break
                if smaller is None:
                    bounds.pop()
                else:
                    found = smaller
            return found
        return None

    def symbols(self) -> list[Expression]:
        """Return the symbolic sizes."""
        return [symbol for name, symbol in symbols_of(self.sizes).items() if "#" not in name]

    def lowered(self, *expressions: Expression) -> tuple[list[Expression], list[Expression]]:
        """Return expressions without marks, and what has to hold for no integer among them to wrap."""
        return [self.lowering.of(expression) for expression in expressions], self.lowering.exact(expressions)


def reachable(question: Question) -> bool:
    """Say whether some access happens: if what is known contradicted itself, all of it would seem to be proved.

    Raises:
        NotVerifiableError: z3 does not know.
    """
    for access in question.run.accesses:
        (path, mask), _ = question.lowered(access.path, access.mask)
        goal = [path, mask]
        if question.refute(goal, question.closed(goal, access.facts)) is not None:
            return True
    return not question.run.accesses


def decided(condition: Expression, known: Sequence[Expression], seconds: float) -> bool:
    """Say whether ``condition``, of sizes, holds always or never.

    Raises:
        NotVerifiableError: neither is known.
    """
    question = Question.of_sizes(known, seconds)
    (holds,), _ = question.lowered(condition)
    for answer, goal in ((False, holds), (True, z3.Not(holds))):
        if question.refute([goal], question.closed([goal])) is None:
            return answer
    raise NotVerifiableError(f"a branch of which both sides are possible: {str(condition)[:80]}")


HOLDS = (PROVED, "", None)


def timed(property: str, check: Callable[[], tuple[str, str, Counterexample | None]]) -> Outcome:
    """Return what a check finds out about a property, and the time that it takes; unknown where it raises."""
    started, final = time.perf_counter(), True
    try:
        verdict, reason, found = check()
    except NotVerifiableError as error:
        verdict, reason, found, final = UNKNOWN, str(error), None, error.final
    return Outcome(property, verdict, reason, time.perf_counter() - started, found, final)


def exception_to(
    question: Question, given: Sequence[Expression], wanted: Sequence[Expression], facts: int = 0
) -> z3.ModelRef | None:
    """Return values with which ``given`` holds and one of ``wanted`` does not, where ``facts`` of the kernel hold."""
    if not wanted:
        return None
    goal = [*given, z3.Not(z3.And(*wanted))]
    found = question.refute(goal, question.closed(goal, facts))
    if found is None:
        return None
    sizes = question.symbols()
    return question.smallest(goal, sizes, facts) if sizes else found


def conjuncts(mask: Expression) -> list[Expression]:
    """Return the parts of a mask that all have to hold."""
    if z3.is_and(mask):
        return [part for child in mask.children() for part in conjuncts(child)]
    return [] if z3.is_true(mask) else [mask]


def variables_of(question: Question, access: Access) -> list[Expression]:
    """Return what tells one execution of an access from another: an index instead of its program and lane."""
    names = {variable.decl().name(): variable for variable in access.variables}
    for name, bound in list(question.run.scope.bounds.items()):
        if name in names and constant(bound[2]) == 1:
            del names[name]
    mentioned = set(symbols_of([access.mask, access.offset]))
    for name, index in reversed(question.run.scope.indices.items()):
        if name in mentioned:
            mentioned |= {index.base.decl().name(), index.lane.decl().name()}
    for name, index in question.run.scope.indices.items():
        base, lane = index.base.decl().name(), index.lane.decl().name()
        if name in mentioned and base in names and lane in names:
            del names[base], names[lane]
            names[name] = question.run.scope.bounds[name][0]
    return list(names.values())


@dataclass(frozen=True)
class Quotient:
    """``value`` is ``dividend`` divided by ``divisor``; of numbers that are not negative it is the same as floored."""

    dividend: Expression
    divisor: Expression
    value: Expression

    def twin(self) -> Quotient:
        """Return the quotient of another program, lane or round."""
        mine = symbols_of([self.dividend, self.divisor, self.value])
        pairs = [(symbol, z3.Int(f"{name}'")) for name, symbol in mine.items() if "#" in name and z3.is_int(symbol)]
        return Quotient(*(z3.substitute(part, *pairs) for part in (self.dividend, self.divisor, self.value)))


def quotient_lemmas(parts: Sequence[Expression], quotients: Iterable[Quotient]) -> list[Expression]:
    """Return implications about the quotients that ``parts`` mention, true whatever is known.

    z3 takes long to find them: ``x < m * n`` implies ``x // m < n``, for each bound of ``x`` among the comparisons in
    ``parts``; and dividing twice is dividing by the product.
    """
    found = [quotient for quotient in quotients if constant(quotient.divisor) is None]
    if not found:
        return []
    names = symbols_of(parts)
    mentioned = [q for q in found if q.value.decl().name() in names]
    mentioned += [q.twin() for q in found if f"{q.value.decl().name()}'" in names]
    compared = (p for p in parts_of(parts) if z3.is_lt(p) or z3.is_le(p) or z3.is_gt(p) or z3.is_ge(p))
    # What is compared, and what it may be below.
    bounds = [pair for part in compared for pair in itertools.permutations(part.children())]
    lemmas: list[Expression] = []
    seen: set[tuple[int, int]] = set()
    for _ in range(3):  # a bound of a quotient is one of what is divided next
        for quotient in mentioned:
            for value, bound in list(bounds):
                key = quotient.value.get_id(), bound.get_id()
                if key in seen or not value.eq(quotient.dividend):
                    continue
                seen.add(key)
                below = _divided(bound, quotient.divisor)
                if below is not None:
                    given = z3.And(quotient.divisor > 0, value >= 0, value < bound)
                    lemmas.append(z3.Implies(given, quotient.value < below))
                    bounds.append((quotient.value, below))
    return lemmas + list(_twice(mentioned))


def _twice(quotients: Sequence[Quotient]) -> Iterator[Expression]:
    for first in quotients:
        for second in quotients:
            if not second.dividend.eq(first.value):
                continue
            for whole in quotients:
                product = _factors(first.divisor), _factors(second.divisor), _factors(whole.divisor)
                if None in product or not whole.dividend.eq(first.dividend):
                    continue
                one, other, both = product
                if one and other and both and one[0] * other[0] == both[0] and one[1] + other[1] == both[1]:
                    given = z3.And(first.divisor > 0, second.divisor > 0, first.dividend >= 0)
                    yield z3.Implies(given, second.value == whole.value)


def _factors(expression: Expression) -> tuple[int, Counter[str]] | None:
    """Return the number and the atoms of a product, or None for a sum."""
    found = _monomials(expression)
    return found[0][:2] if len(found) == 1 else None


def _monomials(expression: Expression) -> list[tuple[int, Counter[str], dict[str, Expression]]]:
    """Return the terms of a polynomial: for each its number, the powers of its atoms, and the atoms by their names."""
    plain = z3.simplify(expression, som=True)
    terms = plain.children() if z3.is_add(plain) else [plain]
    found = []
    for term in terms:
        number, atoms, named = 1, Counter[str](), {}
        for factor in _parts_of_product(term):
            value = constant(factor)
            if value is not None:
                number *= int(value)
                continue
            base, power = factor, 1
            if z3.is_app(factor) and factor.decl().kind() == z3.Z3_OP_POWER and constant(factor.arg(1)) is not None:
                base, power = factor.arg(0), int(constant(factor.arg(1)) or 1)
            atoms[base.sexpr()] += power
            named[base.sexpr()] = base
        found.append((number, atoms, named))
    return found


def _parts_of_product(term: Expression) -> list[Expression]:
    """Return what a product is made of; z3 leaves products in products."""
    return [factor for part in term.children() for factor in _parts_of_product(part)] if z3.is_mul(term) else [term]


def _divided(bound: Expression, divisor: Expression) -> Expression | None:
    """Return ``bound`` divided by ``divisor`` where that is exact, term by term."""
    factors = _factors(divisor)
    if factors is None:
        return None
    number, atoms = factors
    terms = []
    for many, held, named in _monomials(bound):
        if number == 0 or many % number or atoms - held:
            return None
        product: Expression = z3.IntVal(many // number)
        for name, power in (held - atoms).items():
            for _ in range(power):
                product = product * named[name]
        terms.append(product)
    return z3.Sum(terms) if len(terms) > 1 else terms[0]
