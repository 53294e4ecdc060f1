"""Build programs step by step, each tried in eager; and make the operands that an operator lacks.

Eager itself says what shape, dtype, strides and aliasing a result has and what it refuses; the operator table adds what
must hold for *all* inputs (:mod:`~pytest_regional.fuzz.model.arguments`). A step that does not fit is refused, never
an error: generators skip it, reducers take that as "keep it".
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_regional._base.errors import RegionalError, RegionalValueError
from pytest_regional._torch.tracing import base_of
from pytest_regional.fuzz.model.arguments import TensorInput, ValueRange
from pytest_regional.fuzz.model.claims import (
    REFUSALS,
    apart,
    draws,
    eager,
    evaluate,
    function_of_block,
    live_steps,
    live_values,
    makes_at_most,
    memory_of,
    needs_of_operator,
    touched,
    uses_rng,
)
from pytest_regional.fuzz.model.program import Block, Parameter, Program, Region, Scope, Step
from pytest_regional.fuzz.model.source import make_inputs
from pytest_regional.fuzz.operators.operator import Operator, Picks, ProgramValue, Wanted, fits_dtype
from pytest_regional.fuzz.operators.table import operator_named

if TYPE_CHECKING:
    import torch


#: Families whose results are new memory, which under ``no_grad`` wants no gradient.
_UNDER_NO_GRAD = ("pointwise", "comparison", "reduction", "matmul", "norm", "integer", "random", "factory", "statement")


class Refused(RegionalError):
    """A step does not fit here, which is no error; the message says why.

    Attributes:
        reason: the message, without what is particular to the operator where that is said of several.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class Builder:
    """A program under construction.

    Args:
        arguments: its inputs.
        blocks: functions that it may call.
        without: capabilities that no step may need; see :mod:`~pytest_regional.fuzz.model.claims`.
        elements: how many elements all steps may make together; without a bound for steps of ours.
        refusals: counts what :meth:`choose` could not add, by operator and reason.
    """

    def __init__(
        self,
        arguments: Sequence[TensorInput],
        blocks: Sequence[Block] = (),
        without: frozenset[str] = frozenset(),
        elements: int | None = None,
        refusals: Counter[tuple[str, str]] | None = None,
    ) -> None:
        self._refusals = refusals
        self.arguments, self.blocks = tuple(arguments), tuple(blocks)
        # Marks of dynamic sizes mean nothing to eager, and would import Dynamo.
        unmarked = tuple(replace(argument, dynamic=()) for argument in self.arguments)
        self._inputs = tensors = make_inputs(unmarked, "cpu", 0)
        self.values = {
            index: ProgramValue(index, tensor, argument.value_range)
            for index, (tensor, argument) in enumerate(zip(tensors, self.arguments, strict=True))
        }
        self.steps: list[Step] = []
        self._drawn: set[int] = set()
        self._sealed: set[int] = set()
        self._recomputed: set[int] = set()
        self.without = without
        self._room = elements
        self._next = len(self.arguments)

    # Choosing

    def suitable(self, operator: Operator, before: Sequence[ProgramValue]) -> list[ProgramValue]:
        """Return the values that suit as the next operand behind ``before``, the newest first."""
        wanted = operator.operands[len(before)]
        return [value for value in reversed(self.values.values()) if wanted(value, *before)]

    def choose(
        self,
        operator: Operator,
        references: Sequence[int],
        numbers: Sequence[int],
        scope: Scope = (),
        operands: Sequence[ProgramValue] | None = None,
    ) -> Step | None:
        """Add a step of ``operator``; None, and nothing added, where none fits.

        Args:
            operator: what to add.
            references: for each operand, how many suitable values to go back from the newest; taken modulo.
            numbers: what its parameters are picked with; what stands behind them picks blocks.
            scope: the contexts around it.
            operands: what it is to take in place of what ``references`` refer to.
        """
        operands = self._operands(operator, references, []) if operands is None else operands
        if operands is None:
            self._count_refusal(operator, "no operands")
            return None
        parameters = operator.choose(operands, Picks(numbers))
        fitting = self.blocks_for(operator)
        if parameters is None or (operator.calls and not fitting):
            self._count_refusal(operator, "no parameters")
            return None
        called = tuple(fitting[(numbers[-1] + position) % len(fitting)] for position in range(operator.calls))
        reason = self.unwritable(operator, operands)
        inner = {step.operator for index in called for step in self.blocks[index].steps}
        # PyTorch crashes once it is compiled (docs/findings/zero_tensor_in_graph.py). What is read may have it.
        if operator.name == "forward_over_reverse" and "square" in inner and operands[0].requires_grad:
            reason = reason or "kills the process"
        if reason:
            self._count_refusal(operator, reason)
            return None
        chosen = Step(
            operator.name, tuple(value.number for value in operands), tuple(parameters.items()), (), scope, called
        )
        try:
            return self.add(chosen)
        except Refused as why:
            self._count_refusal(operator, why.reason)
            return None

    def unwritable(self, operator: Operator, operands: Sequence[ProgramValue]) -> str:
        """Return why a program that is drawn does not write where ``operator`` does; one that is read may do it."""
        targets = {memory_of(operands[position].tensor) for position in operator.writes}
        if targets & self._shared_where_trained:
            return "writes to inputs of several bases where something trains"  # AOTAutograd refuses it
        if targets & self._recomputed:
            return "writes to what a checkpoint recomputes from"  # eager refuses it
        return ""

    def _count_refusal(self, operator: Operator, reason: str) -> None:
        if self._refusals is not None:
            self._refusals[operator.name, reason] += 1

    def _operands(
        self, operator: Operator, references: Sequence[int], before: list[ProgramValue]
    ) -> list[ProgramValue] | None:
        """Return the first operands, counted from those that are referred to, behind which all others are found."""
        position = len(before)
        if position == len(operator.operands):
            return before
        found = self.suitable(operator, before)
        for offset in range(len(found)):
            value = found[(references[position] + offset) % len(found)]
            whole = self._operands(operator, references, [*before, value])
            if whole is not None:
                return whole
        return None

    def blocks_for(self, operator: Operator) -> list[int]:
        """Return the numbers of the blocks that take as many arguments as ``operator`` passes."""
        return [index for index, block in enumerate(self.blocks) if len(block.parameters) == operator.passes]

    def parameters(
        self, operator: Operator, operands: Sequence[int], picks: Picks
    ) -> tuple[tuple[str, Parameter], ...] | None:
        """Return parameters of ``operator`` for operands that are there; None where there are none."""
        values = [self.values[number] for number in operands]
        if not all(
            wanted(value, *values[:place])
            for place, (wanted, value) in enumerate(zip(operator.operands, values, strict=True))
        ):
            return None
        chosen = operator.choose(values, picks)
        return None if chosen is None else tuple(chosen.items())

    # Adding

    def add(self, step: Step) -> Step:
        """Add ``step`` and return it with numbers for its results where it has none.

        Raises:
            Refused: it does not fit; nothing is added.
        """
        operator = operator_named(step.operator)
        for number in step.operands:
            if number not in self.values:
                raise Refused(f"value {number} is not there")
        operands = [self.values[number] for number in step.operands]
        needs = needs_of_operator(operator) & self.without
        if needs:
            raise Refused(f"{operator.name} needs {min(needs)}")
        self._check_place(operator, step)
        self._check_memory(operator, operands)
        before = [value.tensor for value in operands]
        for position, wanted in enumerate(operator.operands):
            if not wanted(operands[position], *operands[:position]):
                raise Refused(f"operand {position} of {operator.name} does not suit")
        ranges = self._ranges_of(operator, step, operands)
        self._check_bits(operator, operands, ranges[operator.results :])
        tensors = self._evaluated(operator, step, before)
        if len(tensors) != operator.results:
            raise Refused(f"{operator.name} makes other results than the table says")
        ranges[: len(tensors)] = map(_settled, itertools.repeat(operator), tensors, ranges)
        if any(tensor.requires_grad and tensor.grad_fn is None for tensor in tensors):
            raise Refused("a view that is made under no_grad wants a gradient that eager then refuses to compute")
        results = step.results or tuple(range(self._next, self._next + operator.results))
        for number, tensor, held in zip(results, tensors, ranges, strict=False):
            self.values[number] = ProgramValue(number, tensor, held, operator.unbacked)
        for position, held in zip(operator.writes, ranges[operator.results :], strict=True):
            self._written(operands[position], held)
        if draws(step, self.blocks):
            written = (operands[position].tensor for position in operator.writes)
            self._drawn.update(map(memory_of, (*tensors, *written)))
        if operator.family == "checkpoint":
            self._recomputed.update(memory_of(value.tensor) for value in operands if value.requires_grad)
        if operator.sealed:
            self._sealed.update(memory_of(tensor) for tensor in tensors if tensor.requires_grad)
        self._next = max(self._next - 1, *results) + 1 if results else self._next
        added = replace(step, results=results)
        self.steps.append(added)
        return added

    def take_back(self, count: int) -> None:
        """Leave ``count`` steps, and take those behind them back, which only made values."""
        for step in self.steps[count:]:
            for number in step.results:
                del self.values[number]
        del self.steps[count:]

    def unused_random_values(self, outputs: Sequence[int]) -> list[int]:
        """Return values that are drawn for nothing where ``outputs`` are returned.

        AOTAutograd leaves such draws out, on every backend, and then all that follow are others.
        """
        live = live_values(self.steps, outputs)
        lost = [step for step in self.steps if draws(step, self.blocks) and not live.intersection(touched(step))]
        return [number for step in lost for number in touched(step)]

    def apart(self, outputs: Sequence[int]) -> list[int]:
        """Return those of ``outputs`` that share no memory with an input or an earlier one of them."""
        return apart(self._inputs, {number: value.tensor for number, value in self.values.items()}, outputs)

    def _check_place(self, operator: Operator, step: Step) -> None:
        kinds = {context.kind for context in step.contexts}
        if "autocast" in kinds and not operator.autocast:
            raise Refused(f"{operator.name} may do otherwise under autocast on another device")
        if "no_grad" in kinds and operator.family not in _UNDER_NO_GRAD:
            raise Refused(f"{operator.name} may make a view, and views under no_grad are neither here nor there")
        if not (operator.operands or step.regions):
            raise Refused(f"{operator.name} without a region around it is nothing at all")

    def _check_memory(self, operator: Operator, operands: Sequence[ProgramValue]) -> None:
        """Refuse writes into memory of inputs that gradients have to do with.

        Eager allows none into leaves. What AOTAutograd makes of an input that takes a value with a gradient (it copies
        the new value over what it saved) is a defect of its own on every backend, and would hide all others.
        """
        if not operator.writes:
            return
        given = zip(self._inputs, self.arguments, strict=True)
        leaves = {memory_of(tensor) for tensor, argument in given if argument.requires_grad}
        inputs = set(map(memory_of, self._inputs))
        targets = {memory_of(operands[position].tensor) for position in operator.writes}
        if "mutation" in self.without and targets & inputs:
            raise Refused(f"{operator.name} would write to an input, which needs mutation")
        if targets & self._drawn:
            raise Refused(f"{operator.name} would write over what was drawn, and what nobody reads may not be drawn")
        if targets & self._sealed:
            raise Refused(f"{operator.name} would write to what a custom autograd function returned as a view")
        if targets & leaves:
            raise Refused(f"{operator.name} would write into the memory of an input that wants a gradient")
        if targets & inputs and not operator.writes_constants and any(value.requires_grad for value in operands):
            raise Refused(f"{operator.name} would make an input want a gradient that did not")

    def _check_bits(self, operator: Operator, operands: Sequence[ProgramValue], written: Sequence[ValueRange]) -> None:
        """Refuse writes of numbers that round into memory that is read as bits, and writes of bits."""
        for position, held in zip(operator.writes, written, strict=True):
            target = operands[position]
            for value in self.values.values():
                one_kind = value.is_bool or value.tensor.is_complex() or value.dtype == target.dtype
                if one_kind or target.tensor.is_complex() or memory_of(value.tensor) != memory_of(target.tensor):
                    continue
                # Numbers are viewed as integers of as many bits at most; no operator views them the other way.
                if not value.is_integer or value.tensor.element_size() > target.tensor.element_size():
                    raise Refused(f"{operator.name} would write to the bits of another number")
                if not (held.exact and held.zeros):
                    raise Refused(f"{operator.name} would write numbers that may be rounded, and their bits are read")

    @functools.cached_property
    def shared_inputs(self) -> frozenset[int]:
        """Numbers of the inputs without a gradient that lie in the memory of another input without one."""
        plain = [number for number, tensor in enumerate(self._inputs) if not tensor.requires_grad]
        counted = Counter(memory_of(self._inputs[number]) for number in plain)
        return frozenset(number for number in plain if counted[memory_of(self._inputs[number])] > 1)

    @functools.cached_property
    def _shared_where_trained(self) -> set[int]:
        """The memory that several inputs lie in which are no views of one base, where a gradient is wanted.

        AOTAutograd trains with writes there only if all are (``merge_view_inputs``).
        """
        if not any(argument.requires_grad for argument in self.arguments):
            return set()
        bases: dict[int, set[int]] = {}
        for tensor in self._inputs:
            base = base_of(tensor)
            bases.setdefault(memory_of(tensor), set()).add(id(tensor if base is None else base))
        return {memory for memory, different in bases.items() if len(different) > 1}

    def _ranges_of(self, operator: Operator, step: Step, operands: Sequence[ProgramValue]) -> list[ValueRange]:
        try:
            if operator.calls:
                made = self._block_ranges(operator, step, operands)
            else:
                made = operator.value_range(*operands, **dict(step.parameters))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # Parameters that were chosen for other operands: a dimension that is not there, for one.
            raise Refused(f"parameters of {operator.name} do not suit: {error}") from error
        ranges = [made] if isinstance(made, ValueRange) else list(made or ())
        if len(ranges) != operator.results + len(operator.writes):
            raise Refused(f"{operator.name} would leave the range in which values are kept", "leaves the range")
        # Before anything is written, as a refused step changes nothing.
        written = [operands[position].tensor for position in operator.writes]
        ranges[operator.results :] = map(_settled, itertools.repeat(operator), written, ranges[operator.results :])
        return ranges

    def _block_ranges(self, operator: Operator, step: Step, operands: Sequence[ProgramValue]) -> Any:
        passed = operands[-operator.passes :]
        results = []
        times = dict(step.parameters).get("count", 1)
        if not isinstance(times, int) or times < 1:
            raise Refused(f"{operator.name} has to call its block at least once")
        for index in step.blocks:
            for _ in range(times):
                if index >= len(self.blocks):
                    raise Refused(f"block {index} is not there")
                block = self.blocks[index]
                result = self._ranges_through(operator, block, passed)
                passed = [replace(passed[0], value_range=result), *passed[1:]]
            results.append(result)
            passed = operands[-operator.passes :]
        return operator.value_range(*operands, *results, **dict(step.parameters))

    def _ranges_through(self, caller: Operator, block: Block, operands: Sequence[ProgramValue]) -> ValueRange:
        if len(block.parameters) != len(operands):
            raise Refused(f"{caller.name} passes {len(operands)} arguments, the block takes {len(block.parameters)}")
        if any(uses_rng(step) for step in set(block.steps) - live_steps(block)):
            raise Refused("a block draws random numbers for nothing")
        held = {number: value.value_range for number, value in zip(block.parameters, operands, strict=True)}
        like = operands[0]
        if caller.differentiates:
            like = replace(like, tensor=like.tensor.detach().clone().requires_grad_())
        for step in block.steps:
            operator = operator_named(step.operator)
            if any(context.kind != "tag" for context in step.contexts):
                raise Refused("a block has no contexts of its own")
            # AOTAutograd refuses a checkpoint that draws where no gradient flows.
            trained = caller.calls_rng == "trained" and any(value.requires_grad for value in operands)
            if operator.uses_rng and not (trained or caller.calls_rng == "always"):
                raise Refused(f"{caller.name} calls no block that draws random numbers here")
            if any(number not in held for number in step.operands):
                raise Refused("a block reads a value that is not there")
            values = [replace(like, value_range=held[number]) for number in step.operands]
            # All operands of a block have the first one's shape and dtype, so one value can stand for them.
            for position, wanted in enumerate(operator.operands):
                if not wanted(values[position], *values[:position]):
                    raise Refused(f"operand {position} of {operator.name} in a block does not suit")
            made = operator.value_range(*values, **dict(step.parameters))
            if not operator.elementwise or not isinstance(made, ValueRange):
                raise Refused(f"{operator.name} in a block would leave the range", "leaves the range")
            held[step.results[0]] = _settled(operator, like.tensor, made)
        return held[block.result]

    def _evaluated(self, operator: Operator, step: Step, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        functions = [function_of_block(self.blocks[index]) for index in step.blocks]
        if self._room is not None and not makes_at_most(self._room, operator, step, operands, functions):
            raise Refused(f"{operator.name} would make more elements than are made for a program that is read")
        with eager(step.scope), _kept_sizes(operator, operands):
            try:
                made = evaluate(operator, step, operands, functions)
            except REFUSALS as error:
                # Whatever eager raises on small valid tensors means one thing here: this step does not fit.
                raise Refused(f"eager refuses {operator.name}: {error}", "eager refuses") from error
        if sum(tensor.numel() for tensor in made) > MOST_ELEMENTS:
            raise Refused(f"{operator.name} would make more than {MOST_ELEMENTS} elements", "makes too many elements")
        if self._room is not None:
            self._room -= sum(tensor.numel() for tensor in made)
        return made

    def _written(self, target: ProgramValue, value_range: ValueRange) -> None:
        """Note that ``target``'s memory was written to: all who share it now hold, perhaps in part, the new values."""
        memory = memory_of(target.tensor)
        for number, value in list(self.values.items()):
            if memory_of(value.tensor) != memory:
                continue
            self.values[number] = replace(value, value_range=value.value_range.join(value_range))
            if not _is_usable(value.tensor):
                del self.values[number]

    # Finishing

    def backpropagates(self, outputs: Sequence[int]) -> bool:
        """Tell whether eager can backpropagate from ``outputs``: it refuses where a write destroyed what it saved."""
        import torch

        wanted = [leaf for leaf in self._inputs if leaf.requires_grad and leaf.is_leaf]
        ends = {id(tensor): tensor for tensor in (self.values[number].tensor for number in outputs)}
        roots = [tensor for tensor in ends.values() if tensor.requires_grad]
        if not wanted or not roots:
            return True
        try:
            torch.autograd.grad(
                roots, wanted, [torch.ones_like(root) for root in roots], retain_graph=True, allow_unused=True
            )
        except RuntimeError:
            return False
        return True

    def program(self, outputs: Sequence[int], *, training: bool = True, dynamic: bool | None = None) -> Program:
        """Return the program that returns ``outputs``."""
        return Program(
            self.arguments, tuple(self.steps), tuple(outputs), self.blocks, training=training, dynamic=dynamic
        )


def _settled(operator: Operator, tensor: torch.Tensor, value_range: ValueRange) -> ValueRange:
    """Return what holds of ``tensor``, which ``operator`` makes or writes, in its dtype.

    Raises:
        Refused: nothing that could be checked: magnitudes are too large, or the dtype does not hold them.
    """
    settled = value_range.settled(str(tensor.dtype).removeprefix("torch."))
    if not settled.reasonable:
        raise Refused(f"{operator.name} would leave the range in which values are kept", "leaves the range")
    if not fits_dtype(tensor, settled):
        raise Refused(f"{operator.name} would make what the dtype cannot hold", "leaves the dtype")
    return settled


@contextlib.contextmanager
def _kept_sizes(operator: Operator, operands: Sequence[torch.Tensor]) -> Iterator[None]:
    """Give what ``operator`` writes to its size back where eager changes it.

    ``addbmm_`` makes a ``self`` that is to be broadcast larger, and sometimes refuses to write to it only then.

    Raises:
        Refused: eager has changed a size, and raised nothing.
    """
    written = [(operands[position], operands[position].detach()) for position in operator.writes]
    resized = False
    try:
        yield
    finally:
        for tensor, before in written:
            if tensor.shape != before.shape:
                tensor.data, resized = before, True
    if resized:
        raise Refused(f"{operator.name} would resize what it writes to", "would resize what it writes to")


def _is_usable(tensor: torch.Tensor) -> bool:
    """Tell whether eager still allows ``tensor``: not one of several views made at once whose base was written to."""
    try:
        return tensor.grad_fn is None or tensor.requires_grad
    except RuntimeError:
        return False


#: Elements that the steps of a program make together where it is built again, as it may be of foreign origin.
MOST_ELEMENTS = 2**24


def check_buildable(program: Program) -> None:
    """Build ``program`` again from its parts.

    Raises:
        RegionalValueError: it cannot be built; names the step and says why.
    """
    try:
        builder = Builder(program.arguments, program.blocks, elements=MOST_ELEMENTS)
    except REFUSALS as error:
        raise RegionalValueError(f"eager refuses the inputs: {error}") from error
    for position, step in enumerate(program.steps):
        try:
            builder.add(step)
        except Refused as why:
            raise RegionalValueError(f"step {position} ({step.operator}) does not fit: {why}") from why
    missing = [value for value in program.outputs if value not in builder.values]
    if missing:
        raise RegionalValueError(f"the program returns value {missing[0]}, which no step makes")


def is_buildable(program: Program) -> bool:
    """Tell whether ``program`` can be built again from its parts."""
    try:
        check_buildable(program)
    except RegionalValueError:
        return False
    return True


def value_ranges(program: Program) -> Mapping[int, ValueRange]:
    """Return what holds at the end of ``program`` of its inputs and of what its steps made, nothing if it is none."""
    builder = Builder(program.arguments, program.blocks)
    for step in program.steps:
        try:
            builder.add(step)
        except Refused:
            return {}
    return {number: value.value_range for number, value in builder.values.items()}


_ROW = Step("select", parameters=(("dim", 0), ("index", 0)))
_COLUMN = Step("select", parameters=(("dim", 1), ("index", 0)))
_LONGER = Step("unsqueeze", parameters=(("dim", 0),))

#: Steps to other sizes: without, of one row, of two, of one element of each row, of each channel, of more dimensions.
_SIZES: tuple[tuple[Step, ...], ...] = (
    (),
    (_ROW,),
    (Step("narrow", parameters=(("dim", 0), ("start", 0), ("length", 2))),),
    (_COLUMN,),
    (_COLUMN, _COLUMN),
    (_COLUMN, _COLUMN, _COLUMN),
    (_ROW, _COLUMN),
    (_ROW, _COLUMN, _COLUMN),
    (_LONGER,),
    (_LONGER, _LONGER),
)

#: Steps to other values, each with the place of the one that it stands behind; -1 is the value as it is.
_VALUES: tuple[tuple[int, Step], ...] = (
    (-1, Step("detach")),
    (-1, Step("clone")),
    (0, Step("clone")),
    # Between 1/4 and 3/4
    (-1, Step("tanh")),
    (3, Step("mul_number", parameters=(("value", 0.25),))),
    (4, Step("add_number", parameters=(("value", 0.5),))),
    (5, Step("detach")),
    (6, Step("clone")),
    # From 2 upward
    (-1, Step("square")),
    (8, Step("add_number", parameters=(("value", 2.0),))),
    (9, Step("detach")),
    (10, Step("clone")),
    # Truth values, 0 and 1, -1 to 1, bytes
    (-1, Step("gt_number", parameters=(("value", 0.0),))),
    (12, Step("to_int64")),
    (-1, Step("sign")),
    (14, Step("to_int64")),
    (14, Step("detach")),
    (14, Step("to_int8")),
    # Two places
    (-1, Step("literal_index")),
)

#: How many values of the program are tried, the newest first.
_SOURCES = 2


def operands_supplied(
    builder: Builder, operator: Operator, references: Sequence[int], scope: Scope
) -> list[ProgramValue] | None:
    """Return operands for ``operator``, made where none is there; None, and nothing added, where that does not help.

    Args:
        builder: a program under construction.
        operator: what the operands are for.
        references: for each operand, how many suitable values to go back from the newest; taken modulo.
        scope: where the operator is called; the steps that are made get its regions.
    """
    mark = len(builder.steps)
    regions = tuple(context for context in scope if isinstance(context, Region))
    chosen: list[ProgramValue] = []
    for position in range(len(operator.operands)):
        found = builder.suitable(operator, chosen)
        value = found[references[position] % len(found)] if found else _made(builder, operator, chosen, regions)
        if value is None:
            builder.take_back(mark)
            return None
        chosen.append(value)
    return chosen


def _made(builder: Builder, operator: Operator, before: Sequence[ProgramValue], scope: Scope) -> ProgramValue | None:
    mark = len(builder.steps)
    wanted = operator.operands[len(before)]
    newest = [value for value in reversed(builder.values.values()) if value.is_float][:_SOURCES]
    for source in before or newest:
        for sizes in _SIZES:
            steps = _steps_to(builder, wanted, before, source, sizes, scope)
            builder.take_back(mark)
            if steps is not None:
                return _behind(builder, source, steps, scope)
    return None


def _steps_to(
    builder: Builder,
    wanted: Wanted,
    before: Sequence[ProgramValue],
    source: ProgramValue,
    sizes: Sequence[Step],
    scope: Scope,
) -> Sequence[Step] | None:
    """Return the first steps behind ``source`` to what is wanted, through others that it leaves in the program."""
    sized = _behind(builder, source, sizes, scope)
    if sized is None or (sizes and wanted(sized, *before)):
        return None if sized is None else sizes
    found: dict[int, tuple[ProgramValue, tuple[Step, ...]]] = {-1: (sized, tuple(sizes))}
    for place, (parent, step) in enumerate(_VALUES):
        if parent not in found:
            continue
        value, steps = found[parent]
        made = _behind(builder, value, (step,), scope)
        if made is not None:
            found[place] = made, (*steps, step)
            if wanted(made, *before):
                return found[place][1]
    return None


def _behind(builder: Builder, source: ProgramValue, steps: Sequence[Step], scope: Scope) -> ProgramValue | None:
    number = source.number
    for step in steps:
        try:
            added = builder.add(Step(step.operator, (number,), step.parameters, (), scope))
        except Refused:
            return None
        number = added.results[0]
    return builder.values[number]
