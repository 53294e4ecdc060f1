"""Integers, truth values and floats as z3's expressions, and the handles of Triton's values that hold them.

Operations that z3 knows nothing of, or answers slowly, are marks in an expression until a question is asked: truncated
and floored quotients, and the wrapping of an integer that does not fit its type. :class:`Lowering` then puts a new
variable in the place of each and says what is known of it.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, TypeAlias

import triton.language as tl
import z3

from pytest_regional.emulation.interpreter.builder import builder
from pytest_regional.verify.outcomes import NotVerifiableError

Expression: TypeAlias = Any
"""An expression of z3, which has no types for mypy: an integer, a truth value, or a float."""

INTEGER, TRUTH, FLOAT = z3.IntSort(), z3.BoolSort(), z3.DeclareSort("Float")

_TRUNCATED = z3.Function("truncated_quotient", INTEGER, INTEGER, INTEGER)
_FLOORED = z3.Function("floored_quotient", INTEGER, INTEGER, INTEGER)
_REMAINDER = z3.Function("truncated_remainder", INTEGER, INTEGER, INTEGER)
_MODULO = z3.Function("floored_remainder", INTEGER, INTEGER, INTEGER)
_WRAPS = {
    f"wrapped_{'i' if signed else 'u'}{bits}": (bits, signed) for bits in (8, 16, 32, 64) for signed in (True, False)
}
_WRAPPED = {limits: z3.Function(name, INTEGER, INTEGER) for name, limits in _WRAPS.items()}

_QUOTIENTS = {_TRUNCATED.name(): True, _FLOORED.name(): False}
_REMAINDERS = {_REMAINDER.name(): _TRUNCATED, _MODULO.name(): _FLOORED}

_numbers = itertools.count()


def limits(bits: int, signed: bool) -> tuple[int, int]:
    """Return the smallest and the largest integer of a type."""
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def constant(expression: Expression) -> int | bool | None:
    """Return the number or truth value that an expression is, or None if it stands for several."""
    if z3.is_int_value(expression):
        return int(expression.as_long())
    if z3.is_true(expression) or z3.is_false(expression):
        return bool(z3.is_true(expression))
    return None


def _divided(mark: Any, fold: Callable[[int, int], int], left: Expression, right: Expression) -> Expression:
    x, m = constant(left), constant(right)
    if x is not None and m:
        return z3.IntVal(fold(x, m))
    if m == 1:
        return left if mark.name() in _QUOTIENTS else z3.IntVal(0)
    return mark(left, right)


# As C divides, and what that leaves, with the sign of the dividend.
truncated_quotient = partial(_divided, _TRUNCATED, lambda x, m: abs(x) // abs(m) * (1 if (x < 0) == (m < 0) else -1))
truncated_remainder = partial(_divided, _REMAINDER, lambda x, m: abs(x) % abs(m) * (1 if x >= 0 else -1))
# As Python divides, and what that leaves, with the sign of the divisor.
floored_quotient = partial(_divided, _FLOORED, operator.floordiv)
floored_remainder = partial(_divided, _MODULO, operator.mod)


def wrapped(value: Expression, bits: int, signed: bool) -> Expression:
    """Return an integer as a type of ``bits`` holds it."""
    number = constant(value)
    if number is None:
        return _WRAPPED[bits, signed](value)
    low, _ = limits(bits, signed)
    return z3.IntVal((number - low) % (1 << bits) + low)


def without_wrap(expression: Expression, bits: int, signed: bool) -> Expression:
    """Return what a type was to hold."""
    while z3.is_app(expression) and _WRAPS.get(expression.decl().name()) == (bits, signed):
        expression = expression.arg(0)
    return expression


@dataclass(frozen=True)
class Index:
    """An integer ``width * base + lane`` with ``0 <= lane < width``, which tells both."""

    base: Expression
    width: Expression
    lane: Expression


@dataclass
class Scope:
    """The variables of one kernel and what is known of them.

    Attributes:
        bounds: for each variable that differs between programs, lanes and rounds of a loop, by its name: its limits,
            the upper one excluded (None: unknown).
        indices: those among them that stand for a sum of two others.
        aliases: lanes that turned out to be others, since blocks with both were combined.
        ranges: for each function that stands for unknown values, by its name: the limits of its type, if it is an
            integer.
        facts: what holds for all programs, lanes and rounds.
        made: how many variables this run has made, by what they are.
    """

    bounds: dict[str, tuple[Expression, Expression, Expression | None]] = field(default_factory=dict)
    indices: dict[str, Index] = field(default_factory=dict)
    aliases: list[tuple[Expression, Expression]] = field(default_factory=list)
    ranges: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    facts: list[Expression] = field(default_factory=list)
    made: Counter[str] = field(default_factory=Counter)

    def variable(self, name: str, low: Expression, high: Expression | None) -> Expression:
        """Return an integer from ``low`` to below ``high``, which this run has not made before."""
        self.made[name] += 1
        full = f"{name}#{self.made[name]}"
        while full in self.bounds:
            known, before, after = self.bounds[full]
            if before.eq(low) and (high is None) == (after is None) and (high is None or high.eq(after)):
                return known
            full += "+"
        variable = z3.Int(full)
        self.bounds[full] = variable, low, high
        return variable

    def index(self, base: Expression, lane: Expression) -> Expression:
        """Return ``width * base + lane``, where ``lane`` is a variable below ``width``, as one variable."""
        for name, known in self.indices.items():
            if known.base.eq(base) and known.lane.eq(lane):
                return self.bounds[name][0]
        width = self.bounds[lane.decl().name()][2]
        _, low, high = self.bounds[base.decl().name()]
        # Another run may make an index as large of something else: the name tells them apart.
        name = f"index {base.decl().name()} {lane.decl().name()}"
        made = self.variable(name, low * width, None if high is None else high * width)
        self.indices[made.decl().name()] = Index(base, width, lane)
        return made

    def replaced(self, expression: Expression, pairs: Sequence[tuple[Expression, Expression]]) -> Expression:
        """Return ``expression`` with other values for variables, also where an index is made of them."""
        changed = list(pairs)
        for name in self._indices_in(expression):
            index = self.indices[name]
            base, lane = (z3.substitute(part, *changed) for part in (index.base, index.lane))
            if base.eq(index.base) and lane.eq(index.lane):
                continue
            apart = not (base.decl().name() in self.bounds and lane.decl().name() in self.bounds)
            changed.append((self.bounds[name][0], base * index.width + lane if apart else self.index(base, lane)))
        return z3.substitute(expression, *changed) if changed else expression

    def _indices_in(self, expression: Expression) -> list[str]:
        """Return the indices that an expression is made of, those of which others are made first."""
        found = set(symbols_of([expression])) & self.indices.keys()
        for name in reversed(self.indices):
            if name in found:
                parts = self.indices[name]
                found |= {parts.base.decl().name(), parts.lane.decl().name()} & self.indices.keys()
        return [name for name in self.indices if name in found]

    def unknown(self, name: str, sort: Any, arguments: Sequence[Expression], range: tuple[int, int] | None) -> Any:
        """Return a new value that ``arguments`` determine."""
        return self.function(f"{name}#{next(_numbers)}", sort, arguments, range)

    def function(self, name: str, sort: Any, arguments: Sequence[Expression], range: tuple[int, int] | None) -> Any:
        """Return the value of the function ``name``, of which nothing is known but the limits of its values."""
        self.ranges[name] = range
        if not arguments:
            return z3.Const(name, sort)
        return z3.Function(name, *(argument.sort() for argument in arguments), sort)(*arguments)

    def renaming(self) -> list[tuple[Expression, Expression]]:
        """Return a second name for every variable: another program, lane or round."""
        return [(variable, z3.Int(f"{name}'")) for name, (variable, _, _) in self.bounds.items()]


class Lowering:
    """Puts variables in place of marks: the same one for the same mark."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.known: list[Expression] = []
        self.quotients: list[tuple[Expression, Expression, Expression]] = []
        self._done: dict[int, tuple[Expression, Expression]] = {}
        self._data: dict[int, tuple[Expression, bool]] = {}

    def is_of_sizes(self, expression: Expression) -> bool:
        """Say whether an expression without marks is the same for all programs, lanes and rounds."""
        quotients = {quotient.decl().name(): parts for *parts, quotient in self.quotients}
        waiting = [expression]
        while waiting:
            for part in parts_of([waiting.pop()]):
                if not z3.is_app(part) or part.decl().kind() != z3.Z3_OP_UNINTERPRETED:
                    continue
                name = part.decl().name()
                if name in quotients:
                    waiting += quotients[name]
                elif part.num_args() or "#" in name:
                    return False
        return True

    def of(self, expression: Expression) -> Expression:
        """Return ``expression`` without marks."""
        found = self._done.get(expression.get_id())
        if found is None:
            # The key is a number that z3 gives away again unless the expression is kept.
            found = self._done[expression.get_id()] = expression, self._lowered(expression)
        return found[1]

    def _lowered(self, expression: Expression) -> Expression:
        if not z3.is_app(expression) or expression.num_args() == 0:
            self._limit(expression)
            return expression
        children = [self.of(child) for child in expression.children()]
        name = expression.decl().name()
        if name in _REMAINDERS:
            quotient = self.of(_REMAINDERS[name](*expression.children()))
            return children[0] - children[1] * quotient
        if name in _QUOTIENTS:
            return self._quotient(children[0], children[1], truncated=_QUOTIENTS[name])
        if name in _WRAPS:
            return self._wrapped(expression, children[0], *_WRAPS[name])
        same = all(a.eq(b) for a, b in zip(children, expression.children(), strict=True))
        result = expression if same else expression.decl()(*children)
        self._limit(result)
        return result

    def _limit(self, expression: Expression) -> None:
        """Say what is known of a value by its type."""
        if z3.is_app(expression) and expression.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            range = self.scope.ranges.get(expression.decl().name().rstrip("'"))
            if range is not None and z3.is_int(expression):
                self.known.append(z3.And(expression >= range[0], expression <= range[1]))

    def _quotient(self, x: Expression, m: Expression, truncated: bool) -> Expression:
        q = z3.Int(f"quotient#{next(_numbers)}")
        self.quotients.append((x, m, q))
        rest, number = x - m * q, constant(m)
        inside = z3.And(rest >= 0, rest < m)
        if truncated:
            negative = z3.And(rest <= 0, rest > -m)
            inside = z3.If(x >= 0, z3.And(inside, q >= 0), negative)
        if number is not None and number > 0:
            self.known.append(inside)
            return q
        self.known.append(z3.Implies(m > 0, inside))
        self.known.append(z3.Implies(z3.And(m > 0, x >= 0), z3.And(q >= 0, q <= x)))
        # As in -(n // -b), which rounds up.
        below = z3.And(rest <= 0, rest > m)
        if truncated:
            below = z3.If(x >= 0, z3.And(rest >= 0, rest < -m), below)
        self.known.append(z3.Implies(m < 0, below))
        return q

    def _wrapped(self, mark: Expression, value: Expression, bits: int, signed: bool) -> Expression:
        low, high = limits(bits, signed)
        if not self._holds_data(mark):
            return value
        result = z3.Int(f"wrapped#{next(_numbers)}")
        fits = z3.And(value >= low, value <= high)
        self.known.append(z3.And(z3.Implies(fits, result == value), result >= low, result <= high))
        return result

    def exact(self, expressions: Iterable[Expression]) -> list[Expression]:
        """Return what has to hold for no integer in ``expressions`` that was taken for exact to wrap."""
        found = []
        for mark in parts_of(expressions):
            name = mark.decl().name() if z3.is_app(mark) else ""
            if name in _WRAPS and not self._holds_data(mark):
                value, (low, high) = self.of(mark.arg(0)), limits(*_WRAPS[name])
                found.append(z3.And(value >= low, value <= high))
        return found

    def _holds_data(self, expression: Expression) -> bool:
        """Say whether an expression depends on what was loaded: such an integer may wrap, as it may in eager."""
        found = self._data.get(expression.get_id())
        if found is None:
            name = expression.decl().name().rstrip("'") if z3.is_app(expression) else ""
            known = name in self.scope.ranges or any(map(self._holds_data, expression.children()))
            found = self._data[expression.get_id()] = expression, known
        return found[1]


