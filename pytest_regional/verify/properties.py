"""The properties of a kernel, as questions to z3."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import z3

from pytest_regional.verify.builder import READ, UPDATE, WRITE, Access
from pytest_regional.verify.digits import digit_lemmas
from pytest_regional.verify.errors import NotVerifiableError, UndecidedError
from pytest_regional.verify.kernels import KernelRun
from pytest_regional.verify.lemmas import Quotient, quotient_lemmas
from pytest_regional.verify.outcomes import (
    BUFFERS,
    COVERAGE,
    MEMORY,
    PROVED,
    RACES,
    REFUTED,
    UNKNOWN,
    Counterexample,
    Outcome,
)
from pytest_regional.verify.symbols import Expression, Lowering, Scope, constant, evaluated, symbols_of


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
        self.facts = self._facts()
        self._spans: dict[Tensor, Expression] = {}

    def start(self) -> None:
        """Begin to count the time for this kernel."""
        self.deadline = time.monotonic() + self.seconds

    def _facts(self) -> list[tuple[int, Expression]]:
        """Return what holds for all programs, lanes and rounds, without marks, each with its number in the kernel."""
        found = [(-1, self.lowering.of(fact)) for fact in self.sizes]
        for number, fact in enumerate(list(self.run.scope.facts)):
            found.append((number, self.lowering.of(fact)))
            for alias in self.run.scope.aliases:
                other = self.run.scope.replaced(fact, [alias])
                if not other.eq(fact):
                    found.append((number, self.lowering.of(other)))
        return found

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
            linked = self._links(names)
            names |= symbols_of(linked).keys()
        return [*known, *linked, *self.limits(names), *self.lowering.known]

    def _links(self, names: set[str]) -> list[Expression]:
        """Return what an index has to do with program and lane, where one of them is mentioned without it."""
        found = []
        for name, index in self.run.scope.indices.items():
            if name in names and (index.base.decl().name() in names or index.lane.decl().name() in names):
                found.append(self.link(name))
        return found

    def link(self, name: str) -> Expression:
        """Return what an index is made of."""
        index = self.run.scope.indices[name]
        width = self.lowering.of(index.width)
        return self.run.scope.bounds[name][0] == index.base * width + index.lane

    def refute(self, expressions: Sequence[Expression], known: Sequence[Expression] = ()) -> z3.ModelRef | None:
        """Return values for which all of ``expressions`` hold, or None if there are none.

        Raises:
            UndecidedError: z3 does not know, or not in time.
        """
        parts = [*expressions, *known]
        quotients = [Quotient(*quotient) for quotient in self.lowering.quotients]
        lemmas = quotient_lemmas(parts, quotients) + digit_lemmas(parts, quotients)
        asked = [z3.simplify(part, som=True) for part in (*parts, *lemmas)]
        for seed, share in enumerate(_SHARES):
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise UndecidedError("out of time")
            # What z3 finds depends on the numbers of its terms: in a context of its own they are always the same.
            context = z3.Context()
            solver = z3.Solver(ctx=context)
            solver.set("timeout", max(1, int(left * share * 1000)))
            solver.set("random_seed", seed)
            solver.add(*(part.translate(context) for part in asked))
            answer = solver.check()
            if answer == z3.unsat:
                return None
            if answer == z3.sat:
                return solver.model().translate(z3.main_ctx())
        raise UndecidedError(f"z3 does not know: {solver.reason_unknown()}")

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

    def about_sizes(self) -> Question:
        """Return a question about the same sizes, and no kernel."""
        return Question(KernelRun(Scope(), [], [], ()), {}, self.sizes, self.deadline - time.monotonic())

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
            if found is not None:
                return found if limit <= _FEW else self._narrowed(found, [*expressions, *bounds], known, sizes)
        return None

    def _narrowed(
        self,
        found: z3.ModelRef,
        expressions: Sequence[Expression],
        known: Sequence[Expression],
        sizes: Sequence[Expression],
    ) -> z3.ModelRef:
        """Return values with which as many sizes as possible are small, so that tensors of them can be made."""
        bounds: list[Expression] = []
        for size in sizes:
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
    question = Question(KernelRun(Scope(), [], [], ()), {}, known, seconds)
    (holds,), _ = question.lowered(condition)
    for answer, goal in ((False, holds), (True, z3.Not(holds))):
        if question.refute([goal], question.closed([goal])) is None:
            return answer
    raise NotVerifiableError(f"a branch of which both sides are possible: {str(condition)[:80]}")


def _timed(property: str, check: Callable[[], tuple[str, str, Counterexample | None]]) -> Outcome:
    started, final = time.perf_counter(), True
    try:
        verdict, reason, found = check()
    except NotVerifiableError as error:
        verdict, reason, found, final = UNKNOWN, str(error), None, not isinstance(error, UndecidedError)
    return Outcome(property, verdict, reason, time.perf_counter() - started, found, final)


_PROVED = (PROVED, "", None)


def memory_safe(question: Question) -> Outcome:
    """Prove that every access lies inside of its tensor, that no index wraps, and what ``tl.assume`` promises."""
    proved: dict[tuple[int, ...], Sequence[Expression]] = {}

    def overflow(access: Access, reached: Sequence[Expression], computed: Expression) -> z3.ModelRef | None:
        """Return values with which an integer that is ``computed`` wraps; what was proved once is not asked again."""
        given, _ = question.lowered(*reached)
        _, fits = question.lowered(computed)
        numbers = [part.get_id() for part in given]
        # What holds where fewer conditions do, holds here.
        keys = [(fit, [(*numbers[:n], fit.get_id()) for n in range(len(given) + 1)]) for fit in fits]
        left = [(fit, known[-1]) for fit, known in keys if not any(key in proved for key in known)]
        found = _first(question, given, [fit for fit, _ in left], access.facts)
        if found is None:
            # Kept, since z3 gives away again the numbers of what is gone.
            proved.update({key: [*given, fit] for fit, key in left})
        return found

    def check() -> tuple[str, str, Counterexample | None]:
        for name, (number, low, high) in question.numbers.items():
            (value,), _ = question.lowered(number)
            found = _first(question, [], [z3.And(value >= low, value <= high)])
            if found is not None:
                return REFUTED, f"argument {name} does not fit its type", example_of(question, found)
        for access in question.run.accesses:
            tensor = question.tensors.get(access.argument)
            if tensor is None:
                raise NotVerifiableError(f"argument {access.argument} is no known tensor")
            if access.width != tensor.width:
                raise NotVerifiableError(f"argument {access.argument} is read as elements of another size")
            (path, mask, inside), fits = question.lowered(
                access.path, access.mask, tensor.within(access.offset, question.span(tensor))
            )
            found = _first(question, [z3.And(path, mask), *fits], [inside], access.facts)
            if found is not None:
                return _refuted(question, f"out-of-bounds {access.kind}", access, found)
        # An integer that wraps could let a lane through that is not meant to be: what precedes takes it for exact.
        for access in question.run.accesses:
            # Where one part of a mask does not hold, it does not matter that another one is wrong.
            parts = sorted(_conjuncts(access.mask), key=lambda part: len(question.lowered(part)[1]))
            steps = (*access.conditions, *parts, access.offset)
            for step, computed in enumerate(steps):
                found = overflow(access, steps[:step], computed)
                if found is not None:
                    what = "index" if step == len(steps) - 1 else "mask"
                    return _refuted(question, f"the {what} of a {access.kind} overflows", access, found)
        for number, fact in enumerate(question.run.scope.facts):
            _, fits = question.lowered(fact)
            if _first(question, [], fits, number) is not None:
                raise NotVerifiableError("an integer that an assertion compares may overflow")
        for promise in question.run.assumed:
            (held,), fits = question.lowered(promise.condition)
            if _first(question, [], [held, *fits], promise.facts) is not None:
                raise NotVerifiableError(f"what tl.assume promises was not proved ({promise.line})")
        return _PROVED

    return _timed(MEMORY, check)


def _first(
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


def _refuted(
    question: Question, what: str, access: Access, model: z3.ModelRef
) -> tuple[str, str, Counterexample | None]:
    example = example_of(question, model)
    loaded = loaded_by((access.offset, access.mask))
    trusted = sorted(name for name in loaded if not (question.run.checks_indices and question.tensors[name].given))
    if trusted:
        raise NotVerifiableError(f"{what} at loaded indices that the kernel need not check ({', '.join(trusted)})")
    place = f"argument {access.argument}, {access.line}"
    return REFUTED, f"{what}: {place}", example


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
        return _PROVED

    return _timed(RACES, check)


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
    known = [*question.closed([mask, address, *_variables(question, write)], write.facts), *fits]
    second_known = [*question.closed([second_mask, second_address, *_variables(question, other)], other.facts), *more]
    other_names = [*pairs, *_marks(known + second_known)]
    twin = [z3.substitute(part, *other_names) for part in (second_mask, second_address, *second_known)]
    if write is other:
        differ = z3.Or(*(v != z3.substitute(v, *other_names) for v in _variables(question, write)))
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


def _variables(question: Question, access: Access) -> list[Expression]:
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


def covered(question: Question, argument: str) -> Outcome:
    """Prove that the stores to ``argument`` write each of its elements.

    By counting: a store that writes no element twice, stays inside of a tensor without gaps, and happens as many times
    as the tensor has elements, writes all of them. To be asked after the other two properties are proved.
    """

    def check() -> tuple[str, str, Counterexample | None]:
        stores = [a for a in question.run.accesses if a.kind == WRITE and a.argument == argument]
        if len(stores) != 1:
            raise NotVerifiableError(f"{len(stores)} stores to {argument}")
        tensor, store = question.tensors[argument], stores[0]
        span, ((count,), _) = question.span(tensor), question.lowered(tensor.count())
        if _first(question, [], [span == count]) is not None:
            raise NotVerifiableError(f"{argument} is a tensor with gaps")
        try:
            found = _first(question, [], [_times(question, store) == count])
        except _UncountedError as uncounted:
            return REFUTED, f"the stores to {argument}: {uncounted}", example_of(question, uncounted.model)
        if found is None:
            return _PROVED
        return REFUTED, f"the stores to {argument} are not as many as it has elements", example_of(question, found)

    return _timed(COVERAGE, check)


class _UncountedError(NotVerifiableError):
    """How often a store happens is not known; where it may be less often than the tensor has elements."""

    def __init__(self, reason: str, model: z3.ModelRef) -> None:
        super().__init__(reason)
        self.model = model


def _times(question: Question, store: Access) -> Expression:
    """Return how many programs, lanes and rounds execute ``store``: a product, one factor for each variable."""
    (mask,), _ = question.lowered(z3.And(store.path, store.mask))
    conditions = _conjuncts(z3.simplify(mask))
    times: Expression = z3.IntVal(1)
    used: list[Expression] = []
    for variable in _variables(question, store):
        _, low, high = question.run.scope.bounds[variable.decl().name()]
        top = None if high is None else question.lowering.of(high)
        below = [(c, bound) for c in conditions if (bound := _upper_bound(question, c, variable)) is not None]
        if below:
            condition, bound = below[0]
            short = None if top is None else _first(question, [], [bound <= top, bound >= 0], store.facts)
            if short is not None:
                raise _UncountedError(f"a grid that may be too small for {bound}", short)
            used.append(condition)
            top = bound
        if top is None or constant(z3.simplify(low)) != 0:
            reason = "a loop that the mask does not end"
            again = _first(question, [mask, variable > 0], [z3.BoolVal(False)], store.facts)
            raise NotVerifiableError(reason) if again is None else _UncountedError(reason, again)
        times = times * top
    for condition in conditions:
        if any(condition.eq(known) for known in used):
            continue
        left = _first(question, used, [condition], store.facts)
        if left is not None:
            raise _UncountedError(f"a mask that is more than the ends of the axes: {str(condition)[:80]}", left)
    return times


def _conjuncts(mask: Expression) -> list[Expression]:
    if z3.is_and(mask):
        return [part for child in mask.children() for part in _conjuncts(child)]
    return [] if z3.is_true(mask) else [mask]


def _upper_bound(question: Question, condition: Expression, variable: Expression) -> Expression | None:
    """Return what ``variable`` has to be below for ``condition`` to hold, if that is all it says."""
    negated = z3.is_not(condition)
    inner = condition.arg(0) if negated else condition
    if not any(is_one(inner) for is_one in (z3.is_le, z3.is_lt, z3.is_ge, z3.is_gt)):
        return None
    low, high = inner.children()
    if z3.is_ge(inner) or z3.is_gt(inner):
        low, high = high, low
    strict = z3.is_lt(inner) or z3.is_gt(inner)
    if negated:
        low, high, strict = high, low, not strict
    # Now it says that ``low`` is below ``high``, or at most that.
    rest = z3.simplify(high - low + variable, som=True)
    if not question.lowering.is_of_sizes(rest):
        return None
    return rest if strict else z3.simplify(rest + 1)


def filled(known: Sequence[Expression], whole: Tensor, parts: Sequence[Tensor], seconds: float) -> Outcome:
    """Prove that tensors fill the memory of ``whole``: no two meet, and together they have as many elements."""

    def check() -> tuple[str, str, Counterexample | None]:
        question = Question(KernelRun(Scope(), [], [], ()), {}, known, seconds)
        span, (counts, _) = question.span(whole), question.lowered(*(part.count() for part in parts))
        if _first(question, [], [z3.Sum(counts) == span]) is not None:
            raise NotVerifiableError("the tensors written into one buffer are not as many elements as it has")
        for number, one in enumerate(parts):
            for other in parts[:number]:
                if _first(question, [], [z3.Not(_same_element(question, one, other))]) is not None:
                    raise NotVerifiableError("two of the tensors written into one buffer may overlap")
        return _PROVED

    return _timed(BUFFERS, check)


def _same_element(question: Question, one: Tensor, other: Tensor) -> Expression:
    """Return a condition that holds where an element of one tensor lies where one of the other does."""
    parts, addresses = [], []
    for side, tensor in enumerate((one, other)):
        (start, *numbers), _ = question.lowered(tensor.start, *tensor.sizes, *tensor.strides)
        sizes, strides = numbers[: len(tensor.sizes)], numbers[len(tensor.sizes) :]
        places = [z3.Int(f"place{side}#{axis}") for axis in range(len(sizes))]
        parts += [z3.And(place >= 0, place < size) for place, size in zip(places, sizes, strict=True)]
        addresses.append(start + z3.Sum([p * s for p, s in zip(places, strides, strict=True)]))
    return z3.And(*parts, addresses[0] == addresses[1])
