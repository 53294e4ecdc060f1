"""One kernel run on symbols: every operation on memory that some program of its grid may make.

Loops run once for all of their rounds: a value that a round changes and the next one reads is unknown at the start of a
round, except where each round adds the same; then it is the start and a multiple of the counter.
"""

from __future__ import annotations

import ast
import math
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import triton.language as tl
import z3

from pytest_regional._torch.triton import jit_parameters, kernel_type, semantic_class
from pytest_regional.emulation.device import EmulationError
from pytest_regional.emulation.interpreter.builder import Interpretation, builder, interpreted_as, semantic
from pytest_regional.emulation.interpreter.functions import Meaning, interpreting, is_rewritten, python_function
from pytest_regional.verify.builder import Access, Assumption, SymbolicBuilder
from pytest_regional.verify.outcomes import NotVerifiableError
from pytest_regional.verify.symbols import (
    Expression,
    Scope,
    Symbol,
    constant,
    number,
    parts_of,
    scalar_tensor,
    without_wrap,
    wrapped,
)

_LOOP, _KEPT = "__loop", "__kept"


class SymbolicMeaning(Meaning):
    """Rewrites loops over ranges so that one round stands for all."""

    def __init__(self) -> None:
        self.bound: set[str] = set()
        self.count = 0

    @property
    def helpers(self) -> Mapping[str, Callable[..., Any]]:
        """Return functions by the name that rewritten text calls."""
        return {**super().helpers, _LOOP: Loop, _KEPT: _kept}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Take parameters for bound."""
        self.bound |= {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Remember what is bound before a loop."""
        if isinstance(node.ctx, ast.Store):
            self.bound.add(node.id)
        return node

    def visit_For(self, node: ast.For) -> Any:
        """Run the body inside a :class:`Loop`, which is given what the body changes."""
        before = set(self.bound)
        # A loop over ``range`` or ``tl.range``; what is over ``tl.static_range`` is written out.
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        over = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if not isinstance(node.iter, ast.Call) or over != "range":
            return super().visit_For(node)
        inside = (name for part in node.body for name in ast.walk(part) if isinstance(name, ast.Name))
        changed = sorted(before & {name.id for name in inside if isinstance(name.ctx, ast.Store)})
        self.count += 1
        loop = f"__loop_{self.count}"
        self.generic_visit(node)
        node.iter.func = ast.Name(id=_LOOP, ctx=ast.Load())
        made = ast.parse(f"{loop} = None").body[0]
        assert isinstance(made, ast.Assign)
        made.value = node.iter
        node.iter = ast.Name(id=loop, ctx=ast.Load())
        if not changed:
            return [made, node]
        names = ", ".join(changed)
        values = ", ".join(f"{_KEPT}(lambda: {name})" for name in changed)
        for place, method in ((0, "enter"), (len(node.body) + 1, "leave")):
            node.body.insert(place, ast.parse(f"({names},) = {loop}.{method}(({values},))").body[0])
        return [made, node, ast.parse(f"({names},) = {loop}.result(({values},))").body[0]]


def _kept(value: Callable[[], Any]) -> Any:
    """Return what a variable holds; something that is like nothing else where only some branches bind it."""
    try:
        return value()
    except NameError:
        return object()