def evaluated(expression: Expression, values: Mapping[str, int]) -> int | bool:
    """Return the number or truth value of an expression of sizes, marks included.

    Raises:
        KeyError: it has a variable that ``values`` does not name.
    """
    pairs = [(symbol, z3.IntVal(values[name])) for name, symbol in symbols_of([expression]).items()]
    found = constant(z3.simplify(_folded(z3.substitute(expression, *pairs) if pairs else expression)))
    if found is None:
        raise KeyError(f"{expression} is no number")
    return found


_FOLDED = {
    _TRUNCATED.name(): truncated_quotient,
    _FLOORED.name(): floored_quotient,
    _REMAINDER.name(): truncated_remainder,
    _MODULO.name(): floored_remainder,
}


def _folded(expression: Expression) -> Expression:
    """Return an expression without variables, its marks computed."""
    if not z3.is_app(expression) or expression.num_args() == 0:
        return expression
    children = [z3.simplify(_folded(child)) for child in expression.children()]
    name = expression.decl().name()
    if name in _FOLDED:
        return _FOLDED[name](*children)
    return wrapped(children[0], *_WRAPS[name]) if name in _WRAPS else expression.decl()(*children)


def symbols_of(expressions: Iterable[Expression]) -> dict[str, Expression]:
    """Return the variables and functions without arguments in ``expressions``, by name."""
    if len(_SYMBOLS) > _MOST_KNOWN:
        _SYMBOLS.clear()
    found: dict[str, Expression] = {}
    for expression in expressions:
        found.update(_symbols_in(expression))
    return found


