"""Loops of a kernel, run once for all of their rounds.

What a round changes and the next one reads is unknown at the start of a round, except where each round adds the same:
then it is the start and a multiple of the counter.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import triton.language as tl
import z3

from pytest_regional.emulation.interpreter.builder import builder, semantic
from pytest_regional.emulation.interpreter.functions import Meaning
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.handles import Symbol, number, range_of, scalar_tensor
from pytest_regional.verify.symbols import (
    ANY,
    LARGEST,
    PRODUCT,
    SMALLEST,
    SUM,
    Expression,
    constant,
    parts_of,
    without_wrap,
    wrapped,
)

_LOOP = "__loop"


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
        if not _is_range(node.iter):
            return super().visit_For(node)
        assert isinstance(node.iter, ast.Call)
        changed = sorted(before & {name for part in node.body for name in _stored(part)})
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


_KEPT = "__kept"


class _Unbound:
    """Stands for a variable that only some branches bind."""


def _kept(value: Callable[[], Any]) -> Any:
    """Return what a variable holds, if anything."""
    try:
        return value()
    except NameError:
        return _Unbound()


def _stored(tree: ast.AST) -> set[str]:
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _is_range(node: ast.expr) -> bool:
    """Say whether a loop goes over ``range`` or ``tl.range``; what is over ``tl.static_range`` is written out."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return bool(name == "range")


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
        self.current: list[Any] = []
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
        self.alike = all(map(self._same_in_all_rounds, self.builder.path[depth:]))
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
        self.current = [self._at(*pair, self.counter) for pair in zip(self.before, self.added, strict=True)]
        return self.current

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
        found = [self._at(*pair, rounds) for pair in zip(self.before, self.added, strict=True)]
        carried = [
            (result.handle, before.handle, entered.handle, left.handle)
            for result, before, added, entered, left in zip(
                found, self.before, self.added, self.current, self.left, strict=True
            )
            if added is None and isinstance(left, tl.core.tensor)
        ]
        largest: list[tuple[Expression, Expression, Expression]] = []
        for result, before, entered, left in carried:
            old = self._old(entered, left)
            if old is None or left.shape != result.shape:
                continue
            combined = combination(left.expression, old) or scaled_sum(left.expression, old, largest)
            if combined is None:
                continue
            if combined[0] == LARGEST:
                places = [*self.builder.instance(), *(lane for lane in left.lanes if lane is not None)]
                if result.expression.num_args() == len(places):
                    largest.append((result.expression.decl()(*places), old, left.expression))
            self._combined(result, before, left, *combined)
        return found

    def _old(self, entered: Symbol, left: Symbol) -> Expression | None:
        """Return what a variable is when a round begins, at the place of what it is when the round ends."""
        lanes = [lane for lane in left.lanes if lane is not None]
        places = [*self.builder.instance(), self.counter, *lanes]
        if not self.alike or entered.expression.num_args() != len(places):
            return None
        return entered.expression.decl()(*places)

    def _combined(self, result: Symbol, before: Symbol, left: Symbol, kind: str, element: Expression) -> None:
        """Note that ``result`` is ``element`` combined over the rounds, if it begins with what changes nothing."""
        lanes = left.lanes
        none = neutral(kind, left.dtype.scalar)
        if none is None or not before.expression.eq(none):
            return
        step = self.step or 1
        element = z3.If(self.start + self.counter * step < self.stop, element, none)
        pairs = [(lane, own) for lane, own in zip(lanes, result.lanes, strict=True) if lane is not None]
        if all(own is not None for _, own in pairs):
            self.builder.combined(result, kind, (self.counter,), self.builder.scope.replaced(element, pairs))

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
        if difference is None or any("#" in name or name.startswith("loaded ") for name in _names(difference)):
            return None
        # Where a branch is not taken in every round, those of the other side may add something else.
        return difference if self.alike else None

    def _same_in_all_rounds(self, condition: Expression) -> bool:
        fixed = {variable.decl().name() for variable in self.builder.instance()} - {self.counter.decl().name()}
        return all(name in fixed or not ("#" in name or name.startswith("loaded ")) for name in _names(condition))

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


def neutral(kind: str, scalar: Any) -> Expression | None:
    """Return what changes nothing when it is combined, or None if that is not known."""
    if kind == ANY:
        return z3.BoolVal(False) if scalar.name == "int1" else None
    if kind in (SUM, PRODUCT):
        return number(int(kind == PRODUCT), scalar)
    if scalar.is_floating():
        return number(-math.inf if kind == LARGEST else math.inf, scalar)
    limits = range_of(scalar)
    return None if limits is None else z3.IntVal(limits[0] if kind == LARGEST else limits[1])


def combination(expression: Expression, old: Expression) -> tuple[str, Expression] | None:
    """Return how ``expression`` combines ``old`` with something that does not depend on it, and with what.

    Returns:
        the kind of reduction and the other element; None if it is something else.
    """
    name = expression.decl().name() if z3.is_app(expression) else ""
    if z3.is_app_of(expression, z3.Z3_OP_ITE):
        return _choice(expression, old)
    children = expression.children()
    if len(children) == 2:
        for one, other in (children, children[::-1]):
            if not one.eq(old) or old.decl().name() in _names(other):
                continue
            if name.startswith("add_") or z3.is_add(expression):
                return SUM, other
            if name.startswith("multiply_") or z3.is_mul(expression):
                return PRODUCT, other
            if z3.is_or(expression):
                return ANY, other
    for bits, signed in ((8, True), (8, False), (16, True), (32, True), (64, True), (32, False), (64, False)):
        inner = without_wrap(expression, bits, signed)
        if not inner.eq(expression):
            return combination(inner, old)
    return None


