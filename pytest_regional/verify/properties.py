"""What is asked of z3 about one kernel, for each property, and about the tensors that fill one buffer.

* memory: accesses lie inside of their tensors, and no index overflows.
* races: no two programs write one element, or one what another reads.
* coverage: the stores to a tensor leave out no element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import z3

from pytest_regional.verify.builder import READ, UPDATE, WRITE, Access
from pytest_regional.verify.outcomes import (
    BUFFERS,
    COVERAGE,
    MEMORY,
    RACES,
    REFUTED,
    Counterexample,
    NotVerifiableError,
    Outcome,
)
from pytest_regional.verify.question import HOLDS, Question, Tensor, conjuncts, exception_to, timed, variables_of
from pytest_regional.verify.symbols import Expression, constant, evaluated, parts_of, symbols_of


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
        found = exception_to(question, given, [fit for fit, _ in left], access.facts)
        if found is None:
            # Kept, since z3 gives away again the numbers of what is gone.
            proved.update({key: [*given, fit] for fit, key in left})
        return found

    def check() -> tuple[str, str, Counterexample | None]:
        for name, (number, low, high) in question.numbers.items():
            (value,), _ = question.lowered(number)
            found = exception_to(question, [], [z3.And(value >= low, value <= high)])
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
            found = exception_to(question, [z3.And(path, mask), *fits], [inside], access.facts)
            if found is not None:
                return _refuted(question, f"out-of-bounds {access.kind}", access, found)
        # An integer that wraps could let a lane through that is not meant to be: what precedes takes it for exact.
        for access in question.run.accesses:
            # Where one part of a mask does not hold, it does not matter that another one is wrong.
            parts = sorted(conjuncts(access.mask), key=lambda part: len(question.lowered(part)[1]))
            steps = (*access.conditions, *parts, access.offset)
            for step, computed in enumerate(steps):
                found = overflow(access, steps[:step], computed)
                if found is not None:
                    what = "index" if step == len(steps) - 1 else "mask"
                    return _refuted(question, f"the {what} of a {access.kind} overflows", access, found)
        for number, fact in enumerate(question.run.scope.facts):
            _, fits = question.lowered(fact)
            if exception_to(question, [], fits, number) is not None:
                raise NotVerifiableError("an integer that an assertion compares may overflow")
        for promise in question.run.assumed:
            (held,), fits = question.lowered(promise.condition)
            if exception_to(question, [], [held, *fits], promise.facts) is not None:
                raise NotVerifiableError(f"what tl.assume promises was not proved ({promise.line})")
        return HOLDS

    return timed(MEMORY, check)


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
                for argument in (write.argument, other.argument):
                    if argument not in question.tensors:
                        raise NotVerifiableError(f"argument {argument} is no known tensor")
                if question.tensors[write.argument].storage != question.tensors[other.argument].storage:
                    continue
                found = _meeting(question, write, other, pairs)
                if found is not None:
                    if question.run.equal_indices_allowed and loaded_by((write.offset,)):
                        raise NotVerifiableError(
                            "stores at loaded indices, two of which may be equal: PyTorch leaves open which one lasts"
                        )
                    what = "writes twice" if other is write else f"and a {other.kind} ({other.line}) meet"
                    place = f"argument {write.argument}, {write.line}"
                    return REFUTED, f"a {write.kind} {what}: {place}", example_of(question, found, second=True)
        return HOLDS

    return timed(RACES, check)


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
    # Variables that stand for quotients and the like get second names as well.
    marks = symbols_of(known + second_known).items()
    marked = [(mark, z3.Int(f"{name}'")) for name, mark in marks if name.startswith(("quotient#", "wrapped#"))]
    other_names = [*pairs, *marked]
    twin = [z3.substitute(part, *other_names) for part in (second_mask, second_address, *second_known)]
    if write is other:
        differ = z3.Or(*(v != z3.substitute(v, *other_names) for v in variables_of(question, write)))
    else:
        differ = z3.Or(*(p != z3.substitute(p, *other_names) for p in _programs(question, (write, other))))
        linked = _program_links(question)
        known += linked
        twin += [z3.substitute(part, *other_names) for part in linked]
    meet, known = [mask, twin[0], address == twin[1], differ], [*known, *twin[2:]]
    found = question.refute(meet, known)
    if found is None:
        return None
    # Small sizes are looked for, and two programs rather than one.
    apart = [program != z3.substitute(program, *pairs) for program in _programs(question, (write, other))]
    links = _program_links(question)
    links += [z3.substitute(link, *pairs) for link in links]
    for more in ([z3.Or(*apart)], []) if apart else ([],):
        small = question.small([*meet, *more], [*known, *links], question.symbols())
        if small is not None:
            return small
    return found


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
        if exception_to(question, [], [span == count]) is not None:
            raise NotVerifiableError(f"{argument} is a tensor with gaps")
        try:
            found = exception_to(question, [], [_times(question, store) == count])
        except NotVerifiableError as uncounted:
            if uncounted.model is None:
                raise
            return REFUTED, f"the stores to {argument}: {uncounted}", example_of(question, uncounted.model)
        if found is None:
            return HOLDS
        return REFUTED, f"the stores to {argument} are not as many as it has elements", example_of(question, found)

    return timed(COVERAGE, check)


def _times(question: Question, store: Access) -> Expression:
    """Return how many programs, lanes and rounds execute ``store``: a product, one factor for each variable.

    Raises:
        NotVerifiableError: that is not known; with values where it may be less often than the tensor has elements.
    """
    (mask,), _ = question.lowered(z3.And(store.path, store.mask))
    conditions = conjuncts(z3.simplify(mask))
    times: Expression = z3.IntVal(1)
    used: list[Expression] = []
    for variable in variables_of(question, store):
        _, low, high = question.run.scope.bounds[variable.decl().name()]
        top = None if high is None else question.lowering.of(high)
        below = [(c, bound) for c in conditions if (bound := _upper_bound(question, c, variable)) is not None]
        if below:
            condition, bound = below[0]
            short = None if top is None else exception_to(question, [], [bound <= top, bound >= 0], store.facts)
            if short is not None:
                raise NotVerifiableError(f"a grid that may be too small for {bound}", model=short)
            used.append(condition)
            top = bound
        if top is None or constant(z3.simplify(low)) != 0:
            again = exception_to(question, [mask, variable > 0], [z3.BoolVal(False)], store.facts)
            raise NotVerifiableError("a loop that the mask does not end", model=again)
        times = times * top
    for condition in conditions:
        if any(condition.eq(known) for known in used):
            continue
        left = exception_to(question, used, [condition], store.facts)
        if left is not None:
            reason = f"a mask that is more than the ends of the axes: {str(condition)[:80]}"
            raise NotVerifiableError(reason, model=left)
    return times


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
        question = Question.of_sizes(known, seconds)
        span, (counts, _) = question.span(whole), question.lowered(*(part.count() for part in parts))
        if exception_to(question, [], [z3.Sum(counts) == span]) is not None:
            raise NotVerifiableError("the tensors written into one buffer are not as many elements as it has")
        for number, one in enumerate(parts):
            for other in parts[:number]:
                if exception_to(question, [], [z3.Not(_same_element(question, one, other))]) is not None:
                    raise NotVerifiableError("two of the tensors written into one buffer may overlap")
        return HOLDS

    return timed(BUFFERS, check)


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
    names = (part.decl().name() for part in parts_of(expressions) if z3.is_app(part))
    return {name.split(" ")[1] for name in names if name.startswith("loaded ")}


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