_MOST_KNOWN = 50_000
_SYMBOLS: dict[int, tuple[Expression, dict[str, Expression]]] = {}
"""What is in an expression, by its number, which z3 gives away again unless the expression is kept."""


def _symbols_in(expression: Expression) -> dict[str, Expression]:
    stack = [expression]
    while stack:
        part = stack[-1]
        if part.get_id() in _SYMBOLS:
            stack.pop()
            continue
        children = part.children()
        waiting = [child for child in children if child.get_id() not in _SYMBOLS]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        parts = [names for child in children if (names := _SYMBOLS[child.get_id()][1])]
        found: dict[str, Expression] = {}
        if len(parts) == 1:
            found = parts[0]  # most have one child with symbols, and share what is known of it
        else:
            for names in parts:
                found.update(names)
        if not children and z3.is_const(part) and part.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            found[part.decl().name()] = part
        _SYMBOLS[part.get_id()] = part, found
    return _SYMBOLS[expression.get_id()][1]


def parts_of(expressions: Iterable[Expression]) -> Iterator[Expression]:
    """Yield all that ``expressions`` are made of, each once."""
    seen: set[int] = set()
    stack = list(expressions)
    while stack:
        expression = stack.pop()
        if expression.get_id() not in seen:
            seen.add(expression.get_id())
            yield expression
            stack.extend(expression.children())


