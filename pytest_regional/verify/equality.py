"""Whether what a kernel computes is what the graph says, over the reals, for every element and all sizes.

Both sides are expressions of what memory holds. Two reads are the same value where their addresses are equal; sums, and
what else combines elements, where the same elements are combined; and what is computed from them where it is the same
polynomial of the same functions. Conditions on indices that are neither always true nor never are tried both ways.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import z3

from pytest_regional.verify import arithmetic as reals
from pytest_regional.verify.adopted import Adopted
from pytest_regional.verify.builder import WRITE, Access
from pytest_regional.verify.errors import NotVerifiableError, UndecidedError
from pytest_regional.verify.forms import (
    atoms_of,
    beyond_all,
    condition_in,
    conditions_in,
    factors_in,
    has_reals,
    is_above,
    is_below,
    is_linear,
    is_rounding,
    neutral,
    normal,
    product,
    short,
)
from pytest_regional.verify.holdings import Holding, InMemory, Part
from pytest_regional.verify.layouts import divided_by_strides, larger_first
from pytest_regional.verify.operators.calls import Place, of_type, shape_of
from pytest_regional.verify.operators.places import digits
from pytest_regional.verify.question import Question
from pytest_regional.verify.region import Region
from pytest_regional.verify.sizes import expression_of
from pytest_regional.verify.symbols import (
    ANY,
    LARGEST,
    PRODUCT,
    SMALLEST,
    SUM,
    Expression,
    Index,
    Reduction,
    Scope,
    constant,
    folded,
    limits,
    parts_of,
)
from pytest_regional.verify.wrappers import View

_MOST_SPLITS = 24
_MOST_ORDERS = 24
_MOST_TERMS = 16

_COMBINED = {
    SUM: operator.add,
    PRODUCT: operator.mul,
    LARGEST: reals.larger,
    SMALLEST: reals.smaller,
    ANY: z3.Or,
}

# For one question among many, and for one that need not be answered.
_SECONDS, _SHORT = 3.0, 0.5

# Milliseconds for a question without products.
_QUICK = 1000

Facts = tuple[Expression, ...]


class DifferentError(NotVerifiableError):
    """Two values were not shown to be equal."""


class Equality:
    """Compares what one launch computes with what a graph says.

    Args:
        question: about the launch.
        before: what its arguments hold that it reads.
        writers: of the parts of the work that it reads, by the order of the launch that writes them.

    Attributes:
        apart: values with which two reads that are to be the same are not, the last first.
    """

    def __init__(
        self, question: Question, before: Mapping[str, InMemory], writers: Mapping[int, Equality] | None = None
    ) -> None:
        self.question = question
        self.before = before
        self.writers = writers or {}
        self.region = Region(self._in_memory)
        self._held: dict[str, Holding] = {}
        for held in (before, *(writer.before for writer in self.writers.values())):
            for holding in held.values():
                if isinstance(holding, Holding):
                    self._held[holding.node.name] = holding
        self._translated: dict[int, tuple[Expression, Expression]] = {}
        self._read_by_kernel: dict[int, Expression] = {}
        self._adopted: dict[str, Reduction] = {}
        self.apart: list[z3.ModelRef] = []
        self._numbers = itertools.count()
        self._facts_of_kernel = 0
        self._splits = 0

    @property
    def scope(self) -> Scope:
        """Return the kernel's variables."""
        return self.question.run.scope

    # Memory

    def _in_memory(self, node: torch.fx.Node, place: Place) -> Expression | None:
        """Return what memory holds of a node, as the region asks."""
        holding = self._held.get(node.name)
        return None if holding is None else self.held(holding, place)

    def held(self, holding: Holding, place: Place) -> Expression:
        """Return an element that memory holds."""
        return self.at(holding, holding.address(place))

    def at(self, holding: Holding, address: Expression) -> Expression:
        """Return what memory holds at an address, as the type of the value that lies there."""
        dtype = holding.node.meta["val"].dtype
        return of_type(self._memory(holding, address, dtype.is_floating_point), dtype)

    def _memory(self, holding: Holding, address: Expression, is_float: bool) -> Expression:
        name = f"memory of {holding.view.contents.name}"
        if is_float:
            return z3.Function(name, z3.IntSort(), reals.REAL)(address)
        dtype = holding.node.meta["val"].dtype
        range = (0, 1) if dtype == torch.bool else limits(dtype.itemsize * 8, dtype.is_signed)
        return self.scope.function(name, z3.IntSort(), [address], range)

    # What kernels compute

    def translated(self, expression: Expression) -> Expression:
        """Return a kernel's expression as real numbers of what memory holds.

        Raises:
            NotVerifiableError: a part of it has no meaning here.
        """
        found = self._translated.get(expression.get_id())
        if found is None:
            found = self._translated[expression.get_id()] = expression, self._translate(expression)
        return found[1]

    def _translate(self, expression: Expression) -> Expression:
        if not z3.is_app(expression):
            raise NotVerifiableError(f"{str(expression)[:60]} in a value")
        name = expression.decl().name()
        if name.startswith("float "):
            return reals.number_of_kernel(name)
        if name in self._adopted or name.startswith("memory of "):
            return expression
        if name in self.scope.reductions:
            return self._of_reduction(expression)
        if name.startswith("loaded "):
            return self._read(name, expression)
        children = [self.translated(child) for child in expression.children()]
        kind = expression.decl().kind()
        if kind != z3.Z3_OP_UNINTERPRETED or not children:
            if not children and expression.sort().name() == "Float":
                raise NotVerifiableError(f"{name.partition('#')[0]}, of which nothing is known")
            if z3.is_app_of(expression, z3.Z3_OP_ITE):
                return z3.If(*children)
            return expression.decl()(*children)
        if "#" in name:
            raise NotVerifiableError(f"{name.partition('#')[0]}, of which nothing is known")
        if all(z3.is_int(child) for child in children) and z3.is_int(expression) and not _names_types(name):
            return expression.decl()(*children)
        return reals.operation_of_kernel(name, children)

    def _of_reduction(self, expression: Expression) -> Expression:
        """Return the constant, or function of places, that stands for a reduction, as a real number where it is one."""
        if expression.sort().name() != "Float":
            return expression
        decl = expression.decl()
        sorts = [decl.domain(n) for n in range(decl.arity())]
        return z3.Function(decl.name(), *sorts, reals.REAL)(*expression.children())

    def _read(self, name: str, expression: Expression) -> Expression:
        _, argument, version, *_ = name.split(" ")
        holding = self.before.get(argument, "an argument that is not read")
        if isinstance(holding, str):
            raise NotVerifiableError(f"{argument} is {holding}")
        if version != "0" or expression.num_args() != 1:
            raise NotVerifiableError(f"{argument} is read after it was written")
        start = self.question.tensors[argument].start
        address = z3.simplify(start + self.translated(expression.arg(0)))
        if isinstance(holding, Part):
            return self._written_at(holding, address)
        is_float = expression.sort().name() == "Float"
        if is_float != holding.node.meta["val"].dtype.is_floating_point:
            raise NotVerifiableError(f"{argument} is read as another type")
        found = self._memory(holding, address, is_float)
        if not is_float:
            # What the kernel asserts of its integers it asserts by its own name of them.
            self._read_by_kernel[expression.get_id()] = expression == found
        return found

    # Parts of the work that another launch has done

    def _written_at(self, part: Part, address: Expression) -> Expression:
        """Return what another launch has written at an address, as an expression of this kernel's variables."""
        writer = self.writers.get(part.order)
        if writer is None:
            raise NotVerifiableError("a part of the work, by a kernel of which too little is known")
        place, value = writer.written(part)
        adopted = Adopted(self.scope, self._adopted, place)
        return z3.substitute(adopted.value(writer, value), (place, address))

    def written(self, part: Part) -> tuple[Expression, Expression]:
        """Return the variable that is the address where this launch writes a part of the work, and what it writes.

        Raises:
            NotVerifiableError: the address is more than one variable, or it is written twice.
        """
        stores = [a for a in self.question.run.accesses if a.kind == WRITE and a.argument == part.argument]
        if len(stores) != 1 or stores[0].value is None:
            raise NotVerifiableError("a part of the work that is written several times")
        (store,) = stores
        address = z3.simplify(self.question.lowering.of(store.offset) + self.question.tensors[part.argument].start)
        if not z3.is_const(address) or address.decl().name() not in self.scope.bounds:
            raise NotVerifiableError("a part of the work at an address that is computed")
        self._facts_of_kernel = store.facts
        path, mask = self.translated(store.path), self.translated(store.mask)
        # Whoever reads it reads what was written: the mask holds there.
        return address, self._settled(self.translated(store.value), (path, mask))

    def flat(self, expression: Expression) -> Reduction:
        """Return a reduction with variables of its own, its element as real numbers."""
        kind, bound, element, place = self._flat(expression)
        return Reduction(kind, (), tuple(bound), element, place)

    # What is known

    def implied(self, facts: Facts, goal: Expression) -> bool:
        """Say whether a condition on integers holds wherever ``facts`` do."""
        return self._model(facts, z3.Not(goal)) is None

    def excluded(self, facts: Facts, condition: Expression) -> bool:
        """Say whether it is known without much thought that a condition does not hold where ``facts`` do.

        Products of variables are left out of what is known, since z3 takes long to find values for them.

        Raises:
            UndecidedError: there is no time left.
        """
        lower = self.question.lowering.of
        given = [fact for fact in (*facts, *self.region.assumed) if not has_reals(fact)]
        asked = [lower(part) for part in (*given, *self._read_by_kernel.values(), condition)]
        known = self.question.closed(asked, self._facts_of_kernel)
        context = z3.Context()
        solver = z3.Solver(ctx=context)
        solver.set("timeout", min(_QUICK, max(1, int(self.question.left() * 1000))))
        solver.add(*(part.translate(context) for part in map(z3.simplify, (*asked, *known)) if is_linear(part)))
        return bool(solver.check() == z3.unsat)

    def possible(self, facts: Facts) -> bool:
        """Say whether conditions on integers may hold together."""
        return not self.excluded(facts, z3.BoolVal(True))

    def _model(self, facts: Facts, goal: Expression, seconds: float = _SECONDS) -> z3.ModelRef | None:
        lower = self.question.lowering.of
        given = [fact for fact in (*facts, *self.region.assumed) if not has_reals(fact)]
        asked = [lower(part) for part in (*given, *self._read_by_kernel.values(), goal)]
        if z3.is_false(normal(asked[-1])):
            return None
        whole = self.question.deadline
        self.question.deadline = min(whole, time.monotonic() + seconds)
        try:
            return self.question.refute(asked, self.question.closed(asked, self._facts_of_kernel))
        finally:
            self.question.deadline = whole

    def store(self, access: Access, target: Holding) -> None:
        """Prove that what a store writes is the element of ``target`` that lies where it is written.

        Raises:
            DifferentError: it was not shown.
            NotVerifiableError: a part of one side has no meaning here.
        """
        self._facts_of_kernel = access.facts
        if access.value is None:
            raise NotVerifiableError("one of several values, on paths that a loop parts")
        address = self.translated(access.offset) + self.question.tensors[access.argument].start
        facts: list[Expression] = [self.translated(access.path), self.translated(access.mask)]
        place = self._place_at(address, target, tuple(facts))
        if place is None:
            shape = shape_of(target.node)
            place = tuple(z3.Int(f"place {axis}#") for axis in range(len(shape)))
            facts += [target.address(place) == address]
            facts += [z3.And(at >= 0, at < size) for at, size in zip(place, shape, strict=True)]
        if not self.possible(tuple(facts)):
            raise NotVerifiableError(f"{access.argument} is written nowhere in a tensor")
        _, fits = self.question.lowered(access.value)
        lowered = [self.question.lowering.of(fact) for fact in (access.path, access.mask)]
        wraps = [*lowered, z3.Not(z3.And(*fits))]
        if fits and self.question.refute(wraps, self.question.closed(wraps, access.facts)) is not None:
            raise NotVerifiableError("an integer among the values may overflow")
        dtype = target.node.meta["val"].dtype
        written = of_type(self.translated(access.value), dtype)
        self.same(written, self.region.element(target.node, place), tuple(facts))

    def _place_at(self, address: Expression, target: Holding, facts: Facts) -> Place | None:
        """Return which element lies at an address, as an expression of the kernel's variables, where that is simple."""
        shape = shape_of(target.node)
        strides = [expression_of(stride) for stride in target.view.strides]
        offset = self.question.lowering.of(address - expression_of(target.view.start))
        order = sorted(range(len(shape)), key=functools.cmp_to_key(functools.partial(larger_first, strides, shape)))
        counted = digits(offset, [shape[axis] for axis in order])
        for place in (
            divided_by_strides(offset, strides),
            tuple(counted[order.index(axis)] for axis in range(len(shape))),
        ):
            if place is None:
                continue
            inside = [z3.And(at >= 0, at < size) for at, size in zip(place, shape, strict=True)]
            try:
                if self.implied(facts, z3.And(target.address(place) == address, *inside)):
                    return place
            except NotVerifiableError:
                continue
        return None

    def output(self, node: torch.fx.Node, view: View, holding: Holding) -> None:
        """Prove that a tensor that the code returns has the elements of a node of the graph.

        Args:
            node: what the graph returns.
            view: what the code returns.
            holding: what the buffer holds that it is a view of.

        Raises:
            DifferentError: it was not shown.
            NotVerifiableError: a part of one side has no meaning here.
        """
        self._held[holding.node.name] = holding
        shape = shape_of(node)
        if len(shape) != len(view.sizes):
            raise DifferentError(f"{node.name} has {len(shape)} axes, what is returned has {len(view.sizes)}")
        place = tuple(z3.Int(f"place {axis}#") for axis in range(len(shape)))
        sizes = [size == expression_of(own) for size, own in zip(shape, view.sizes, strict=True)]
        if not self.implied((), z3.And(*sizes)):
            raise DifferentError(f"{node.name} has other sizes than what is returned")
        facts = tuple(z3.And(at >= 0, at < size) for at, size in zip(place, shape, strict=True))
        one = self.at(holding, Holding(node, view).address(place))
        self.same(of_type(one, node.meta["val"].dtype), self.region.element(node, place), facts)

    # Comparing

    def same(self, one: Expression, other: Expression, facts: Facts) -> None:
        """Prove that a kernel's value is a graph's wherever ``facts`` hold.

        Raises:
            DifferentError: it was not shown.
        """
        one, other = self._matched(z3.simplify(one), z3.simplify(other), facts)
        one, other = self._settled(one, facts), self._settled(other, facts)
        if normal(one).eq(normal(other)) or (one.sort().eq(reals.REAL) and is_rounding(one, other)):
            return
        written_out = self._written_out(other)
        if written_out is not None:
            self.same(one, written_out, facts)
            return
        condition = condition_in([one, other], whole=z3.is_int(one))
        if condition is not None:
            self._splits += 1
            if self._splits > _MOST_SPLITS:
                raise NotVerifiableError("more conditions than are tried")
            for side in (condition, z3.Not(condition)):
                if has_reals(side) or self.possible((*facts, side)):
                    self.same(one, other, (*facts, normal(side)))
            return
        if self._is_impossible(facts):
            return
        if not has_reals(one) and not has_reals(other):
            if self._is_same_whole(one, other, facts):
                return
            model = self._model(facts, one != other)
            if model is None:
                return
            self.apart.insert(0, model)
        elif self._same_reals(one, other, facts):
            return
        model = self._model(facts, z3.BoolVal(True))
        if model is None:
            return
        self.apart.append(model)
        raise DifferentError(f"it computes {short(one)}, the graph {short(other)}")

    def _written_out(self, expression: Expression) -> Expression | None:
        """Return an expression of a graph with short sums, and the like, term by term; None if it has none."""
        pairs = []
        for part in self._leaves_of(expression):
            reduction = self.region.reductions.get(part.decl().name())
            if reduction is None or reduction.place is not None:
                continue
            sizes = [constant(self.region.bounds[variable.decl().name()]) for variable in reduction.bound]
            numbers = [int(size) for size in sizes if size is not None]
            if len(numbers) < len(sizes) or not 0 < math.prod(numbers) <= _MOST_TERMS:
                continue
            places = itertools.product(*map(range, numbers))
            terms = [
                z3.substitute(reduction.element, *zip(reduction.bound, map(z3.IntVal, place), strict=True))
                for place in places
            ]
            pairs.append((part, functools.reduce(_COMBINED[reduction.kind], terms)))
        return z3.substitute(expression, *pairs) if pairs else None

    def _is_impossible(self, facts: Facts) -> bool:
        """Say whether conditions on real numbers contradict each other, as they may where both sides are tried."""
        solver = z3.Solver()
        solver.set("timeout", 500)
        solver.add(*filter(has_reals, facts))
        return bool(solver.check() == z3.unsat)

    def _is_same_whole(self, one: Expression, other: Expression, facts: Facts) -> bool:
        """Say whether two integers are computed alike from what is equal."""
        if one.eq(other):
            return True
        if not z3.is_app(one) or not z3.is_app(other) or not one.decl().eq(other.decl()) or not one.num_args():
            return False
        return all(
            self._is_same_whole(a, b, facts) or (z3.is_int(a) and self.implied(facts, a == b))
            for a, b in zip(one.children(), other.children(), strict=True)
        )

    def _same_reals(self, one: Expression, other: Expression, facts: Facts) -> bool:
        solver = z3.Solver()
        solver.set("timeout", 500)
        solver.add(*(fact for fact in facts if has_reals(fact)), one != other)
        return bool(solver.check() == z3.unsat)

    def _settled(self, expression: Expression, facts: Facts) -> Expression:
        """Return an expression without the choices whose conditions are known."""
        pairs: list[tuple[Expression, Expression]] = []
        for condition in conditions_in([expression], whole=z3.is_int(expression)):
            for part in atoms_of(condition):
                known = self._decided(part, facts)
                if known is not None:
                    pairs.append((part, z3.BoolVal(known)))
        return folded(z3.simplify(z3.substitute(expression, *pairs))) if pairs else expression

    def _decided(self, condition: Expression, facts: Facts) -> bool | None:
        plain, negated = normal(condition), normal(z3.Not(condition))
        for fact in facts:
            if fact.eq(plain):
                return True
            if fact.eq(negated):
                return False
        if has_reals(condition):
            if (known := beyond_all(condition)) is not None:
                return known
            given = [fact for fact in facts if has_reals(fact)]
            for answer, side in ((True, z3.Not(condition)), (False, condition)):
                solver = z3.Solver()
                solver.set("timeout", 200)
                solver.add(*given, side)
                if solver.check() == z3.unsat:
                    return answer
            return None
        for answer, side in ((True, z3.Not(condition)), (False, condition)):
            if self.excluded(facts, side):
                return answer
        if all(map(is_linear, facts)):
            return None
        for answer, side in ((True, z3.Not(condition)), (False, condition)):
            try:
                if self._model(facts, side, _SHORT) is None:
                    return answer
            except UndecidedError:
                continue
        return None

    # Reads, sums and the like that are the same on both sides

    def _matched(self, one: Expression, other: Expression, facts: Facts) -> tuple[Expression, Expression]:
        """Return both with the same variable in the place of what is the same value."""
        mine, theirs = list(self._leaves_of(one)), list(self._leaves_of(other))
        pairs: list[tuple[Expression, Expression]] = []
        others: list[tuple[Expression, Expression]] = []
        for leaf in mine:
            for candidate in theirs:
                if self._is_same_leaf(leaf, candidate, facts):
                    variable = next((v for c, v in others if c.eq(candidate)), None)
                    if variable is None:
                        variable = z3.Const(f"value {next(self._numbers)}", leaf.sort())
                        others.append((candidate, variable))
                    pairs.append((leaf, variable))
                    break
        # Reads of one value by the kernel alone, in a branch that is not taken, stay as they are.
        return (
            z3.substitute(one, *pairs) if pairs else one,
            z3.substitute(other, *others) if others else other,
        )

    def _leaves_of(self, expression: Expression) -> Iterable[Expression]:
        """Yield what is compared by itself: reads of floats, reductions, integers among numbers."""
        seen: set[int] = set()
        stack = [expression]
        while stack:
            part = stack.pop()
            if part.get_id() in seen or not z3.is_app(part):
                continue
            seen.add(part.get_id())
            name = part.decl().name()
            is_read = name.startswith("memory of ") and part.sort().eq(reals.REAL)
            whole = z3.is_to_real(part) and not any(map(self._is_of_numbers, parts_of(part.children())))
            if is_read or whole or self._reduction(part) is not None:
                yield part
            else:
                stack.extend(part.children())

    def _is_of_numbers(self, expression: Expression) -> bool:
        """Say whether something is compared by itself if it is found in an integer."""
        return expression.sort().eq(reals.REAL) or self._reduction(expression) is not None

    def _reduction(self, expression: Expression) -> Reduction | None:
        if not z3.is_app(expression):
            return None
        return self.region.reductions.get(expression.decl().name()) or self._own_reduction(expression)

    def _own_reduction(self, expression: Expression) -> Reduction | None:
        """Return what the kernel combined to get a value, or None if that is not what it is."""
        if not z3.is_app(expression):
            return None
        name = expression.decl().name()
        return self._adopted.get(name) or self.scope.reductions.get(name)

    def reductions_in(self, expression: Expression) -> list[Expression]:
        """Return what the kernel has combined and a value depends on, the outermost."""
        return [part for part in self._leaves_of(expression) if self._own_reduction(part) is not None]

    def _is_same_leaf(self, one: Expression, other: Expression, facts: Facts) -> bool:
        if one.eq(other):
            return True
        if not one.sort().eq(other.sort()):
            return False
        first, second = self._reduction(one), self._reduction(other)
        if first is not None and second is not None:
            return first.kind == second.kind and self._is_same_reduction(one, other, facts)
        if first is not None or second is not None:
            return False
        if not one.decl().eq(other.decl()):
            return False
        # Both are reads of one buffer, or integers among numbers.
        model = self._model(facts, one.arg(0) != other.arg(0))
        if model is not None:
            self.apart.insert(0, model)
        return model is None

    def _is_same_reduction(self, one: Expression, other: Expression, facts: Facts) -> bool:
        kind, bound, element, place = self._flat(one)
        theirs = self.region.reductions.get(other.decl().name())
        if theirs is None:
            return False
        position, levels = self._position(bound, element)
        axes = [self.region.bounds[variable.decl().name()] for variable in theirs.bound]
        number = product(axes)
        none = neutral(kind, element.sort())
        sizes = [level.size for level in levels]
        if not any(size is None for size in sizes) and not self.implied(facts, number <= product(sizes)):
            return False
        inside = [level.variable < level.size for level in levels if level.inner]
        try:
            for outside in (z3.And(*inside, position >= number), *(z3.Not(part) for part in inside)):
                if self.possible((*facts, outside)):
                    self.same(element, none, (*facts, outside))
        except DifferentError:
            return False
        orders = itertools.islice(itertools.permutations(range(len(axes))), _MOST_ORDERS)
        if place is not None:
            # The first of equal elements is the one that counts: they have to be counted alike.
            if not self.implied((*facts, *inside, position >= 0, position < number), place == position):
                return False
            orders = itertools.islice(orders, 1)
        for order in orders:
            counted = digits(position, [axes[axis] for axis in order])
            pairs = [(theirs.bound[axis], at) for axis, at in zip(order, counted, strict=True)]
            term = z3.substitute(theirs.element, *pairs) if pairs else theirs.element
            try:
                here = [z3.substitute(fact, *pairs) for fact in self.region.assumed if pairs]
                self.same(element, term, (*facts, *inside, *here, position >= 0, position < number))
            except DifferentError:
                continue
            return True
        return False

    def _flat(self, expression: Expression) -> tuple[str, list[Expression], Expression, Expression | None]:
        """Return a kernel's reduction with its own variables, and with those of which it combines results.

        Its kind, its variables, an element, and the number of that, if the result is one.
        """
        name = expression.decl().name()
        adopted = self._adopted.get(name)
        reduction = adopted or self.scope.reductions[name]
        pairs = [
            (formal, given)
            for formal, given in zip(reduction.arguments, expression.children(), strict=True)
            if not formal.eq(given)
        ]
        own = []
        for variable in reduction.bound:
            _, low, high = self.scope.bounds[variable.decl().name()]
            fresh = self.scope.variable(f"{variable.decl().name().partition('#')[0]} {next(self._numbers)}", low, high)
            own.append(fresh)
            pairs.append((variable, fresh))
        element = self.scope.replaced(reduction.element, pairs)
        element = element if adopted is not None else self.translated(element)
        if reduction.place is not None:
            return reduction.kind, own, element, self.translated(self.scope.replaced(reduction.place, pairs))
        conditions = []
        inner = element
        none = neutral(reduction.kind, element.sort())
        while z3.is_app_of(inner, z3.Z3_OP_ITE):
            condition, chosen, otherwise = inner.children()
            if otherwise.eq(none):
                conditions.append(condition)
                inner = chosen
            elif chosen.eq(none):
                conditions.append(z3.Not(condition))
                inner = otherwise
            else:
                break
        factors = factors_in(inner) if reduction.kind == SUM else [inner]
        sums = [factor for factor in factors if (found := self._own_reduction(factor)) and found.kind == reduction.kind]
        if len(sums) == 1:
            _, more, element, _ = self._flat(sums[0])
            own += more
            # What a sum is multiplied by, each of its elements is.
            others = [factor for factor in factors if not factor.eq(sums[0])]
            element = functools.reduce(operator.mul, others, element)
            if conditions:
                element = z3.If(z3.And(*conditions), element, none)
        return reduction.kind, own, element, None

    def _position(self, bound: Sequence[Expression], element: Expression) -> tuple[Expression, list[_Level]]:
        """Return a number, from 0 on, that tells a kernel's elements apart, and the axes that it counts."""
        levels = self._levels(bound)
        position: Expression = z3.IntVal(0)
        found = []
        for number, (variable, top) in enumerate(levels):
            size = top
            if number:
                # Of an inner axis the masks say where it ends.
                ends = [end for part in conditions_in([element]) for end in self._ends(part, variable)]
                size = ends[0] if ends else top
                if size is None:
                    raise NotVerifiableError("a reduction over several variables, one of which has no end")
                position = position * size
            position = position + variable
            found.append(_Level(variable, size, bool(number)))
        return position, found

    def _levels(self, bound: Sequence[Expression]) -> list[tuple[Expression, Expression | None]]:
        """Return the axes of a kernel's reduction, each with how many elements it may have; outer ones first."""
        left = list(bound)
        found: list[tuple[Expression, Expression | None]] = []
        while left:
            variable = left.pop(0)
            _, low, high = self.scope.bounds[variable.decl().name()]
            if constant(low) != 0:
                raise NotVerifiableError("a reduction that does not begin with 0")
            if left:
                following = left[0]
                pair = self._index_of(variable, following) or self._index_of(following, variable)
                if pair is not None:
                    left.pop(0)
                    _, _, blocks = self.scope.bounds[pair.base.decl().name()]
                    top = None if blocks is None else blocks * pair.width
                    found.append((self.scope.index(pair.base, pair.lane), top))
                    continue
            found.append((variable, high))
        return found

    def _index_of(self, base: Expression, lane: Expression) -> Index | None:
        indices = self.scope.indices.values()
        return next((index for index in indices if index.base.eq(base) and index.lane.eq(lane)), None)

    def _ends(self, condition: Expression, variable: Expression) -> list[Expression]:
        """Return what a variable has to be below for a condition to hold."""
        found = []
        for atom in atoms_of(condition):
            if atom.num_args() != 2 or not z3.is_int(atom.arg(0)):
                continue
            left, right = self.question.lowering.of(atom.arg(0)), self.question.lowering.of(atom.arg(1))
            for below, end, is_end in ((left, right, is_below), (right, left, is_above)):
                if below.eq(variable) and is_end(atom) and self.question.lowering.is_of_sizes(end):
                    found.append(end)
        return found


@dataclass(frozen=True)
class _Level:
    """An axis of a kernel's reduction: its variable, how many elements count, and whether there may be more."""

    variable: Expression
    size: Expression | None
    inner: bool


def _names_types(name: str) -> bool:
    return "_fp" in name or "_bf16" in name
