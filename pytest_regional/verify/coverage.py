"""The property ``coverage``: the stores to a tensor, and tensors in a buffer, leave out no element."""

from __future__ import annotations

from collections.abc import Sequence

import z3

from pytest_regional.verify.builder import WRITE, Access
from pytest_regional.verify.counterexamples import example_of
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.kernels import KernelRun
from pytest_regional.verify.outcomes import BUFFERS, COVERAGE, REFUTED, Counterexample, Outcome
from pytest_regional.verify.question import HOLDS, Question, Tensor, conjuncts, exception_to, timed, variables_of
from pytest_regional.verify.symbols import Expression, Scope, constant


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
        except _UncountedError as uncounted:
            return REFUTED, f"the stores to {argument}: {uncounted}", example_of(question, uncounted.model)
        if found is None:
            return HOLDS
        return REFUTED, f"the stores to {argument} are not as many as it has elements", example_of(question, found)

    return timed(COVERAGE, check)


class _UncountedError(NotVerifiableError):
    """How often a store happens is not known; where it may be less often than the tensor has elements."""

    def __init__(self, reason: str, model: z3.ModelRef) -> None:
        super().__init__(reason)
        self.model = model


def _times(question: Question, store: Access) -> Expression:
    """Return how many programs, lanes and rounds execute ``store``: a product, one factor for each variable."""
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
                raise _UncountedError(f"a grid that may be too small for {bound}", short)
            used.append(condition)
            top = bound
        if top is None or constant(z3.simplify(low)) != 0:
            reason = "a loop that the mask does not end"
            again = exception_to(question, [mask, variable > 0], [z3.BoolVal(False)], store.facts)
            raise NotVerifiableError(reason) if again is None else _UncountedError(reason, again)
        times = times * top
    for condition in conditions:
        if any(condition.eq(known) for known in used):
            continue
        left = exception_to(question, used, [condition], store.facts)
        if left is not None:
            raise _UncountedError(f"a mask that is more than the ends of the axes: {str(condition)[:80]}", left)
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
        question = Question(KernelRun(Scope(), [], [], ()), {}, known, seconds)
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