Lanes = tuple[Expression | None, ...]


class Symbol:
    """Stands for the class of handles of Triton's interpreter: one element of a block, and the block's lanes.

    Attributes:
        expression: the element; of a pointer how many elements lie between ``argument`` and what it points to.
        shape: sizes of the axes, none for a scalar.
        lanes: a variable for each axis along which elements differ.
        dtype: Triton's type of an element.
        argument: the argument of the kernel that a pointer was computed from.
    """

    __slots__ = ("argument", "dtype", "expression", "lanes", "shape")

    def __init__(
        self, expression: Expression, dtype: Any, shape: Sequence[int] = (), lanes: Lanes = (), argument: Any = None
    ) -> None:
        self.expression = expression
        self.dtype = dtype
        self.shape = tuple(shape)
        self.lanes = tuple(lanes) if lanes else (None,) * len(self.shape)
        self.argument = argument

    @property
    def data(self) -> Symbol:
        """Return itself."""
        return self

    @property
    def size(self) -> int:
        """Return how many elements there are."""
        return math.prod(self.shape)

    def item(self) -> int | bool:
        """Return the number that this is, or the truth value that is tried now.

        Raises:
            NotVerifiableError: it is a number, and stands for several.
        """
        if self.dtype.scalar.name == "int1":
            return bool(builder().decide(self.expression))
        found = constant(z3.simplify(self.expression)) if self.dtype.scalar.is_int() else None
        if found is None:
            raise NotVerifiableError(f"Python needs the number {str(self.expression)[:80]}, which is not constant")
        return found

    def get_element_ty(self) -> Any:
        """Return the type of an element, of a pointer what it points to."""
        found = self.dtype
        while hasattr(found, "element_ty"):
            found = found.element_ty
        return found

    def set_attr(self, key: str, value: Any) -> None:
        """Ignore a promise made to the compiler."""

    def like(self, expression: Expression, dtype: Any = None) -> Symbol:
        """Return another element of the same block."""
        return Symbol(expression, dtype or self.dtype, self.shape, self.lanes, self.argument)


