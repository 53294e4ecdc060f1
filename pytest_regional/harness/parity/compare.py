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
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy
import torch

from pytest_regional._base.errors import RegionalError, RegionalValueError
from pytest_regional._base.text import without_middle
from pytest_regional.harness.devices.emulated import causes
from pytest_regional.harness.parity.captured import Aliasing, Captured
from pytest_regional.harness.parity.execution import NOTHING_NARROW, Execution, other_generators
from pytest_regional.harness.parity.noise import Noise, NoiseSource, dtype_of_number, judged
from pytest_regional.harness.parity.objects import LIMIT, is_object, walk
from pytest_regional.harness.parity.report import (
    BadProgramError,
    Comparison,
    Mismatch,
    NotRefusedError,
    ParityError,
    ParityReport,
)
from pytest_regional.harness.parity.state import A_TENSOR, ABSENT, LOW_PRECISION_TO_FP64, Change
from pytest_regional.harness.parity.tolerance import FLOAT64_ULPS, Coarse, Exactness, Rounding, Tolerance, judge

__all__ = [
    "AFTER",
    "BadProgramError",
    "Mismatch",
    "NotComparableError",
    "NotRefusedError",
    "ParityError",
    "ParityReport",
    "RegionalValueError",
    "check_program",
    "compare",
    "compare_exceptions",
    "has_equality",
    "insides",
    "is_equal",
    "same_code",
]


#: What is equal only to itself and has no parts.
_SINGLE = (
    enum.Enum,
    types.ModuleType,
    types.BuiltinFunctionType,
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch.qscheme,
)
_RUNNING = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


class NotComparableError(RegionalError, TypeError):
    """Nothing tells whether two values are equal; the message says why."""


def is_equal(found: Any, expected: Any) -> bool | None:
    """Return whether two values of one type are equal; None if neither of them says, so that :func:`insides` tells.

    Values that hold others may say that they are not because these have no ``__eq__``.
    """
    if found is expected:
        return True
    if isinstance(expected, _SINGLE):
        return False
    if isinstance(expected, type):
        return _same_class(found, expected)
    if isinstance(expected, types.FunctionType):
        return None if same_code(found.__code__, expected.__code__) else False
    if isinstance(expected, types.MethodType) or not has_equality(expected):
        return None
    try:
        equal = found == expected
    except Exception:  # noqa: BLE001 - an __eq__ that fails, on tensors for one, says nothing.
        return None
    if isinstance(expected, set | frozenset) and not equal and not all(map(_equals_its_like, expected)):
        return None
    return bool(equal) if isinstance(equal, bool | numpy.bool_) else None


def has_equality(value: Any) -> bool:
    """Say whether the class of ``value`` defines what is equal to it."""
    method: Any = type(value).__eq__
    return method is not object.__eq__


def _equals_its_like(value: Any) -> bool:
    return isinstance(value, _SINGLE) or (has_equality(value) and not isinstance(value, torch.Tensor))


def insides(value: Any) -> dict[str, Any]:
    """Return what ``value`` consists of, by what follows its name in reports.

    Raises:
        NotComparableError: nothing is known of its insides.
    """
    found = dict(_insides(value))
    if not found and not (is_object(value) or isinstance(value, types.FunctionType)):
        raise NotComparableError(f"a {type(value).__name__}, without __eq__ or attributes")
    return found


def _insides(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        yield ".__defaults__", value.__defaults__
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f" (variable {name})", _content(cell)
    elif isinstance(value, types.MethodType):
        yield from ((".__func__", value.__func__), (".__self__", value.__self__))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, torch.Generator):
        yield ".get_state()", Captured.of(value.get_state())
    elif isinstance(value, torch.nn.Module):
        raise NotComparableError("a module that the program makes")
    elif isinstance(value, _RUNNING):
        raise NotComparableError(f"a {type(value).__name__}, which runs when it is read")
    elif isinstance(value, set | frozenset):
        raise NotComparableError("a set of what has no __eq__, and no order")
    elif isinstance(value, numpy.ndarray):
        yield from ((".dtype", value.dtype), (".tolist()", value.tolist()))
    elif isinstance(value, BaseException):
        yield from ((".args", value.args), (".__dict__", value.__dict__))
    elif is_object(value) and not isinstance(value, numbers.Number):
        for name, inside in walk(value, "", LIMIT):
            yield name, Captured.of(inside) if isinstance(inside, torch.Tensor) else inside


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return None


