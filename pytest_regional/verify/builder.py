"""The builder whose operations write expressions down instead of computing."""

from __future__ import annotations

import contextlib
import math
import operator
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import triton.language as tl
import z3

from pytest_regional._torch.triton import interpreter_builder_class, interpreter_options
from pytest_regional.emulation.interpreter.functions import is_rewritten
from pytest_regional.verify import symbols
from pytest_regional.verify.outcomes import NotVerifiableError
from pytest_regional.verify.symbols import (
    Expression,
    Lanes,
    Scope,
    Symbol,
    constant,
    number,
    range_of,
    scalar_tensor,
    sort_of,
    without_wrap,
)

READ, WRITE, UPDATE = "load", "store", "atomic operation"


@dataclass(frozen=True)
class Access:
    """One operation of a kernel on memory, for all lanes, programs and rounds.

    Attributes:
        kind: READ, WRITE or UPDATE.
        argument: the name of the argument that the address was computed from.
        offset: elements between the argument and the address.
        conditions: of the branches and loops on the way to it.
        mask: where it happens, of the lanes that get there.
        width: bytes of an element.
        variables: what tells one lane, program or round from another.
        order: how many accesses come before it in a program.
        facts: how many of the scope's facts are known when it happens; what stops the kernel later does not prevent it.
        line: its line in the kernel.
    """

    kind: str
    argument: str
    offset: Expression
    conditions: tuple[Expression, ...]
    mask: Expression
    width: int
    variables: tuple[Expression, ...]
    order: int
    facts: int
    line: str

    @property
    def path(self) -> Expression:
        """Return all of its conditions together."""
        return z3.And(*self.conditions)


def _line() -> str:
    """Return the line of the kernel that is being run."""
    found = ""
    for frame, at in traceback.walk_stack(None):
        if is_rewritten(frame.f_code.co_filename, frame.f_code.co_name):
            found = f"{frame.f_code.co_filename}:{at}"
    return found


@dataclass(frozen=True)
class Assumption:
    """What the compiler is told to rely on.

    Attributes:
        condition: it holds, if the promise is kept.
        facts: how many of the scope's facts come before it.
        line: its line in the kernel.
    """

    condition: Expression
    facts: int
    line: str