def sort_of(scalar: Any) -> Any:
    """Return what z3 calls the values of one of Triton's types."""
    if scalar.name == "int1":
        return TRUTH
    return INTEGER if scalar.is_ptr() or scalar.is_int() else FLOAT


def range_of(scalar: Any) -> tuple[int, int] | None:
    """Return the limits of an integer type, or None for any other."""
    if scalar.is_ptr() or scalar.name == "int1" or not scalar.is_int():
        return None
    return limits(scalar.int_bitwidth, scalar.is_int_signed())


def number(value: Any, scalar: Any) -> Expression:
    """Return a constant of one of Triton's types."""
    if scalar.name == "int1":
        return z3.BoolVal(bool(value))
    if scalar.is_int():
        return z3.IntVal(int(value))
    return z3.Const(f"float {float(value)!r}", FLOAT)


def scalar_tensor(symbol: Symbol) -> Any:
    """Return a ``tl.tensor`` of a scalar, or of a block if it has a shape."""
    kind = symbol.dtype if not symbol.shape else tl.block_type(symbol.dtype.scalar, list(symbol.shape))
    return tl.core.tensor(symbol, kind)


# Sizes of a graph: Python integers that stand for all values that its guards allow

Decide = Callable[[Expression], bool]
Compare = Callable[[Any, Any], Any]


def expression_of(value: Any) -> Expression:
    """Return what an integer of Python, or a :class:`Size`, is for z3.

    Raises:
        NotVerifiableError: it is neither.
    """
    if isinstance(value, Size):
        return value.expression
    if isinstance(value, int):
        return z3.IntVal(int(value))
    raise NotVerifiableError(f"a size that is {type(value).__name__}")


def _operation(compute: Compare, swapped: bool = False) -> Compare:
    """Return a method that computes with a size and another, or an integer, which stands first if ``swapped``."""

    def operation(self: Size, other: Any) -> Any:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        left, right = self.expression, expression_of(other)
        decide = self.decide or getattr(other, "decide", None)
        return Size(compute(right, left) if swapped else compute(left, right), decide)

    return operation