def _same_class(found: type, expected: type) -> bool:
    if (found.__module__, found.__qualname__) != (expected.__module__, expected.__qualname__):
        return False
    raise NotComparableError(f"a class that each run makes anew, {expected.__qualname__}")


def same_code(found: types.CodeType, expected: types.CodeType) -> bool:
    """Say whether two functions do the same, wherever they stand in a file."""
    if (found.co_code, found.co_names, found.co_freevars) != (
        expected.co_code,
        expected.co_names,
        expected.co_freevars,
    ):
        return False
    pairs = zip(found.co_consts, expected.co_consts, strict=False)
    return len(found.co_consts) == len(expected.co_consts) and all(_same_constant(*pair) for pair in pairs)


def _same_constant(found: Any, expected: Any) -> bool:
    if isinstance(found, types.CodeType) and isinstance(expected, types.CodeType):
        return same_code(found, expected)
    return type(found) is type(expected) and bool(found == expected)


#: Stands behind the name of a value that is no tensor, in reports of what a program changed.
AFTER = " (after the call)"


def check_program(eager: Execution) -> None:
    """Raise :class:`BadProgramError` if the eager program failed."""
    if eager.exception is not None:
        raise BadProgramError(eager) from eager.exception


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

    Raises:
        RegionalValueError: if both hold the same memory, so that the comparison could not fail.
        ValueError, TypeError: for a level or tolerance that makes no sense.
    """
    tolerance = Tolerance.resolve(level, rtol, atol)
    _refuse_self_comparison(eager, candidate)
    reason = fp64_unavailable_reason(eager, fp64)
    usable = fp64 if reason is None else None

    def compared(noise: Noise | None) -> _Comparison:
        comparison = _Comparison(tolerance, usable, eager.coarse, noise, exact, wide=reason == NOTHING_NARROW)
        comparison.run(eager, candidate)
        comparison.generators(eager, candidate, own_draws)
        return comparison

    return judged(compared, None if eager.unrepeatable else noise).report(reason, label)


def compare_exceptions(eager: Execution, candidate: Execution) -> ParityReport:
    """Return whether ``candidate`` raises what ``eager`` does: the same class, which compilers may have wrapped.

    A backward that eager refuses may be refused when it is compiled, in the forward.
    """
    expected, found = eager.exception, candidate.exception
    same = found is not None and any(isinstance(cause, type(expected)) for cause in causes(found))
    detail = f"compiled {_raised(candidate)}, eager {_raised(eager)}"
    mismatches = () if same else (Mismatch(eager.stage, "exception", detail),)
    return ParityReport(mismatches=mismatches, level="exception", compared=1, rule="the class of the exception")


def fp64_unavailable_reason(eager: Execution, fp64: Execution | None) -> str | None:
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
        return None if _is_real_number(expected) or type(expected) is type(found) else f"{path} has another type there"
    if expected.shape != found.shape:
        return f"{path} has another shape in the float64 run"
    if found.dtype != LOW_PRECISION_TO_FP64.get(expected.dtype, expected.dtype):
        return f"{path} is {found.dtype} in the float64 run: the program narrows its values itself"
    exact = not expected.dtype.is_floating_point and not expected.dtype.is_complex
    if exact and not torch.equal(expected.value, found.value):
        return f"{path} ({expected.dtype}) differs in the float64 run: its control flow or choices flipped"
    return None


def _is_real_number(value: Any) -> bool:
    return isinstance(value, float | complex)


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


class _Comparison(Comparison):
    """The comparison of two executions."""

    def __init__(
        self,
        tolerance: Tolerance,
        fp64: Execution | None,
        coarse: Execution | None = None,
        noise: Noise | None = None,
        exact: Mapping[str, Exactness] = MappingProxyType({}),
        *,
        wide: bool = False,
    ) -> None:
        super().__init__(tolerance, noise)
        self.wide = wide
        self.fp64, self.coarse, self.exact = fp64, coarse, exact
        self.coarse_values = _values_of(coarse)
        self.not_compared: list[str] = []
        self._entered: set[tuple[int, int]] = set()

    def run(self, eager: Execution, candidate: Execution) -> None:
        left = (*eager.not_compared, *eager.notes, *candidate.notes)
        self.not_compared += dict.fromkeys(left)
        if eager.exception is not None or candidate.exception is not None:
            self._exceptions(eager, candidate)
            return
        self._outputs(eager, candidate)
        self._aliases(eager.aliases, candidate.aliases)
        self._grads(eager, candidate)
        self._mutations(eager, candidate)

    def generators(self, eager: Execution, candidate: Execution, own_draws: bool) -> None:
        """Compare the final states of the random generators, except where ``own_draws`` leaves them open."""
        if eager.exception is not None or candidate.exception is not None:
            return
        for name in other_generators(eager, candidate):
            drew = name in eager.rng_consumed
            if not (drew and own_draws):
                detail = f"compiled leaves the random generator {name!r} in another state than eager, which "
                self.add("random state", "draws", detail + ("draws from it" if drew else "does not touch it"))

    def report(self, reason: str | None, label: str) -> ParityReport:
        wanted = self.tolerance.uses_fp64
        return ParityReport(
            mismatches=tuple(self.mismatches),
            level=self.tolerance.level,
            anchored=self.anchored,
            fp64_unavailable_reason=reason if wanted else None,
            compared=self.compared,
            worst_ratio=self.worst_ratio,
            worst_where=self.worst_where,
            label=label,
            rule=self._rule(reason),
            errors=self.errors,
            rounding_only=tuple(self.rounding_only),
            not_compared=tuple(self.not_compared),
        )

    def _rule(self, reason: str | None) -> str:
        if self.tolerance.explicit:
            return f"rtol={self.tolerance.rtol}, atol={self.tolerance.atol}"
        if self.tolerance.uses_fp64 and reason is not None and self.noise is not None:
            return f"level 'close' (eager's own rounding, measured in {len(self.noise.runs)} runs, as {reason})"
        if self.tolerance.uses_fp64 and reason is not None:
            usual = f"{FLOAT64_ULPS} ulp of the largest element" if self.wide else "assert_close defaults"
            return f"level 'close' ({usual}, as {reason})"
        if self.noise is not None and not self.mismatches:
            return f"level 'close' (with eager's own rounding, measured in {len(self.noise.runs)} runs)"
        coarse = self.coarse.precision.name if self.coarse is not None and self.coarse.precision is not None else ""
        return f"level {self.tolerance.level!r}" + (f" in the backend's {coarse}" if coarse else "")

    def _exceptions(self, eager: Execution, candidate: Execution) -> None:
        expected, found = eager.exception, candidate.exception
        if expected is not None and isinstance(found, type(expected)) and eager.stage == candidate.stage:
            return
        failed = candidate if found is not None else eager
        self.add(failed.stage, "exception", f"compiled {_raised(candidate)}, eager {_raised(eager)}")

    def _outputs(self, eager: Execution, candidate: Execution) -> None:
        found = dict(candidate.outputs)
        expected = dict(eager.outputs)
        if eager.structure != candidate.structure or expected.keys() != found.keys():
            self.add("output", "structure", _structures(eager, candidate))
        fp64_values = dict(self.fp64.outputs) if self.fp64 else {}
        for path in (path for path in expected if path in found):
            alias = eager.aliases.get(path)
            strict = alias is not None and bool(alias.shares)
            self._leaf(path, found[path], expected[path], fp64_values.get(path), strict_stride=strict)

    def _leaf(self, where: str, found: Any, expected: Any, fp64: Any = None, *, strict_stride: bool = False) -> None:
        if isinstance(found, Captured) and isinstance(expected, Captured):
            self._tensor(where, found, expected, fp64, strict_stride=strict_stride)
        elif type(found) is not type(expected):
            self.add(where, "structure", f"compiled {_brief(found)}, eager {_brief(expected)}")
        elif _is_real_number(expected):
            self._number(where, found, expected, fp64)
        else:
            self._value(where, found, expected)

    def _value(self, where: str, found: Any, expected: Any) -> None:
        """Compare two values of one type, which may consist of others."""
        known, equal = len(self.mismatches) + len(self.not_compared), None
        try:
            equal = is_equal(found, expected)
            divisible = equal is None or (equal is False and is_object(expected))
            if divisible and (id(found), id(expected)) not in self._entered:
                self._entered.add((id(found), id(expected)))
                self._parts(where, insides(found), insides(expected))
        except NotComparableError as error:
            if equal is None:
                self.not_compared.append(f"{where} ({error})")
        if equal is False and known == len(self.mismatches) + len(self.not_compared):
            self.add(where, "value", f"compiled {_brief(found)}, eager {_brief(expected)}")

    def _parts(self, where: str, found: Mapping[str, Any], expected: Mapping[str, Any], count: bool = False) -> None:
        """Compare what two values, or two tensors, consist of besides elements."""
        for step in _ordered_union(expected, found):
            if step in found and step in expected:
                self._part(f"{where}{step}", found[step], expected[step], count)
            else:
                detail = "compiled has it, eager lacks it" if step in found else "compiled lacks it, eager has it"
                self.add(f"{where}{step}", "structure", detail)

    def _part(self, where: str, found: Any, expected: Any, count: bool) -> None:
        if isinstance(found, Captured) and isinstance(expected, Captured):
            self._tensor(where, found, expected, None, strict_stride=False, count=count)
        else:
            self._leaf(where, found, expected)

    def _number(self, where: str, found: Any, expected: Any, fp64: Any) -> None:
        wide = dtype_of_number(expected)
        known = fp64 if _is_real_number(fp64) else None
        c, e = torch.tensor(found, dtype=wide), torch.tensor(expected, dtype=wide)
        a = None if known is None else torch.tensor(known, dtype=wide)
        narrow = torch.complex64 if wide.is_complex else torch.float32
        if self.tolerance.level != "bitwise" and self._was_narrow(narrow, c, e, a):
            c, e = c.to(narrow), e.to(narrow)
        self.judged(where, judge(self.tolerance, c, e, a, noise=self._noise_of(where, e, a)))

    def _was_narrow(self, narrow: torch.dtype, c: torch.Tensor, e: torch.Tensor, a: torch.Tensor | None) -> bool:
        """Say whether a Python number was rounded to a dtype below float64: most leave a tensor through ``.item()``.

        A number that the float64 run leaves as it is was not.
        """
        if any(bool(value.isfinite() != value.to(narrow).isfinite()) for value in (c, e)):
            return False
        if a is not None:
            return not torch.equal(a, e) and not bool(a.isnan() & e.isnan())
        return not self.wide or all(torch.equal(value.to(narrow).to(value.dtype), value) for value in (c, e))

    def _noise_of(self, where: str, eager: torch.Tensor, fp64: torch.Tensor | None) -> Rounding | None:
        return None if self.noise is None else self.noise.of(where, eager, fp64)

    def _tensor(
        self,
        where: str,
        found: Captured,
        expected: Captured,
        fp64: Any,
        *,
        strict_stride: bool,
        count: bool = True,
        name: str | None = None,
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
        if found.value.dtype != expected.value.dtype and not _have_numbers(found, expected):
            return
        value = fp64.value if isinstance(fp64, Captured) else None
        noise = self._noise_of(name or where, expected.value, value)
        known = self.exact.get(name or where)
        verdict = judge(self.tolerance, found.value, expected.value, value, self._coarse(where), noise, known)
        self.judged(where, verdict, count)

    def _coarse(self, where: str) -> Coarse | None:
        if self.coarse is None or self.coarse.precision is None:
            return None
        captured = self.coarse_values.get(where.partition(" (mutated")[0])
        return Coarse(self.coarse.precision, captured.value if isinstance(captured, Captured) else None)

    def _aliases(self, expected: dict[str, Aliasing], found: dict[str, Aliasing]) -> None:
        for path in expected:
            if path in found and found[path] != expected[path]:
                self.add(path, "alias", f"compiled {found[path]}, eager {expected[path]}")

    def _grads(self, eager: Execution, candidate: Execution) -> None:
        fp64_values = self.fp64.grads if self.fp64 else {}
        for where in _ordered_union(eager.grads, candidate.grads):
            expected, found = eager.grads.get(where), candidate.grads.get(where)
            if expected is None and found is None:
                continue
            if expected is None or found is None:
                detail = "compiled None, eager has one" if found is None else "compiled has one, eager None"
                self.add(where, "missing-grad", f"gradient: {detail}")
                continue
            self._tensor(where, found, expected, fp64_values.get(where), strict_stride=True)

    def _mutations(self, eager: Execution, candidate: Execution) -> None:
        after = {**eager.inputs_after, **eager.buffers_after}
        found = {**candidate.inputs_after, **candidate.buffers_after}
        fp64_values = {**self.fp64.inputs_after, **self.fp64.buffers_after} if self.fp64 else {}
        for name in _ordered_union(after, found):
            if name in after and name in found:
                self._after(name, found[name], after[name], fp64_values.get(name), eager, candidate)
        self._changes(eager.changes, candidate.changes)

    def _changes(self, expected: dict[str, Change], found: dict[str, Change]) -> None:
        """Compare what was written to arguments and to Python state, besides tensors."""
        for name in _ordered_union(expected, found):
            # What one of them did not change is for it what it was before.
            theirs, ours = expected.get(name), found.get(name)
            eager = theirs.after if theirs else found[name].before
            compiled = ours.after if ours else expected[name].before
            if any(value is A_TENSOR or value is ABSENT for value in (eager, compiled)):
                if eager is not compiled:
                    self.add(f"{name}{AFTER}", "structure", f"compiled {_brief(compiled)}, eager {_brief(eager)}")
            else:
                self._leaf(f"{name}{AFTER}", compiled, eager)

    def _after(
        self, name: str, found: Captured, expected: Captured, fp64: Any, eager: Execution, candidate: Execution
    ) -> None:
        ours, theirs = name in candidate.mutated, name in eager.mutated
        if not ours and not theirs:
            return
        note = "mutated in place" if theirs else "mutated in place by the compiled program only"
        self._tensor(f"{name} ({note})", found, expected, fp64, strict_stride=True, count=theirs, name=name)
        if theirs and not ours and self.mismatches and self.mismatches[-1].where.startswith(f"{name} ("):
            last = self.mismatches.pop()
            self.mismatches.append(
                Mismatch(last.where, last.kind, f"the compiled program left it unchanged; {last.detail}", last.evidence)
            )


def _values_of(execution: Execution | None) -> dict[str, Any]:
    """Return by name every value of a run: outputs, gradients, inputs and buffers as it left them."""
    if execution is None:
        return {}
    return {**execution.inputs_after, **execution.buffers_after, **execution.grads, **dict(execution.outputs)}


def _have_numbers(*tensors: Captured) -> bool:
    """Say whether tensors of different dtypes hold numbers, and not bytes of a dtype without arithmetic."""
    return all(tensor.value.dtype == tensor.dtype for tensor in tensors)


def _ordered_union(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys([*first, *second]))


def _raised(execution: Execution) -> str:
    error = execution.exception
    return "raised nothing" if error is None else f"raised {type(error).__name__}: {without_middle(str(error))}"


def _structures(eager: Execution, candidate: Execution) -> str:
    return (
        f"compiled returned {[path for path, _ in candidate.outputs]} in {candidate.structure}, "
        f"eager {[path for path, _ in eager.outputs]} in {eager.structure}"
    )


def _brief(value: Any) -> str:
    if isinstance(value, Captured):
        return f"a tensor of shape {list(value.shape)}"
    if value is A_TENSOR or value is ABSENT:
        return repr(value)
    return f"{type(value).__name__} {value!r:.100}"