class SymbolicBuilder(interpreter_builder_class()):  # type: ignore[misc]
    """What Triton's language calls for every operation.

    Attributes:
        scope: the variables of the kernel.
        grid: how many programs there are along each axis.
        accesses: operations on memory so far.
        assumed: what ``tl.assume`` promises the compiler.
        rounds: counters of the loops that are being run.
        path: conditions under which what runs now is reached.
        changing: arguments whose memory the launch may change while it is read.
    """

    def __init__(
        self,
        scope: Scope,
        grid: Sequence[Expression],
        choose: Callable[[Expression], bool],
        changing: Collection[str] = (),
        seconds: float = math.inf,
    ) -> None:
        super().__init__()
        self.options = interpreter_options(debug=True, sanitize_overflow=False)
        self.scope = scope
        self.changing = changing
        self.deadline = time.process_time() + seconds
        self.grid = tuple(grid)
        self.accesses: list[Access] = []
        self.assumed: list[Assumption] = []
        self.recording = True
        self._choose = choose
        self.begin()

    def begin(self) -> None:
        """Begin one run of the kernel, with other branches taken than before."""
        self.scope.made.clear()  # the same variables are made again, so that paths can be compared
        self.programs = tuple(
            self.scope.variable(f"program{axis}", z3.IntVal(0), size) for axis, size in enumerate(self.grid)
        )
        self.rounds: list[Expression] = []
        self.path: list[Expression] = []
        self._versions: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        """Refuse, by name, what neither this class nor Triton's interpreter know."""
        if name.startswith(("create_", "get_")):
            raise NotVerifiableError(f"Triton operation {name.removeprefix('create_')}")
        raise AttributeError(name)

    # Constants

    def _number(self, value: Any, scalar: Any) -> Symbol:
        return Symbol(number(value, scalar), scalar)

    def get_null_value(self, type: Any) -> Symbol:
        """Return zero."""
        return self._number(0, type.scalar)

    def get_all_ones_value(self, type: Any) -> Symbol:
        """Return an integer whose bits are all set."""
        low, high = range_of(type.scalar) or (0, 1)
        return self._number(-1 if low < 0 else high, type.scalar)

    def get_bf16(self, value: float) -> Symbol:
        """Return a bfloat16 constant."""
        return self._number(value, tl.bfloat16)

    create_bf16 = get_bf16

    # Programs

    def create_get_program_id(self, axis: int) -> Symbol:
        """Return an arbitrary program of the grid."""
        if constant(self.grid[axis]) == 1:
            return Symbol(z3.IntVal(0), tl.int32)
        return Symbol(self.programs[axis], tl.int32)

    def create_get_num_programs(self, axis: int) -> Symbol:
        """Return the size of the grid."""
        return Symbol(self.grid[axis], tl.int32)

    def decide(self, condition: Expression) -> bool:
        """Say which side of a branch to run; both are, one after the other."""
        taken = self._choose(condition)
        self.path.append(condition if taken else z3.Not(condition))
        return taken

    def instance(self) -> tuple[Expression, ...]:
        """Return the variables that tell what runs now from the same in another program or round."""
        return (*self.programs, *self.rounds)

    # Blocks

    def _lane(self, size: int) -> Expression | None:
        return None if size == 1 else self.scope.variable("lane", z3.IntVal(0), z3.IntVal(size))

    def create_make_range(self, ret_ty: Any, start: int, stop: int) -> Symbol:
        """Return an arbitrary lane."""
        lane = self._lane(stop - start)
        return Symbol(z3.IntVal(start) if lane is None else _plus(lane, start), tl.int32, (stop - start,), (lane,))

    def create_splat(self, ret_ty: Any, arg: Symbol) -> Symbol:
        """Repeat a scalar."""
        return Symbol(arg.expression, arg.dtype.scalar, tuple(ret_ty.shape), argument=arg.argument)

    def create_unsplat(self, arg: Symbol) -> Symbol:
        """Return the only element of a block as a scalar."""
        return Symbol(arg.expression, arg.dtype.scalar, argument=arg.argument)

    def create_expand_dims(self, arg: Symbol, axis: int) -> Symbol:
        """Insert an axis of length one."""
        shape, lanes = list(arg.shape), list(arg.lanes)
        shape.insert(axis, 1)
        lanes.insert(axis, None)
        return Symbol(arg.expression, arg.dtype, shape, tuple(lanes), arg.argument)

    def create_broadcast(self, arg: Symbol, shape: Any) -> Symbol:
        """Repeat along axes of length one."""
        return Symbol(arg.expression, arg.dtype, tuple(shape), arg.lanes, arg.argument)

    def create_trans(self, arg: Symbol, perm: Any) -> Symbol:
        """Permute axes."""
        shape, lanes = [arg.shape[i] for i in perm], tuple(arg.lanes[i] for i in perm)
        return Symbol(arg.expression, arg.dtype, shape, lanes, arg.argument)

    def create_reshape(self, arg: Symbol, shape: Any, allow_reorder: bool) -> Symbol:
        """Change the shape, in order: an old lane is a digit of what the new ones count."""
        shape = tuple(shape)
        if _without_ones(shape) == _without_ones(arg.shape):
            old = iter(lane for lane, size in zip(arg.lanes, arg.shape, strict=True) if size != 1)
            lanes = tuple(None if size == 1 else next(old) for size in shape)
            return Symbol(arg.expression, arg.dtype, shape, lanes, arg.argument)
        if all(lane is None for lane in arg.lanes):
            return Symbol(arg.expression, arg.dtype, shape, argument=arg.argument)
        lanes = tuple(map(self._lane, shape))
        terms = [lane * stride for lane, stride in zip(lanes, _strides(shape), strict=True) if lane is not None]
        position = z3.Sum(terms) if len(terms) != 1 else terms[0]
        pairs = []
        for lane, size, stride in zip(arg.lanes, arg.shape, _strides(arg.shape), strict=True):
            if lane is not None:
                digit = symbols.floored_remainder(
                    symbols.floored_quotient(position, z3.IntVal(stride)), z3.IntVal(size)
                )
                pairs.append((lane, digit))
        expression = self.scope.replaced(arg.expression, pairs)
        names = {lane.decl().name() for lane, _ in pairs}
        names |= {name for name, index in self.scope.indices.items() if index.lane.decl().name() in names}
        about = [fact for fact in self.scope.facts if names & symbols.symbols_of([fact]).keys()]
        self.scope.facts.extend(self.scope.replaced(fact, pairs) for fact in about)
        return Symbol(expression, arg.dtype, shape, lanes, arg.argument)

    def _together(self, *handles: Symbol) -> tuple[list[Expression], tuple[int, ...], Lanes]:
        """Return the elements at one place of several blocks of one shape, the shape, and its lanes.

        Raises:
            NotVerifiableError: the time for the kernel is used up.
        """
        if time.process_time() > self.deadline:
            raise NotVerifiableError("out of time while the kernel was run on symbols")
        shape = max((handle.shape for handle in handles), key=lambda s: (len(s), math.prod(s)))
        lanes: list[Expression | None] = [None] * len(shape)
        expressions = []
        for handle in handles:
            pairs = []
            for axis, lane in enumerate(handle.lanes):
                if lane is None:
                    continue
                if lanes[axis] is None:
                    # As in x[:, None] + x[None, :], where rows and columns are counted apart.
                    twice = any(other is not None and other.eq(lane) for other in lanes)
                    lanes[axis] = self._lane(shape[axis]) if twice else lane
                if not lanes[axis].eq(lane):  # type: ignore[union-attr]
                    pairs.append((lane, lanes[axis]))
            self.scope.aliases.extend(pairs)
            expressions.append(self.scope.replaced(handle.expression, pairs) if pairs else handle.expression)
        return expressions, shape, tuple(lanes)

    def unknown(self, name: str, scalar: Any, shape: Sequence[int] = (), lanes: Lanes | None = None) -> Symbol:
        """Return a block of which nothing is known but its type; it differs between programs, rounds and lanes."""
        places = tuple(map(self._lane, shape)) if lanes is None else lanes
        arguments = [*self.instance(), *(lane for lane in places if lane is not None)]
        return Symbol(self.scope.unknown(name, sort_of(scalar), arguments, range_of(scalar)), scalar, shape, places)

    def _function(self, name: str, operands: Sequence[Symbol], scalar: Any) -> Symbol:
        """Return the value of an operation of which nothing is known but that equal operands give equal results."""
        expressions, shape, lanes = self._together(*operands)
        types = "_".join(operand.dtype.scalar.name for operand in operands)
        full = f"{name}_{types}_{scalar.name}"
        return Symbol(self.scope.function(full, sort_of(scalar), expressions, range_of(scalar)), scalar, shape, lanes)

    # Memory

    def create_load(self, ptr: Symbol, *_: Any, **__: Any) -> Symbol:
        """Load without a mask."""
        return self.create_masked_load(ptr, self._number(True, tl.int1), None)

    def create_masked_load(self, ptrs: Symbol, mask: Symbol, other: Symbol | None, *_: Any, **__: Any) -> Symbol:
        """Load where ``mask`` holds; elsewhere the result is ``other``, or zero."""
        scalar = tl.int8 if ptrs.get_element_ty() == tl.int1 else ptrs.get_element_ty()
        (offset, where, rest), shape, lanes = self._together(ptrs, mask, other or self._number(0, scalar))
        self._access(READ, ptrs, offset, where, lanes)
        name = f"loaded {ptrs.argument} {self._versions.get(ptrs.argument, 0)} as {scalar.name}"
        place = [offset]
        if ptrs.argument in self.changing:
            # Whoever reads it, and when, may find something else.
            place += [*self.instance(), *(lane for lane in lanes if lane is not None)]
        value = self.scope.function(name, sort_of(scalar), place, range_of(scalar))
        if z3.is_true(where):
            return Symbol(value, scalar, shape, lanes)
        return Symbol(z3.If(where, value, _as(rest, value)), scalar, shape, lanes)

    def create_store(self, ptr: Symbol, val: Symbol, *_: Any, **__: Any) -> None:
        """Store without a mask."""
        self.create_masked_store(ptr, val, self._number(True, tl.int1))

    def create_masked_store(self, ptrs: Symbol, value: Symbol, mask: Symbol, *_: Any, **__: Any) -> None:
        """Store where ``mask`` holds."""
        (offset, where, _), _, lanes = self._together(ptrs, mask, value)
        self._access(WRITE, ptrs, offset, where, lanes)
        self._versions[ptrs.argument] = self._versions.get(ptrs.argument, 0) + 1

    def create_atomic_rmw(self, rmwOp: Any, ptr: Symbol, val: Symbol, mask: Symbol, sem: Any, scope: Any) -> Symbol:
        """Update; what was there before is unknown."""
        (offset, where, _value), shape, lanes = self._together(ptr, mask, val)
        self._access(UPDATE, ptr, offset, where, lanes)
        self._versions[ptr.argument] = self._versions.get(ptr.argument, 0) + 1
        return self.unknown("updated", val.dtype.scalar, shape)

    def create_atomic_cas(self, ptr: Symbol, cmp: Symbol, val: Symbol, sem: Any, scope: Any) -> Symbol:
        """Exchange; what was there before is unknown."""
        return self.create_atomic_rmw(None, ptr, val, self._number(True, tl.int1), sem, scope)

    def _access(self, kind: str, ptr: Symbol, offset: Expression, mask: Expression, lanes: Lanes) -> None:
        if ptr.argument is None:
            raise NotVerifiableError("an address that no argument leads to")
        if not self.recording:
            return
        # Lanes along which nothing differs write one element several times, as one.
        own = [lane for lane in lanes if lane is not None]
        width = _width(ptr.get_element_ty())
        place = (*self.instance(), *own)
        order, facts = len(self.accesses), len(self.scope.facts)
        self.accesses.append(
            Access(kind, ptr.argument, offset, tuple(self.path), mask, width, place, order, facts, _line())
        )

    def create_addptr(self, ptr: Symbol, offset: Symbol) -> Symbol:
        """Move a pointer by elements."""
        (start, by), shape, lanes = self._together(ptr, offset)
        return Symbol(_plus(start, by), ptr.dtype, shape, lanes, ptr.argument)

    def create_assert(self, condition: Symbol, message: Any, *_: Any) -> None:
        """Take for a fact what stops the kernel if it does not hold."""
        self._fact(condition)

    def create_assume(self, condition: Symbol) -> None:
        """Remember what the compiler relies on, to be proved, and take it for a fact from here on."""
        if self.recording:
            promise = z3.Implies(z3.And(*self.path), condition.expression)
            self.assumed.append(Assumption(promise, len(self.scope.facts), _line()))
        self._fact(condition)

    def _fact(self, condition: Symbol) -> None:
        self.scope.facts.append(z3.Implies(z3.And(*self.path), condition.expression))

    def create_print(self, *_: Any) -> None:
        """Do nothing: there is nothing to print, there are no caches, and operations on blocks happen in order."""

    create_barrier = get_cache_policy = create_print

    # Arithmetic

    def _integers(self, lhs: Symbol, rhs: Symbol, compute: Callable[[Any, Any], Any]) -> Symbol:
        """Compute with integers, and wrap what does not fit."""
        (left, right), shape, lanes = self._together(lhs, rhs)
        scalar = lhs.dtype.scalar
        exact = compute(left, right)
        return Symbol(symbols.wrapped(exact, scalar.int_bitwidth, scalar.is_int_signed()), scalar, shape, lanes)

    def create_add(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Add integers."""
        if _is_truth(lhs):
            return self.create_xor(lhs, rhs)
        indexed = self._indexed(lhs, rhs) or self._indexed(rhs, lhs)
        return indexed or self._integers(lhs, rhs, _plus)

    def _indexed(self, base: Symbol, lane: Symbol) -> Symbol | None:
        """Return ``base + lane`` as one variable where ``base`` counts blocks as wide as the lane, or the program."""
        inner, scalar = lane.expression, base.dtype.scalar
        if not z3.is_const(inner) or any(place is not None for place in base.lanes):
            return None
        _, low, width = self.scope.bounds.get(inner.decl().name(), (None, None, None))
        if width is None or constant(low) != 0:
            return None
        counted = _multiple_of(base.expression, width, scalar)
        if counted is None or counted.decl().name() not in self.scope.bounds or counted.eq(inner):
            return None
        _, shape, places = self._together(base, lane)
        index = self.scope.index(counted, inner)
        return Symbol(symbols.wrapped(index, scalar.int_bitwidth, scalar.is_int_signed()), scalar, shape, places)

    def create_sub(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Subtract integers."""
        return self.create_xor(lhs, rhs) if _is_truth(lhs) else self._integers(lhs, rhs, operator.sub)

    def create_mul(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Multiply integers."""
        return self.create_and(lhs, rhs) if _is_truth(lhs) else self._integers(lhs, rhs, _times)

    def create_shl(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Shift left."""
        places = constant(rhs.expression)
        if places is None or not 0 <= places < lhs.dtype.scalar.int_bitwidth:
            return self._function("shl", (lhs, rhs), lhs.dtype.scalar)
        return self._integers(lhs, rhs, lambda a, _: a * (1 << int(places)))

    def _shifted(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        places = constant(rhs.expression)
        scalar = lhs.dtype.scalar
        if places is None or not 0 <= places < scalar.int_bitwidth:
            return self._function("shr", (lhs, rhs), scalar)
        (left, _), shape, lanes = self._together(lhs, rhs)
        return Symbol(symbols.floored_quotient(left, z3.IntVal(1 << int(places))), scalar, shape, lanes)

    create_ashr = _shifted

    def create_lshr(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Shift right, filling with zeros."""
        scalar = lhs.dtype.scalar
        return self._function("lshr", (lhs, rhs), scalar) if scalar.is_int_signed() else self._shifted(lhs, rhs)

    def _bits(self, name: str, lhs: Symbol, rhs: Symbol, truth: Callable[[Any, Any], Any]) -> Symbol:
        if not _is_truth(lhs):
            return self._function(name, (lhs, rhs), lhs.dtype.scalar)
        (left, right), shape, lanes = self._together(lhs, rhs)
        return Symbol(truth(left, right), tl.int1, shape, lanes)

    def create_and(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Combine bits, or truth values."""
        for one, other in ((lhs, rhs), (rhs, lhs)):
            bits = None if _is_truth(lhs) else constant(other.expression)
            if bits is not None and bits >= 0 and bits & (bits + 1) == 0:
                (left, _), shape, lanes = self._together(one, other)
                return Symbol(symbols.floored_remainder(left, z3.IntVal(bits + 1)), lhs.dtype.scalar, shape, lanes)
        return self._bits("and", lhs, rhs, _both)

    def create_or(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Combine bits, or truth values."""
        return self._bits("or", lhs, rhs, z3.Or)

    def create_xor(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Combine bits, or truth values."""
        return self._bits("xor", lhs, rhs, _differ)

    def create_iabs(self, arg: Symbol) -> Symbol:
        """Return the absolute value."""
        return self._integers(arg, arg, lambda a, _: z3.If(a < 0, -a, a))

    def _chosen(self, lhs: Symbol, rhs: Symbol, first: Callable[[Any, Any], Any]) -> Symbol:
        (left, right), shape, lanes = self._together(lhs, rhs)
        if _is_truth(lhs):
            left, right = z3.If(left, 1, 0), z3.If(right, 1, 0)
            return Symbol(z3.If(first(left, right), left, right) == 1, tl.int1, shape, lanes)
        return Symbol(z3.If(first(left, right), left, right), lhs.dtype.scalar, shape, lanes)

    def create_minsi(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Return the smaller."""
        return self._chosen(lhs, rhs, operator.le)

    def create_maxsi(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Return the larger."""
        return self._chosen(lhs, rhs, operator.ge)

    create_minui, create_maxui = create_minsi, create_maxsi

    def create_select(self, condition: Symbol, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Choose by condition."""
        if lhs.argument != rhs.argument:
            raise NotVerifiableError("a choice between pointers into different arguments")
        (where, left, right), shape, lanes = self._together(condition, lhs, rhs)
        return Symbol(z3.If(where, left, _as(right, left)), rhs.dtype.scalar, shape, lanes, lhs.argument)

    # Conversions

    def cast_impl(self, src: Symbol, dst_type: Any) -> Symbol:
        """Convert to another type; every ``create_*_to_*`` of Triton's interpreter ends here."""
        target, source = dst_type.scalar, src.dtype.scalar
        if target.name == source.name:
            return src
        if target.is_ptr() or source.is_ptr():
            if not (target.is_ptr() and src.dtype.scalar.is_ptr()):
                raise NotVerifiableError("an address that is turned into a number, or the reverse")
            old, new = _width(src.get_element_ty()), _width(target.element_ty)
            if old == new:
                return src.like(src.expression, target)
            bytes_before = constant(z3.simplify(src.expression * old))
            if bytes_before is None or bytes_before % new:
                raise NotVerifiableError("a pointer to elements of another size, at an address that is not constant")
            return src.like(z3.IntVal(bytes_before // new), target)
        if source.is_floating() or target.is_floating():
            return self._function("converted", (src,), target)
        if target.name == "int1":
            return src.like(src.expression != 0, target)
        value = z3.If(src.expression, z3.IntVal(1), z3.IntVal(0)) if source.name == "int1" else src.expression
        own, other = range_of(source) or (0, 1), range_of(target) or (0, 1)
        if own[0] < other[0] or own[1] > other[1]:
            value = symbols.wrapped(value, target.int_bitwidth, target.is_int_signed())
        return src.like(value, target)

    def create_fp_to_fp(self, src: Symbol, dst_type: Any, *_: Any) -> Symbol:
        """Convert between floats."""
        return self.cast_impl(src, dst_type)

    def create_bitcast(self, src: Symbol, dst_type: Any) -> Symbol:
        """Take the same bits for another type."""
        source, target = src.dtype.scalar, dst_type.scalar
        if source.is_ptr() or target.is_ptr() or (source.is_int() and target.is_int()):
            return self.cast_impl(src, dst_type)
        return self._function("bits", (src,), target)

    create_int_to_ptr = create_ptr_to_int = create_bitcast

    # Operations of which nothing needs to be known

    def binary_op(self, lhs: Symbol, rhs: Symbol, op: Any) -> Symbol:
        """Return an unknown value; the operations on integers have methods here."""
        return self._function(_name_of(op), (lhs, rhs), lhs.dtype.scalar)

    def unary_op(self, arg: Symbol, op: Any) -> Symbol:
        """Return an unknown value."""
        return self._function(_name_of(op), (arg,), arg.dtype.scalar)

    def ternary_op(self, lhs: Symbol, rhs: Symbol, other: Symbol, op: Any) -> Symbol:
        """Return an unknown value."""
        return self._function(_name_of(op), (lhs, rhs, other), other.dtype.scalar)

    def create_clampf(self, arg: Symbol, lo: Symbol, hi: Symbol, propagate_nans: Any) -> Symbol:
        """Clamp."""
        return self._function("clamp", (arg, lo, hi), arg.dtype.scalar)

    def create_extern_elementwise(
        self, library: str, path: str, symbol: str, arguments: Any, result_type: Any, is_pure: bool
    ) -> Symbol:
        """Call a function of CUDA's math library."""
        return self._function(symbol, arguments, result_type.scalar)

    def create_inline_asm(self, text: str, constraints: str, values: Any, types: Any, is_pure: bool, pack: int) -> Any:
        """Run instructions."""
        if len(types) != 1:
            raise NotVerifiableError(f"inline assembly with {len(types)} results")
        result = self._function(text, values, types[0].scalar)
        return SimpleNamespace(get_result=lambda index: result)

    def create_dot(self, a: Symbol, b: Symbol, d: Symbol, *_: Any) -> Symbol:
        """Multiply matrices."""
        return self.unknown("dot", d.dtype.scalar, d.shape)

    def create_histogram(self, data: Symbol, bins: int, mask: Any) -> Symbol:
        """Count integers."""
        return self.unknown("histogram", tl.int32, (bins,))

    def create_gather(self, src: Symbol, indices: Symbol, axis: int) -> Symbol:
        """Gather from a block."""
        return self.unknown("gathered", src.dtype.scalar, indices.shape)

    def create_cat(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Concatenate blocks."""
        return self.unknown("cat", lhs.dtype.scalar, (lhs.shape[0] + rhs.shape[0],))

    def create_join(self, lhs: Symbol, rhs: Symbol) -> Symbol:
        """Stack two blocks along a new last axis."""
        return self.unknown("joined", lhs.dtype.scalar, (*lhs.shape, 2))

    def create_split(self, val: Symbol) -> tuple[Symbol, Symbol]:
        """Divide a block along its last axis."""
        halves = [self.unknown("split", val.dtype.scalar, val.shape[:-1]) for _ in range(2)]
        return halves[0], halves[1]

    def reduce(self, operand: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any) -> Any:
        """Combine along ``axis`` (None: all elements) to something unknown."""
        along, keep = _value(axis), _value(keep_dims)
        return _each(operand, lambda one: self._reduced(one, along, keep))

    def _reduced(self, operand: Any, axis: int | None, keep: bool) -> Any:
        handle: Symbol = operand.handle
        rank = len(handle.shape)
        gone = set(range(rank)) if axis is None else {axis % rank}
        kept = [i for i in range(rank) if keep or i not in gone]
        shape = [1 if i in gone else handle.shape[i] for i in kept]
        places = self._complete(handle.shape, handle.lanes)
        lanes = tuple(None if i in gone else places[i] for i in kept)
        return scalar_tensor(self.unknown("reduced", handle.dtype.scalar, shape, lanes))

    def scan(self, operand: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any) -> Any:
        """Combine every element with those before it to something unknown."""
        return _each(operand, self._scanned)

    def _scanned(self, operand: Any) -> Any:
        handle: Symbol = operand.handle
        lanes = self._complete(handle.shape, handle.lanes)
        return scalar_tensor(self.unknown("scanned", handle.dtype.scalar, handle.shape, lanes))

    def _complete(self, shape: Sequence[int], lanes: Lanes) -> Lanes:
        return tuple(self._lane(size) if lane is None else lane for lane, size in zip(lanes, shape, strict=True))

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Run what is inside without remembering what it does to memory."""
        before, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = before


def _unknown(name: str, scalar: Any = None) -> Callable[..., Symbol]:
    """Return an operation that returns an unknown value, of the type of its last operand unless another is given."""

    def create(self: Any, *operands: Symbol) -> Symbol:
        found: Symbol = self._function(name, operands, scalar or operands[-1].dtype.scalar)
        return found

    return create


def _computes(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Symbol]:
    def create(self: Any, lhs: Symbol, rhs: Symbol) -> Symbol:
        (left, right), shape, lanes = self._together(lhs, rhs)
        return Symbol(compute(left, right), lhs.dtype.scalar, shape, lanes)

    return create


def _compares(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Symbol]:
    def create(self: Any, lhs: Symbol, rhs: Symbol) -> Symbol:
        (left, right), shape, lanes = self._together(lhs, rhs)
        if _is_truth(lhs):
            left, right = z3.If(left, 1, 0), z3.If(right, 1, 0)
        return Symbol(compare(left, right), tl.int1, shape, lanes)

    return create


for _name in ("sdiv", "udiv", "idiv"):
    setattr(SymbolicBuilder, f"create_{_name}", _computes(symbols.truncated_quotient))
for _name in ("srem", "urem"):
    setattr(SymbolicBuilder, f"create_{_name}", _computes(symbols.truncated_remainder))
for _name in ("le", "lt", "ge", "gt"):
    for _sign in "SU":
        setattr(SymbolicBuilder, f"create_icmp{_sign}{_name.upper()}", _compares(getattr(operator, _name)))
SymbolicBuilder.create_icmpEQ, SymbolicBuilder.create_icmpNE = _compares(operator.eq), _compares(operator.ne)
for _name in ("OLT", "OGT", "OLE", "OGE", "OEQ", "ONE", "ULT", "UGT", "ULE", "UGE", "UEQ", "UNE"):
    # Nothing is known of them: floats may be NaN.
    setattr(SymbolicBuilder, f"create_fcmp{_name}", _unknown(f"fcmp{_name}", tl.int1))
for _name in ("umulhi", "fma", "fabs", "erf", "rsqrt"):
    setattr(SymbolicBuilder, f"create_{_name}", _unknown(_name))


def _make_constant(scalar: Any) -> Callable[[Any, Any], Symbol]:
    return lambda self, value: self._number(value, scalar)


for _name, _scalar in {
    "int1": tl.int1,
    **{f"{kind}{bits}": getattr(tl, f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "fp16": tl.float16,
    "fp32": tl.float32,
    "fp64": tl.float64,
}.items():
    setattr(SymbolicBuilder, f"get_{_name}", _make_constant(_scalar))


def _value(given: Any) -> Any:
    return given.value if isinstance(given, tl.constexpr) else given


def _each(operand: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(operand, (tuple, tl.core.tuple)):
        return tuple(map(function, operand))
    return function(operand)


def _name_of(op: Any) -> str:
    return str(getattr(op, "__name__", "computed"))


def _width(scalar: Any) -> int:
    """Return the bytes of an element."""
    return max(1, int(scalar.primitive_bitwidth) // 8)


def _is_truth(handle: Symbol) -> bool:
    return bool(handle.dtype.scalar.name == "int1")


def _as(value: Expression, like: Expression) -> Expression:
    """Return a value in the sort of another: zero may be given as an integer where truth values are."""
    if value.sort().eq(like.sort()):
        return value
    if z3.is_bool(like):
        return value != 0
    return z3.If(value, z3.IntVal(1), z3.IntVal(0)) if z3.is_bool(value) else number(0.0, tl.float32)


def _plus(left: Expression, right: Any) -> Expression:
    if constant(left) == 0:
        return right
    return left if (right == 0 if isinstance(right, int) else constant(right) == 0) else left + right


def _times(left: Expression, right: Expression) -> Expression:
    if constant(left) == 1:
        return right
    return left if constant(right) == 1 else left * right


def _both(left: Expression, right: Expression) -> Expression:
    if z3.is_true(left):
        return right
    return left if z3.is_true(right) else z3.And(left, right)


def _differ(left: Expression, right: Expression) -> Expression:
    if z3.is_true(right):
        return z3.Not(left)
    return z3.Xor(left, right)


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _multiple_of(expression: Expression, width: Expression, scalar: Any) -> Expression | None:
    """Return the variable that ``expression`` is ``width`` times, or None.

    Whether the product fits its type is asked of the index, which is no smaller, if both have the type ``scalar``.
    """
    kind = scalar.int_bitwidth, scalar.is_int_signed()
    product = without_wrap(expression, *kind)
    if constant(width) == 1 and z3.is_const(product):
        return product
    if z3.is_mul(product) and product.num_args() == 2:
        for one, other in (product.children(), product.children()[::-1]):
            variable = without_wrap(other, *kind)
            if one.eq(width) and z3.is_const(variable) and constant(variable) is None:
                return variable
    return None
