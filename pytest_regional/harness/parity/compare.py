"""Compare two executions of one program and report every difference at once.

What must be equal besides values, and when:

* **Strides of outputs**, where eager's layout is dense (any order of dimensions) or the output aliases something else.
  ``torch.compile`` pins those to what eager has (Inductor's ``keep_output_stride``, AOTAutograd's view replay). Strides
  of dimensions of size one, of empty tensors, and of fresh tensors with gaps or overlaps are not guaranteed.
* **Strides of gradients**, always: autograd stores them under its layout contract (the leaf's strides if that is dense,
  else row-major), whoever computed them.
* **Aliasing**: which inputs, state tensors and earlier outputs an output is, or shares memory with; lost or gained.
* **Random generators**: the states that they are left in. A program that draws its own random numbers need not leave
  eager's state of a generator from which eager draws; ``random_code`` judges those.
"""

from __future__ import annotations

import enum
import functools
import numbers
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy
import torch

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import without_middle
from pytest_regional.harness.parity.captured import Captured
from pytest_regional.harness.parity.execution import NOTHING_NARROW, Execution, other_generators
from pytest_regional.harness.parity.objects import LIMIT, NotComparableError, is_object, walk
from pytest_regional.harness.parity.precision import is_float
from pytest_regional.harness.parity.report import (
    BadProgramError,
    Mismatch,
    NotRefusedError,
    ParityError,
    ParityReport,
    describe_values,
)
from pytest_regional.harness.parity.state import A_TENSOR, ABSENT, LOW_PRECISION_TO_FP64, contents
from pytest_regional.harness.parity.tolerance import (
    FLOAT64_ULPS,
    Coarse,
    Errors,
    Exactness,
    Noise,
    NoiseSource,
    Tolerance,
    ValueEvidence,
    dtype_of_number,
    judge,
)
from pytest_regional.harness.raised import causes

__all__ = ["BadProgramError", "Mismatch", "NotRefusedError", "ParityError", "ParityReport", "compare"]

#: What is equal only to itself and has no parts.
_SINGLE = (
    *(enum.Enum, types.ModuleType, types.BuiltinFunctionType),
    *(torch.dtype, torch.layout, torch.memory_format, torch.qscheme),
)


def _is_equal(found: Any, expected: Any) -> bool | None:
    """Return whether two values of one type are equal; None if neither of them says, so that :func:`_insides` tells.

    Values that hold others may say that they are not because these have no ``__eq__``.
    """
    if found is expected:
        return True
    if isinstance(expected, _SINGLE):
        return False
    if isinstance(expected, type):
        if (found.__module__, found.__qualname__) != (expected.__module__, expected.__qualname__):
            return False
        raise NotComparableError(f"a class that each run makes anew, {expected.__qualname__}")
    if isinstance(expected, types.FunctionType):
        return None if _same_code(found.__code__, expected.__code__) else False
    if isinstance(expected, types.MethodType) or not _has_equality(expected):
        return None
    try:
        equal = found == expected
    except Exception:  # noqa: BLE001 - an __eq__ that fails, on tensors for one, says nothing.
        return None
    if isinstance(expected, set | frozenset) and not equal:
        equal_their_like = (
            isinstance(one, _SINGLE) or (_has_equality(one) and not isinstance(one, torch.Tensor)) for one in expected
        )
        if not all(equal_their_like):
            return None
    return bool(equal) if isinstance(equal, bool | numpy.bool_) else None


def _has_equality(value: Any) -> bool:
    """Say whether the class of ``value`` defines what is equal to it."""
    method: Any = type(value).__eq__
    return method is not object.__eq__