class Loop:
    """One loop while a kernel runs: a trial round that finds out what each round adds, and the one that counts."""

    def __init__(self, *bounds: Any, step: Any = None, **_: Any) -> None:
        handles = [_scalar(bound) for bound in bounds]
        if len(handles) == 1:
            handles.insert(0, Symbol(z3.IntVal(0), tl.int32))
        by = _scalar(step) if step is not None else handles[2] if len(handles) > 2 else Symbol(z3.IntVal(1), tl.int32)
        self.builder = builder()
        self.start, self.stop = handles[0].expression, handles[1].expression
        self.type = tl.int64 if any(h.dtype.scalar.primitive_bitwidth == 64 for h in handles) else tl.int32
        self.step = constant(by.expression)
        if self.step is None or self.step <= 0:
            raise NotVerifiableError("a loop whose step is not a positive constant")
        self.counter: Expression = None
        self.before: Sequence[Any] = ()
        self.entered: Sequence[Any] = ()
        self.left: Sequence[Any] = ()
        self.added: list[Any] = []
        self.trial = False
        self.alike = True
        self.written_out = False

    def __iter__(self) -> Iterator[Any]:
        """Yield the loop's variable in each round that is run."""
        start, stop = constant(self.start), constant(self.stop)
        if start is not None and stop is not None and stop - start <= (self.step or 1):
            self.written_out = True
            if start < stop:
                yield scalar_tensor(Symbol(z3.IntVal(start), self.type))
            return
        scope = self.builder.scope
        self.counter = scope.variable("round", z3.IntVal(0), None)
        offset = self.counter if self.step == 1 else self.counter * self.step
        number = offset if start == 0 else self.start + offset
        self.builder.rounds.append(self.counter)
        self.builder.path.append(number < self.stop)
        depth = len(self.builder.path)
        self.trial = True
        with self.builder.unrecorded():
            yield scalar_tensor(Symbol(number, self.type))
        fixed = {variable.decl().name() for variable in self.builder.instance()} - {self.counter.decl().name()}
        names = {name for condition in self.builder.path[depth:] for name in _names(condition)} - fixed
        self.alike = not any(map(_differs, names))  # in all rounds
        del self.builder.path[depth:]
        self.trial = False
        self.added = [self._addition(*pair) for pair in zip(self.entered, self.left, strict=True)]
        yield scalar_tensor(Symbol(number, self.type))
        del self.builder.path[depth - 1 :]
        self.builder.rounds.pop()

    def enter(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return what the variables are at the start of a round."""
        if self.written_out:
            return values
        if self.trial:
            self.before = [_tensors(value) for value in values]
            self.entered = [self._any(value) for value in self.before]
            return self.entered
        return [self._at(*pair, self.counter) for pair in zip(self.before, self.added, strict=True)]

    def leave(self, values: Sequence[Any]) -> Sequence[Any]:
        """Remember what the variables are at the end of a round."""
        self.left = values
        return values

    def result(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return what the variables are after the loop."""
        if self.written_out or not self.before:
            return values
        step = self.step or 1
        # What is a fact about this variable has to be one in other runs that make it.
        name = f"rounds {self.start.get_id()} {self.stop.get_id()} {step}"
        rounds = self.builder.scope.variable(name, z3.IntVal(0), None)
        last = self.start + (rounds - 1) * step
        done = z3.And(self.start + rounds * step >= self.stop, z3.Or(rounds == 0, last < self.stop))
        self.builder.scope.facts.append(done)
        return [self._at(*pair, rounds) for pair in zip(self.before, self.added, strict=True)]

    def _any(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._any, value))
        if not isinstance(value, tl.core.tensor):
            return value
        handle: Symbol = value.handle
        if handle.argument is not None:
            # A pointer goes on pointing into its argument.
            moved = self.builder.unknown("moved", tl.int64, handle.shape)
            return tl.core.tensor(
                Symbol(moved.expression, handle.dtype, handle.shape, moved.lanes, handle.argument), value.type
            )
        return tl.core.tensor(self.builder.unknown("carried", handle.dtype.scalar, handle.shape), value.type)

    def _addition(self, entered: Any, left: Any) -> Any:
        """Return what a round adds to a variable, or None where that differs; of a tuple, for each of its parts.

        Raises:
            NotVerifiableError: it becomes something of another type, which Triton's compiler refuses.
        """
        left = _tensors(left)
        if isinstance(entered, tuple) and isinstance(left, tuple) and len(entered) == len(left):
            return tuple(self._addition(*pair) for pair in zip(entered, left, strict=True))
        if not isinstance(entered, tl.core.tensor) or not isinstance(left, tl.core.tensor):
            if entered is not left:
                raise NotVerifiableError("a loop that changes what is no number, block or pointer")
            return None
        old, new = entered.handle, left.handle
        if (old.dtype.scalar.name, old.shape) != (new.dtype.scalar.name, new.shape):
            raise NotVerifiableError("a loop that changes the type of a variable")
        if new.argument != old.argument:
            raise NotVerifiableError("a loop that changes which argument a pointer points into")
        if not z3.is_int(old.expression):
            return None
        difference = _unwrapped_sum(new, old)
        if difference is None or any(map(_differs, _names(difference))):
            return None
        # Where a branch is not taken in every round, those of the other side may add something else.
        return difference if self.alike else None

    def _at(self, before: Any, added: Any, counter: Expression) -> Any:
        if isinstance(before, tuple):
            return tuple(self._at(*pair, counter) for pair in zip(before, added, strict=True))
        if not isinstance(before, tl.core.tensor):
            return before
        if added is None:
            return self._any(before)
        handle: Symbol = before.handle
        moved = handle.expression + added * counter
        scalar = handle.dtype.scalar
        if not scalar.is_ptr() and constant(added) != 0:
            # What does not fit wraps in some round; that is the same as if the sum does.
            moved = wrapped(moved, scalar.int_bitwidth, scalar.is_int_signed())
        return tl.core.tensor(handle.like(moved), before.type)


def _tensors(value: Any) -> Any:
    """Return what a loop carries, with tensors in place of numbers."""
    if isinstance(value, (tuple, tl.core.tuple)):
        return tuple(map(_tensors, value))
    if isinstance(value, (bool, int, float, tl.constexpr)):
        return semantic().to_tensor(value, False)
    return value


def _unwrapped_sum(after: Symbol, before: Symbol) -> Expression | None:
    """Return what was added to ``before``, or None."""
    new, old, scalar = after.expression, before.expression, before.dtype.scalar
    if new.eq(old):
        return z3.IntVal(0)
    if not scalar.is_ptr():
        new = without_wrap(new, scalar.int_bitwidth, scalar.is_int_signed())
    if z3.is_add(new) and new.num_args() == 2:
        left, right = new.children()
        if left.eq(old):
            return right
        if right.eq(old):
            return left
    return None


def _names(expression: Expression) -> Iterator[str]:
    """Yield the names of the variables and functions of an expression."""
    return (part.decl().name() for part in parts_of([expression]) if z3.is_app(part))


def _differs(name: str) -> bool:
    """Say whether what has this name may differ between programs, lanes and rounds."""
    return "#" in name or name.startswith("loaded ")


def _scalar(value: Any) -> Symbol:
    if isinstance(value, tl.core.tensor):
        found: Symbol = value.handle
        return found
    return Symbol(z3.IntVal(int(value.value if isinstance(value, tl.constexpr) else value)), tl.int32)


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
            values = _given(function, arguments, types)
            try:
                python_function(function)(**values)
            except NotVerifiableError as error:
                raise NotVerifiableError(f"{error}{_place(error)}") from error.__cause__
            except Exception as error:
                known = isinstance(error.__cause__, (NotVerifiableError, EmulationError))
                said = str(error.__cause__) if known else f"{type(error).__name__}: {error}"
                raise NotVerifiableError(f"{said}{_place(error)}") from error
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
        scalar, argument = kernel_type(str(kind)), None
        if isinstance(value, Pointer):
            value, argument = z3.IntVal(0), value.name
        elif isinstance(value, (bool, int, float)):
            value = number(value, scalar)
        result[parameter.name] = scalar_tensor(Symbol(value, scalar, argument=argument))
    return result