def _choice(expression: Expression, old: Expression) -> tuple[str, Expression] | None:
    condition, chosen, otherwise = expression.children()
    if old.decl().name() not in _names(condition):
        # Where a mask does not hold, what was there before is kept.
        kept = otherwise if otherwise.eq(old) else chosen
        inner = combination(chosen if otherwise.eq(old) else otherwise, old) if kept.eq(old) else None
        if inner is None:
            return None
        none = _neutral_like(inner[0], inner[1])
        element = z3.If(condition, inner[1], none) if otherwise.eq(old) else z3.If(condition, none, inner[1])
        return None if none is None else (inner[0], element)
    if not chosen.eq(old) or old.decl().name() in _names(otherwise):
        return None
    for kind, compare in ((LARGEST, "fcmpOGT"), (SMALLEST, "fcmpOLT")):
        if _says(condition, old, otherwise, compare):
            return kind, otherwise
    return None


def scaled_sum(
    expression: Expression, old: Expression, largest: Sequence[tuple[Expression, Expression, Expression]]
) -> tuple[str, Expression] | None:
    """Return what a sum of exponentials adds that is scaled anew whenever the largest exponent changes.

    In each round ``m' = max(m, x)`` and ``s' = s * exp(m - m') + exp(x - m')``, so in the end ``s`` is the sum of
    ``exp(x - m)`` with the last ``m`` (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).

    Args:
        expression: the sum when a round ends.
        old: the sum when it begins.
        largest: for each variable that becomes the largest of all: what it is after the loop, when a round begins, and
            when it ends.
    """
    masks = []
    while z3.is_app_of(expression, z3.Z3_OP_ITE) and expression.arg(2).eq(old):
        masks.append(expression.arg(0))
        expression = expression.arg(1)
    for after, before, left in largest:
        inner = left
        while z3.is_app_of(inner, z3.Z3_OP_ITE) and inner.arg(2).eq(before):
            inner = inner.arg(1)
        if not z3.is_app_of(inner, z3.Z3_OP_ITE) or not inner.arg(1).eq(before):
            continue
        exponent = inner.arg(2)
        parts = _applied("add", expression)
        product = _applied("multiply", parts[0]) if parts else None
        if parts is None or product is None or not product[0].eq(old):
            continue
        if not _is_exponential(product[1], before, inner) or not _is_exponential(parts[1], exponent, inner):
            continue
        power = _exponential_in(parts[1])
        difference = power.arg(0)
        term = power.decl()(difference.decl()(exponent, after))
        none = number(0, tl.float32)
        return SUM, z3.If(z3.And(*masks), term, none) if masks else term
    return None


def _applied(name: str, expression: Expression) -> list[Expression] | None:
    """Return the operands of an operation on floats, or None if it is another."""
    same = z3.is_app(expression) and expression.decl().name().startswith(f"{name}_") and expression.num_args() == 2
    return list(expression.children()) if same else None


def _exponential_in(expression: Expression) -> Expression:
    """Return an exponential itself where it is 1 as long as nothing was summed up."""
    return expression.arg(2) if z3.is_app_of(expression, z3.Z3_OP_ITE) else expression


def _is_exponential(expression: Expression, exponent: Expression, largest: Expression) -> bool:
    """Say whether something is ``exp(exponent - largest)``, or 1 where the largest is less than every number."""
    if z3.is_app_of(expression, z3.Z3_OP_ITE):
        condition, one, _ = expression.children()
        lowest = number(-math.inf, tl.float32)
        empty = condition.decl().name().startswith("fcmpOEQ") and condition.arg(0).eq(largest)
        if not empty or not condition.arg(1).eq(lowest) or not one.eq(number(1, tl.float32)):
            return False
    power = _exponential_in(expression)
    if not z3.is_app(power) or not power.decl().name().startswith(("__nv_exp", "exp_")) or power.num_args() != 1:
        return False
    difference = _applied("subtract", power.arg(0))
    return difference is not None and difference[0].eq(exponent) and difference[1].eq(largest)


def _says(condition: Expression, old: Expression, other: Expression, compare: str) -> bool:
    """Say whether ``condition`` compares both, or holds where ``old`` is no number."""
    if z3.is_or(condition):
        left, right = condition.children()
        nan = right.decl().name().startswith("fcmpUNE") and all(part.eq(old) for part in right.children())
        return nan and _says(left, old, other, compare)
    children = condition.children()
    if len(children) != 2:
        return False
    same = children[0].eq(old) and children[1].eq(other)
    whole = z3.is_gt(condition) if compare == "fcmpOGT" else z3.is_lt(condition)
    return same and bool(condition.decl().name().startswith(compare) or whole)


def _neutral_like(kind: str, element: Expression) -> Expression | None:
    """Return what changes nothing, for the type that an element's expression tells."""
    if z3.is_bool(element):
        return z3.BoolVal(False) if kind == ANY else None
    if z3.is_int(element):
        return z3.IntVal(int(kind == PRODUCT)) if kind in (SUM, PRODUCT) else None
    return neutral(kind, tl.float32)


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


def _scalar(value: Any) -> Symbol:
    if isinstance(value, tl.core.tensor):
        found: Symbol = value.handle
        return found
    return Symbol(z3.IntVal(int(value.value if isinstance(value, tl.constexpr) else value)), tl.int32)
