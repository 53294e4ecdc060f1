"""One kernel run on symbols: every operation on memory that some program of its grid may make."""

from __future__ import annotations

import math
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import z3

from pytest_regional._torch.triton import jit_parameters, kernel_type, semantic_class
from pytest_regional.emulation.device import EmulationError
from pytest_regional.emulation.interpreter.builder import Interpretation, interpreted_as
from pytest_regional.emulation.interpreter.functions import is_rewritten, python_function
from pytest_regional.emulation.interpreter.patches import interpreting
from pytest_regional.verify.builder import Access, Assumption, SymbolicBuilder
from pytest_regional.verify.handles import Symbol, number, scalar_tensor
from pytest_regional.verify.loops import SymbolicMeaning
from pytest_regional.verify.outcomes import NotVerifiableError
from pytest_regional.verify.symbols import Expression, Scope, constant

_MOST_PATHS = 64
_MOST_BRANCHES = 32


@dataclass(frozen=True)
class Pointer:
    """A tensor argument of a launch: its type in the kernel's signature is all that a kernel sees."""

    name: str


@dataclass
class KernelRun:
    """What a kernel does, for all programs, lanes and rounds.

    Attributes:
        scope: the variables, and what is known of them.
        accesses: the operations on memory, on whatever path.
        assumed: what the compiler is told to rely on.
        programs: the variables of the program's place in the grid.
        equal_indices_allowed: whether two of the indices that the kernel loads and stores at may be equal: then one of
            the stores lasts, and PyTorch does not say which. Where values are added up there, none may be lost.
        checks_indices: whether the kernel has to check the indices that it loads: Inductor's own loops do, while a
            template, or a kernel that somebody wrote, may know what it is given.
    """

    scope: Scope
    accesses: list[Access]
    assumed: list[Assumption]
    programs: tuple[Expression, ...]
    equal_indices_allowed: bool = True
    checks_indices: bool = True


class _Choices:
    """Which side of each branch is taken; both, one run after the other."""

    def __init__(self) -> None:
        self.taken: list[bool] = []
        self.at = 0
        self.known: dict[int, tuple[Expression, bool]] = {}

    def __call__(self, condition: Expression) -> bool:
        """Take the side planned for this branch; a new one is taken first."""
        known = constant(z3.simplify(condition))
        if known is not None:
            return bool(known)
        again = self.known.get(condition.get_id())
        if again is not None:
            return again[1]
        if self.at == len(self.taken):
            self.taken.append(True)
        if self.at == _MOST_BRANCHES:
            raise NotVerifiableError(f"more than {_MOST_BRANCHES} branches in a row, as where programs wait for others")
        self.at += 1
        self.known[condition.get_id()] = condition, self.taken[self.at - 1]
        return self.taken[self.at - 1]

    def next(self) -> bool:
        """Plan the next run; say whether there is one."""
        while self.taken and not self.taken[-1]:
            self.taken.pop()
        if not self.taken:
            return False
        self.taken[-1] = False
        self.at = 0
        self.known.clear()
        return True


def run_kernel(
    function: Any,
    arguments: Mapping[str, Any],
    types: Mapping[str, Any],
    grid: Sequence[Expression],
    changing: Collection[str] = (),
    seconds: float = math.inf,
) -> KernelRun:
    """Run a jitted function on symbols.

    Args:
        function: the ``JITFunction``.
        arguments: for each parameter a :class:`Pointer`, an integer expression, a number, or a constant.
        types: the signature: types of arguments as Inductor and Triton write them (``*fp32``, ``i64``).
        grid: how many programs there are along x, y and z.
        changing: arguments whose memory the launch may change while it is read.
        seconds: for the run.

    Raises:
        NotVerifiableError: the kernel does something of which too little is known.
    """
    scope, choices = Scope(), _Choices()
    made = SymbolicBuilder(scope, grid, choices, changing, seconds)
    semantic = semantic_class()(made)
    runs = 0
    with interpreting(), interpreted_as(Interpretation(made, semantic, SymbolicMeaning)):
        while True:
            runs += 1
            if runs > _MOST_PATHS:
                raise NotVerifiableError(f"more than {_MOST_PATHS} paths through branches")
            made.begin()
            _run(function, _given(function, arguments, types))
            if not choices.next():
                break
    return KernelRun(scope, _merged(made.accesses), made.assumed, made.programs)


def _merged(accesses: Sequence[Access]) -> list[Access]:
    """Return accesses with those as one that a kernel makes whichever side of a branch it takes."""
    groups: dict[tuple[str, str, str], list[Access]] = {}
    for access in accesses:
        group = groups.setdefault((access.kind, access.argument, access.line), [])
        group.append(access)
        while (pair := _first_joined(group)) is not None:
            first, second, joined = pair
            group[first] = joined
            del group[second]
    found = sorted((access for group in groups.values() for access in group), key=lambda access: access.order)
    return [replace(access, order=number) for number, access in enumerate(found)]


def _first_joined(group: Sequence[Access]) -> tuple[int, int, Access] | None:
    for second in range(len(group) - 1, 0, -1):
        for first in range(second):
            joined = _joined(group[first], group[second])
            if joined is not None:
                return first, second, joined
    return None


def _joined(one: Access, other: Access) -> Access | None:
    """Return one access for two that differ in which side of one branch they are on."""
    same = len(one.conditions) == len(other.conditions) and one.offset.eq(other.offset) and one.mask.eq(other.mask)
    if not same:
        return None
    differ = [n for n, (a, b) in enumerate(zip(one.conditions, other.conditions, strict=True)) if not a.eq(b)]
    one = replace(one, facts=min(one.facts, other.facts))
    if not differ:
        return one
    if len(differ) > 1:
        return None
    (place,) = differ
    left, right = one.conditions[place], other.conditions[place]
    if not (z3.Not(left).eq(right) or z3.Not(right).eq(left)):
        return None
    return replace(one, conditions=(*one.conditions[:place], *one.conditions[place + 1 :]))


def _run(function: Any, values: Mapping[str, Any]) -> None:
    try:
        python_function(function)(**values)
    except NotVerifiableError as error:
        raise NotVerifiableError(f"{error}{_place(error)}") from error.__cause__
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, (NotVerifiableError, EmulationError)):
            raise NotVerifiableError(f"{cause}{_place(error)}") from error
        raise NotVerifiableError(f"{type(error).__name__}: {error}{_place(error)}") from error


def _place(error: BaseException) -> str:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_rewritten(frame.filename, frame.name):
            return f" (line {frame.lineno}, in {frame.name}: {frame.line})"
    return ""


def _given(function: Any, arguments: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for every parameter of the kernel."""
    result: dict[str, Any] = {}
    for parameter in jit_parameters(function):
        if parameter.name not in arguments:
            if not parameter.has_default:
                raise NotVerifiableError(f"no value for argument {parameter.name}")
            continue
        value = arguments[parameter.name]
        kind = types.get(parameter.name)
        if parameter.is_constexpr or kind == "constexpr" or value is None:
            result[parameter.name] = value
            continue
        scalar = kernel_type(str(kind))
        if isinstance(value, Pointer):
            result[parameter.name] = scalar_tensor(Symbol(z3.IntVal(0), scalar, argument=value.name))
        elif isinstance(value, (bool, int, float)):
            result[parameter.name] = scalar_tensor(Symbol(number(value, scalar), scalar))
        else:
            result[parameter.name] = scalar_tensor(Symbol(value, scalar))
    return result