@dataclass(eq=False, repr=False)
class Size:
    """An integer, or a truth value, of the code that launches kernels.

    Attributes:
        expression: what it is for z3.
        decide: says whether a condition holds, or raises :class:`NotVerifiableError`.
    """

    expression: Expression
    decide: Decide | None = None

    __add__, __radd__ = _operation(operator.add), _operation(operator.add, swapped=True)
    __sub__, __rsub__ = _operation(operator.sub), _operation(operator.sub, swapped=True)
    __mul__, __rmul__ = _operation(operator.mul), _operation(operator.mul, swapped=True)
    __floordiv__, __rfloordiv__ = _operation(floored_quotient), _operation(floored_quotient, swapped=True)
    __mod__, __rmod__ = _operation(floored_remainder), _operation(floored_remainder, swapped=True)
    __lt__, __le__ = _operation(operator.lt), _operation(operator.le)
    __gt__, __ge__ = _operation(operator.gt), _operation(operator.ge)
    __eq__, __ne__ = _operation(operator.eq), _operation(operator.ne)
    __hash__ = None  # type: ignore[assignment]  # equal ones are not known to be

    def __neg__(self) -> Size:
        return Size(-self.expression, self.decide)

    def __pow__(self, other: Any) -> Any:
        if not isinstance(other, int) or other < 0:
            raise NotVerifiableError(f"a size to the power of {other}")
        return Size(reduce(operator.mul, [self.expression] * other, z3.IntVal(1)), self.decide)

    def __bool__(self) -> bool:
        return bool(self._known())

    def __index__(self) -> int:
        return int(self._known())

    __int__ = __index__

    def _known(self) -> int | bool:
        found = constant(z3.simplify(self.expression))
        if found is None and z3.is_bool(self.expression) and self.decide is not None:
            return self.decide(self.expression)
        if found is None:
            raise NotVerifiableError(f"Python needs the size {str(self.expression)[:80]}, which is not constant")
        return found


def _chosen(usual: Callable[..., Any], first: Compare, *values: Any) -> Any:
    given = list(values[0]) if len(values) == 1 else list(values)
    if not any(isinstance(value, Size) for value in given):
        return usual(given)
    expressions = [expression_of(value) for value in given]
    decide = next((value.decide for value in given if isinstance(value, Size) and value.decide), None)
    return Size(reduce(lambda a, b: z3.If(first(a, b), a, b), expressions), decide)


largest, smallest = partial(_chosen, max, operator.ge), partial(_chosen, min, operator.le)
"""Replace ``max`` and ``min``."""

_OPERATIONS: dict[str, Callable[..., Expression]] = {
    "Add": lambda *a: reduce(operator.add, a),
    "Mul": lambda *a: reduce(operator.mul, a),
    "FloorDiv": floored_quotient,
    "CleanDiv": floored_quotient,
    "Mod": floored_remainder,
    "PythonMod": floored_remainder,
    "ModularIndexing": lambda x, d, m: floored_remainder(floored_quotient(x, d), m),
    "Identity": lambda x: x,
    "Max": lambda *a: reduce(lambda x, y: z3.If(x >= y, x, y), a),
    "Min": lambda *a: reduce(lambda x, y: z3.If(x <= y, x, y), a),
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": z3.And,
    "Or": z3.Or,
    "Not": z3.Not,
}


def from_sympy(expression: Any) -> Expression:
    """Return what one of PyTorch's expressions of sizes, which are sympy's, is for z3.

    Raises:
        NotVerifiableError: it has an operation that is not known here.
    """
    if getattr(expression, "is_Symbol", False):
        return z3.Int(str(expression))
    if getattr(expression, "is_Integer", False):
        return z3.IntVal(int(expression))
    if expression in (True, False):
        return z3.BoolVal(bool(expression))
    kind = type(expression).__name__
    if kind == "Pow" and expression.args[1].is_Integer and expression.args[1] >= 0:
        return reduce(operator.mul, [from_sympy(expression.args[0])] * int(expression.args[1]), z3.IntVal(1))
    if kind not in _OPERATIONS:
        raise NotVerifiableError(f"a size with {kind}: {expression}")
    return _OPERATIONS[kind](*map(from_sympy, expression.args))


def known_from(guards: Iterable[Any], ranges: Iterable[tuple[Any, Any, Any]]) -> list[Expression]:
    """Return what guards, and the ranges of symbols, say; what cannot be said here is left out, as less is known then.

    Args:
        guards: sympy's truth values.
        ranges: a symbol, its smallest and its largest value.
    """
    found = []
    most = limits(64, signed=True)  # of PyTorch's sizes, whatever else is known of them
    for symbol, low, high in ranges:
        for bound, otherwise, compare in ((low, most[0], operator.ge), (high, most[1], operator.le)):
            value = int(bound) if getattr(bound, "is_Integer", False) else otherwise
            found.append(compare(from_sympy(symbol), z3.IntVal(value)))
    for guard in guards:
        try:
            found.append(from_sympy(guard))
        except NotVerifiableError:
            continue
    return found
