"""The property ``memory``: accesses lie inside of their tensors, and no index overflows."""

from __future__ import annotations

from collections.abc import Sequence

import z3

from pytest_regional.verify.builder import Access
from pytest_regional.verify.counterexamples import example_of, loaded_by
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.outcomes import MEMORY, REFUTED, Counterexample, Outcome
from pytest_regional.verify.question import HOLDS, Question, conjuncts, exception_to, timed
from pytest_regional.verify.symbols import Expression


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