def _insides(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what ``value`` consists of, by what follows its name in reports."""
    if isinstance(value, types.FunctionType):
        yield ".__defaults__", value.__defaults__
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f" (variable {name})", next(iter(contents(cell)), None)
    elif isinstance(value, types.MethodType):
        yield from ((".__func__", value.__func__), (".__self__", value.__self__))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, torch.Generator):
        yield ".get_state()", Captured.of(value.get_state())
    elif isinstance(value, torch.nn.Module):
        raise NotComparableError("a module that the program makes")
    elif isinstance(value, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        raise NotComparableError(f"a {type(value).__name__}, which runs when it is read")
    elif isinstance(value, set | frozenset):
        raise NotComparableError("a set of what has no __eq__, and no order")
    elif isinstance(value, numpy.ndarray):
        yield from ((".dtype", value.dtype), (".tolist()", value.tolist()))
    elif isinstance(value, BaseException):
        yield from ((".args", value.args), (".__dict__", value.__dict__))
    elif not is_object(value):
        raise NotComparableError(f"a {type(value).__name__}, without __eq__ or attributes")
    elif not isinstance(value, numbers.Number):
        for name, inside in walk(value, "", LIMIT):
            yield name, Captured.of(inside) if isinstance(inside, torch.Tensor) else inside


def _same_code(found: types.CodeType, expected: types.CodeType) -> bool:
    """Say whether two functions do the same, wherever they stand in a file."""
    codes = [(one.co_code, one.co_names, one.co_freevars, len(one.co_consts)) for one in (found, expected)]
    return codes[0] == codes[1] and all(map(_same_constant, found.co_consts, expected.co_consts))


def _same_constant(found: Any, expected: Any) -> bool:
    if isinstance(found, types.CodeType) and isinstance(expected, types.CodeType):
        return _same_code(found, expected)
    return type(found) is type(expected) and bool(found == expected)


#: Stands behind the name of a value that is no tensor, in reports of what a program changed.
AFTER = " (after the call)"


def check_program(eager: Execution) -> None:
    """Raise :class:`BadProgramError` if the eager program failed."""
    if eager.exception is not None:
        raise BadProgramError(eager) from eager.exception


#: Of a kink that rounding passes in one run of n, n being what hides it best, this many runs miss it in 3 % of tries.
RUNS = 12
#: A kink that is passed more seldom: so many runs are made where a difference is beyond what the first ones explain,
#: but at most :data:`NEAR` times that. The largest of more runs is larger where errors are rare and large, and hardly
#: elsewhere, so that these cost less of what faults are seen by than a larger factor would.
MORE_RUNS = 36
NEAR = 2.0


class Comparison:
    """What is found when many tensors are compared; subclasses say which, and :meth:`judge` judges each."""

    def __init__(self, tolerance: Tolerance, noise: Noise | None) -> None:
        self.tolerance, self.noise = tolerance, noise
        self.mismatches: list[Mismatch] = []
        self.may_be_rounding = False
        self.rounding_only: list[str] = []
        self.compared = 0
        self.anchored = False
        self.worst_ratio, self.worst_where = 0.0, ""
        self.errors: dict[str, Errors] = {}

    def add(self, where: str, kind: str, detail: str, evidence: ValueEvidence | None = None) -> None:
        """Add a difference."""
        self.mismatches.append(Mismatch(where, kind, detail, evidence))

    def judge(
        self,
        where: str,
        candidate: torch.Tensor,
        eager: torch.Tensor,
        fp64: torch.Tensor | None,
        coarse: Coarse | None = None,
        exact: Exactness | None = None,
        *,
        count: bool = True,
        name: str = "",
    ) -> None:
        """Judge the values of one tensor, called ``name`` where its rounding was measured, and add what is found."""
        noise = None if self.noise is None else self.noise.of(name or where, eager, fp64)
        verdict = judge(self.tolerance, candidate, eager, fp64, coarse, noise, exact)
        self.compared += count
        self.anchored |= verdict.anchored
        if verdict.errors is not None:
            self.errors[where] = verdict.errors
        if verdict.ratio > self.worst_ratio:
            self.worst_ratio, self.worst_where = verdict.ratio, where
        if verdict.rounding_only:
            self.rounding_only.append(where)
        for found in verdict.evidence:
            detail = describe_values(found)
            if verdict.rounding_only:
                detail += "; rounding only: no digit of it is known"
            self.add(where, found.kind, detail, found)
            self.may_be_rounding |= found.kind == "value" and self.tolerance.uses_fp64


AnyComparison = TypeVar("AnyComparison", bound=Comparison)


def judged(compare: Callable[[Noise | None], AnyComparison], noise: NoiseSource | None) -> AnyComparison:
    """Return what ``compare`` finds, with eager's noise where numbers differ by more than it allows without."""
    found = compare(None)
    if noise is None or not found.may_be_rounding:
        return found
    found = compare(noise(RUNS))
    if found.may_be_rounding and found.worst_ratio <= NEAR:
        found = compare(noise(MORE_RUNS))
    return found


def compare(
    eager: Execution,
    candidate: Execution,
    fp64: Execution | None = None,
    *,
    level: str = "close",
    rtol: float | None = None,
    atol: float | None = None,
    label: str = "",
    noise: NoiseSource | None = None,
    exact: Mapping[str, Exactness] = MappingProxyType({}),
    own_draws: bool = False,
) -> ParityReport:
    """Return all differences of ``candidate`` from ``eager``, judged by ``fp64`` (a float64 run) where it can be.

    ``noise`` measures eager's rounding. It is asked where values differ by more than the float64 run's rule allows.
    ``exact`` names outputs, and inputs that are written to, whose values are the same in every correct order of
    evaluation: in those no difference is allowed at the level ``close``. ``own_draws`` says that the candidate draws
    its own random numbers, not eager's.
    """
    tolerance = Tolerance.resolve(level, rtol, atol)
    _refuse_self_comparison(eager, candidate)
    reason = _fp64_unavailable_reason(eager, fp64)

    def compared(noise: Noise | None) -> _OfExecutions:
        comparison = _OfExecutions(tolerance, noise, eager, candidate, fp64, reason, exact)
        comparison.run(own_draws=own_draws)
        return comparison

    return replace(judged(compared, None if eager.unrepeatable else noise).report(), label=label)


def compare_exceptions(eager: Execution, candidate: Execution) -> ParityReport:
    """Return whether ``candidate`` raises what ``eager`` does: the same class, which compilers may have wrapped.

    A backward that eager refuses may be refused when it is compiled, in the forward.
    """
    expected, found = eager.exception, candidate.exception
    same = found is not None and any(isinstance(cause, type(expected)) for cause in causes(found))
    detail = f"compiled {_raised(candidate)}, eager {_raised(eager)}"
    mismatches = () if same else (Mismatch(eager.stage, "exception", detail),)
    return ParityReport(mismatches=mismatches, level="exception", compared=1, rule="the class of the exception")


def _fp64_unavailable_reason(eager: Execution, fp64: Execution | None) -> str | None:
    """Return why ``fp64`` cannot judge runs of ``eager``'s program, or None if it can."""
    if fp64 is None:
        return "no float64 run was made"
    if eager.unrepeatable:
        return f"eager runs differ because of state that cannot be restored: {', '.join(eager.not_compared)}"
    if fp64.fp64_unavailable_reason is not None:
        return fp64.fp64_unavailable_reason
    if fp64.structure != eager.structure or [p for p, _ in fp64.outputs] != [p for p, _ in eager.outputs]:
        return "the float64 run returned another structure"
    return next((why for why in map(_leaf_flaw, eager.outputs, fp64.outputs) if why), None)


def _leaf_flaw(eager: tuple[str, Any], fp64: tuple[str, Any]) -> str | None:
    (path, expected), (_, found) = eager, fp64
    if not isinstance(expected, Captured) or not isinstance(found, Captured):
        same = isinstance(expected, float | complex) or type(expected) is type(found)
        return None if same else f"{path} has another type there"
    if expected.shape != found.shape:
        return f"{path} has another shape in the float64 run"
    if found.dtype != LOW_PRECISION_TO_FP64.get(expected.dtype, expected.dtype):
        return f"{path} is {found.dtype} in the float64 run: the program narrows its values itself"
    if not is_float(expected.dtype) and not torch.equal(expected.value, found.value):
        return f"{path} ({expected.dtype}) differs in the float64 run: its control flow or choices flipped"
    return None


def _refuse_self_comparison(eager: Execution, candidate: Execution) -> None:
    if eager is candidate:
        raise RegionalValueError("compare() got one execution as both eager and candidate; execute the program twice")
    seen = {id(leaf.storage): path for path, leaf in eager.outputs if _has_own_memory(eager, path, leaf)}
    for path, leaf in candidate.outputs:
        if _has_own_memory(candidate, path, leaf) and id(leaf.storage) in seen:
            raise RegionalValueError(
                f"{path} of the candidate is the memory of eager's {seen[id(leaf.storage)]}, and neither an input "
                f"nor a parameter: comparing a tensor with itself shows nothing. "
                f"Let the program compute it again in each run."
            )


def _has_own_memory(execution: Execution, path: str, leaf: Any) -> bool:
    if not isinstance(leaf, Captured) or leaf.storage is None or path in execution.in_objects:
        return False
    alias = execution.aliases.get(path)
    return alias is None or all(name.startswith("output") for name in alias.shares)


class _OfExecutions(Comparison):
    """The comparison of two executions."""

    def __init__(
        self,
        tolerance: Tolerance,
        noise: Noise | None,
        eager: Execution,
        candidate: Execution,
        fp64: Execution | None,
        reason: str | None,
        exact: Mapping[str, Exactness],
    ) -> None:
        super().__init__(tolerance, noise)
        self.eager, self.candidate, self.reason, self.exact = eager, candidate, reason, exact
        self.fp64 = None if reason is not None else fp64
        self.coarse_values = {} if eager.coarse is None else eager.coarse.tensors()
        self.not_compared = list(dict.fromkeys((*eager.not_compared, *eager.notes, *candidate.notes)))
        self._entered: set[tuple[int, int]] = set()

    def run(self, *, own_draws: bool) -> None:
        expected, found = self.eager.exception, self.candidate.exception
        if expected is not None or found is not None:
            same_stage = self.eager.stage == self.candidate.stage
            if expected is None or not isinstance(found, type(expected)) or not same_stage:
                failed = self.candidate if found is not None else self.eager
                detail = f"compiled {_raised(self.candidate)}, eager {_raised(self.eager)}"
                self.add(failed.stage, "exception", detail)
            return
        self._outputs()
        for path, alias in self.eager.aliases.items():
            other = self.candidate.aliases.get(path, alias)
            if other != alias:
                self.add(path, "alias", f"compiled {other}, eager {alias}")
        self._grads()
        self._mutations()
        self._changes()
        for name in other_generators(self.eager, self.candidate):
            drew = name in self.eager.rng_consumed
            if not (drew and own_draws):
                detail = f"compiled leaves the random generator {name!r} in another state than eager, which "
                self.add("random state", "draws", detail + ("draws from it" if drew else "does not touch it"))

    def report(self) -> ParityReport:
        return ParityReport(
            mismatches=tuple(self.mismatches),
            level=self.tolerance.level,
            anchored=self.anchored,
            fp64_unavailable_reason=self.reason if self.tolerance.uses_fp64 else None,
            compared=self.compared,
            worst_ratio=self.worst_ratio,
            worst_where=self.worst_where,
            rule=self._rule(),
            errors=self.errors,
            rounding_only=tuple(self.rounding_only),
            not_compared=tuple(self.not_compared),
        )

    def _rule(self) -> str:
        if self.tolerance.explicit:
            return f"rtol={self.tolerance.rtol}, atol={self.tolerance.atol}"
        if self.tolerance.uses_fp64 and self.reason is not None:
            if self.noise is not None:
                usual = f"eager's own rounding, measured in {len(self.noise.runs)} runs"
            elif self.reason == NOTHING_NARROW:
                usual = f"{FLOAT64_ULPS} ulp of the largest element"
            else:
                usual = "assert_close defaults"
            return f"level 'close' ({usual}, as {self.reason})"
        if self.noise is not None and not self.mismatches:
            return f"level 'close' (with eager's own rounding, measured in {len(self.noise.runs)} runs)"
        coarse = self.eager.coarse.precision if self.eager.coarse is not None else None
        return f"level {self.tolerance.level!r}" + (f" in the backend's {coarse.name}" if coarse else "")

    def _outputs(self) -> None:
        found, expected = dict(self.candidate.outputs), dict(self.eager.outputs)
        if self.eager.structure != self.candidate.structure or expected.keys() != found.keys():
            detail = (
                f"compiled returned {list(found)} in {self.candidate.structure}, "
                f"eager {list(expected)} in {self.eager.structure}"
            )
            self.add("output", "structure", detail)
        fp64_values = dict(self.fp64.outputs) if self.fp64 else {}
        for path in (path for path in expected if path in found):
            alias = self.eager.aliases.get(path)
            strict = alias is not None and bool(alias.shares)
            self._leaf(path, found[path], expected[path], fp64_values.get(path), strict_stride=strict)

    def _leaf(
        self,
        where: str,
        found: Any,
        expected: Any,
        fp64: Any = None,
        *,
        strict_stride: bool = False,
        count: bool = True,
    ) -> None:
        if isinstance(found, Captured) and isinstance(expected, Captured):
            self._tensor(where, found, expected, fp64, strict_stride=strict_stride, count=count)
        elif type(found) is not type(expected):
            self.add(where, "structure", f"compiled {_brief(found)}, eager {_brief(expected)}")
        elif isinstance(expected, float | complex):
            self._number(where, found, expected, fp64)
        else:
            self._value(where, found, expected)

    def _value(self, where: str, found: Any, expected: Any) -> None:
        """Compare two values of one type, which may consist of others."""
        known, equal = len(self.mismatches) + len(self.not_compared), None
        try:
            equal = _is_equal(found, expected)
            divisible = equal is None or (equal is False and is_object(expected))
            if divisible and (id(found), id(expected)) not in self._entered:
                self._entered.add((id(found), id(expected)))
                self._parts(where, dict(_insides(found)), dict(_insides(expected)))
        except NotComparableError as error:
            if equal is None:
                self.not_compared.append(f"{where} ({error})")
        if equal is False and known == len(self.mismatches) + len(self.not_compared):
            self.add(where, "value", f"compiled {_brief(found)}, eager {_brief(expected)}")

    def _parts(self, where: str, found: Mapping[str, Any], expected: Mapping[str, Any], count: bool = False) -> None:
        """Compare what two values, or two tensors, consist of besides elements."""
        for step in {**expected, **found}:
            if step in found and step in expected:
                self._leaf(f"{where}{step}", found[step], expected[step], count=count)
            else:
                detail = "compiled has it, eager lacks it" if step in found else "compiled lacks it, eager has it"
                self.add(f"{where}{step}", "structure", detail)

    def _number(self, where: str, found: Any, expected: Any, fp64: Any) -> None:
        wide = dtype_of_number(expected)
        c, e = torch.tensor(found, dtype=wide), torch.tensor(expected, dtype=wide)
        a = torch.tensor(fp64, dtype=wide) if isinstance(fp64, float | complex) else None
        narrow = torch.complex64 if wide.is_complex else torch.float32
        if self.tolerance.level != "bitwise" and self._was_narrow(narrow, c, e, a):
            c, e = c.to(narrow), e.to(narrow)
        self.judge(where, c, e, a)

    def _was_narrow(self, narrow: torch.dtype, c: torch.Tensor, e: torch.Tensor, a: torch.Tensor | None) -> bool:
        """Say whether a Python number was rounded to a dtype below float64: most leave a tensor through ``.item()``.

        A number that the float64 run leaves as it is was not.
        """
        if any(bool(value.isfinite() != value.to(narrow).isfinite()) for value in (c, e)):
            return False
        if a is not None:
            return not torch.equal(a, e) and not bool(a.isnan() & e.isnan())
        exact = all(torch.equal(value.to(narrow).to(value.dtype), value) for value in (c, e))
        return exact or self.reason != NOTHING_NARROW

    def _tensor(
        self,
        where: str,
        found: Captured,
        expected: Captured,
        fp64: Any,
        *,
        strict_stride: bool,
        count: bool = True,
        name: str = "",
    ) -> None:
        for kind in ("dtype", "device", "requires_grad", "kind", "layout"):
            ours, theirs = getattr(found, kind), getattr(expected, kind)
            if ours != theirs:
                shown = kind if kind in ("dtype", "device", "requires_grad") else "structure"
                self.add(where, shown, f"compiled {ours}, eager {theirs}")
        self._parts(where, found.parts, expected.parts, count=expected.no_value is not None)
        if found.shape != expected.shape:
            self.add(where, "shape", f"compiled {list(found.shape)}, eager {list(expected.shape)}")
            return
        guaranteed = strict_stride or expected.dense
        if guaranteed and found.described_stride() != expected.described_stride():
            self.add(where, "stride", f"compiled {found.stride}, eager {expected.stride} (shape {list(found.shape)})")
        if found.no_value is not None or expected.no_value is not None:
            self.not_compared += [f"{where} ({why})" for why in {found.no_value, expected.no_value} if why]
            return
        have_numbers = all(one.value.dtype == one.dtype for one in (found, expected))
        if found.value.dtype != expected.value.dtype and not have_numbers:
            return  # one holds the bytes of a dtype without arithmetic
        coarse = None
        if self.eager.coarse is not None and self.eager.coarse.precision is not None:
            at_coarse = self.coarse_values.get(where.partition(" (mutated")[0])
            coarse = Coarse(self.eager.coarse.precision, None if at_coarse is None else at_coarse.value)
        value = fp64.value if isinstance(fp64, Captured) else None
        exact = self.exact.get(name or where)
        self.judge(where, found.value, expected.value, value, coarse, exact, count=count, name=name)

    def _grads(self) -> None:
        fp64_values = self.fp64.grads if self.fp64 else {}
        for where in {**self.eager.grads, **self.candidate.grads}:
            expected, found = self.eager.grads.get(where), self.candidate.grads.get(where)
            if expected is not None and found is not None:
                self._tensor(where, found, expected, fp64_values.get(where), strict_stride=True)
            elif expected is not None or found is not None:
                detail = "compiled None, eager has one" if found is None else "compiled has one, eager None"
                self.add(where, "missing-grad", f"gradient: {detail}")

    def _mutations(self) -> None:
        """Compare the tensors of inputs and state to which one of the programs wrote."""
        after, found, fp64_values = (
            {**one.inputs_after, **one.buffers_after} if one else {} for one in (self.eager, self.candidate, self.fp64)
        )
        for name, expected in after.items():
            ours, theirs = name in self.candidate.mutated, name in self.eager.mutated
            if name not in found or not (ours or theirs):
                continue
            where = f"{name} (mutated in place{'' if theirs else ' by the compiled program only'})"
            fp64 = fp64_values.get(name)
            self._tensor(where, found[name], expected, fp64, strict_stride=True, count=theirs, name=name)
            if theirs and not ours and self.mismatches and self.mismatches[-1].where.startswith(f"{name} ("):
                last = self.mismatches[-1]
                self.mismatches[-1] = replace(last, detail=f"the compiled program left it unchanged; {last.detail}")

    def _changes(self) -> None:
        """Compare what was written to arguments and to Python state, besides tensors."""
        expected, found = self.eager.changes, self.candidate.changes
        for name in {**expected, **found}:
            # What one of them did not change is for it what it was before.
            theirs, ours = expected.get(name), found.get(name)
            eager = theirs.after if theirs else found[name].before
            compiled = ours.after if ours else expected[name].before
            if any(value is A_TENSOR or value is ABSENT for value in (eager, compiled)):
                if eager is not compiled:
                    self.add(f"{name}{AFTER}", "structure", f"compiled {_brief(compiled)}, eager {_brief(eager)}")
            else:
                self._leaf(f"{name}{AFTER}", compiled, eager)


def _raised(execution: Execution) -> str:
    error = execution.exception
    return "raised nothing" if error is None else f"raised {type(error).__name__}: {without_middle(str(error))}"


def _brief(value: Any) -> str:
    if isinstance(value, Captured):
        return f"a tensor of shape {list(value.shape)}"
    if value is A_TENSOR or value is ABSENT:
        return repr(value)
    return f"{type(value).__name__} {value!r:.100}"
