"""The oracle ``integer_twin``: the program on small integers, where no tolerance is needed, gives eager's bits.

Tolerance for rounding hides what is smaller than it. The twin has the
program's structure and rounds nothing: outputs and written inputs whose ranges say so are compared bit for bit, but for
the signs of zeros where those depend on the order of a sum. Gradients are compared so where eager's backward, watched
operator by operator, rounds nothing either. What is left is compared as ``parity`` does.

Ranges of values say of results whether they are exact; of gradients no range is known, so the operators that run are
watched. All terms of a sum are multiples of some power of two, and their magnitudes together are a bound for every
partial sum: both say whether one could be rounded.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from pytest_regional._torch.fx_graphs import flatten
from pytest_regional._torch.operators import is_op_overload, schema_of
from pytest_regional._torch.tracing import is_zero_tensor, with_memory
from pytest_regional.fuzz.model.arguments import DIGITS, FLOATS, TensorInput, ValueRange, unit_of
from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.claims import touched
from pytest_regional.fuzz.model.program import Block, Parameter, Program, Step, renumbered
from pytest_regional.fuzz.operators.operator import Operator, Picks, ProgramValue
from pytest_regional.fuzz.operators.table import operator_named, operators
from pytest_regional.fuzz.oracles.example_run import ExampleRun, NoClaim, Oracle
from pytest_regional.fuzz.oracles.parity import mismatches_of, raise_failure, raise_mismatches, without_fake_strides
from pytest_regional.harness.parity.compare import BadProgramError
from pytest_regional.harness.parity.precision import EXACT_OPS, OutsideCompilers
from pytest_regional.harness.parity.tolerance import Exactness


@dataclass(frozen=True)
class IntegerTwin:
    """A program of small integers.

    Attributes:
        program: the twin; its values have the numbers of the program's.
        value_ranges: what holds of its values at the end, by number.
        rounded: operators of the program whose results are rounded in the twin as well.
    """

    program: Program
    value_ranges: dict[int, ValueRange]
    rounded: tuple[str, ...] = ()


#: What stands in for an operator, by how many operands it takes and results it makes: first what keeps values small.
_STAND_INS: dict[tuple[int, int], tuple[str, ...]] = {
    (1, 1): ("hardtanh", "neg", "abs", "relu", "clone", "sum", "amax", "cumsum", "sum_dims", "sum_all", "sum_float64"),
    (2, 1): ("minimum", "maximum", "sub", "add", "mul", "add_mixed", "matmul", "mm", "mm_transposed", "bmm", "dot"),
    (1, 2): ("aminmax",),
    (1, 0): ("relu_", "aten_neg_", "aten_abs_", "aten_hardtanh_"),
    (2, 0): ("sub_", "add_", "copy_"),
}

#: How many of them keep the operand's sizes, and take turns; and how many operators are tried at most.
_SMALL, _MOST = 4, 32


def integer_twin(program: Program) -> IntegerTwin:
    """Return the integer twin of ``program``, renumbered, of which every correct order gives the same bits.

    Operators, regions, scopes, layouts, aliases and the training stay. Floating-point inputs hold small integers, and
    an operator that rounds (``exp``, ``softmax``, a division) is exchanged for one that takes as many operands, writes
    to the same ones, makes results of the same sizes and dtypes, and is exact. Where no operator fits, the step stays,
    and what is computed from its results is rounded.

    Raises:
        NoClaim: there is none.
    """
    program = renumbered(program)
    original = Builder(program.arguments, program.blocks)
    try:
        for step in program.steps:
            original.add(step)
    except Refused as why:
        raise NoClaim(f"no twin: the program cannot be built again: {why.reason}") from why
    builder = Builder(_integral(program.arguments), tuple(map(_twin_of_block, program.blocks)))
    rounded = []
    for step in program.steps:
        builder, exact = _with_twin_of(builder, step, [original.values.get(number) for number in step.results])
        if not exact:
            rounded.append(step.operator)
    if any(number not in builder.values for number in program.outputs):
        raise NoClaim("no twin: a write of the twin takes an output away")
    if program.trains and not builder.backpropagates(program.outputs):
        raise NoClaim("no twin: eager refuses the backward of the twin")
    twin = replace(program, arguments=builder.arguments, steps=tuple(builder.steps), blocks=builder.blocks)
    ranges = {number: value.value_range for number, value in builder.values.items()}
    return IntegerTwin(twin, ranges, tuple(dict.fromkeys(rounded)))


def _integral(arguments: Sequence[TensorInput]) -> tuple[TensorInput, ...]:
    made: list[TensorInput] = []
    for argument in arguments:
        if argument.alias_of is not None:
            made.append(replace(argument, content=made[argument.alias_of].content))
        elif argument.dtype not in FLOATS:
            made.append(argument)
        else:
            places = replace(argument, content="places")
            distinct = argument.content == "distinct" and places.value_range.settled(argument.dtype).exact
            made.append(places if distinct else replace(argument, content="whole"))
    return tuple(made)


def _twin_of_block(block: Block) -> Block:
    """Return the twin of a block: it is called with any shape, and exact on matrices of small integers at least."""
    builder = Builder([TensorInput((4, 4), content="whole")] * len(block.parameters))
    matrix = builder.values[0]
    for step in block.steps:
        builder, _ = _with_twin_of(builder, step, [matrix], elementwise=True)
    return replace(block, steps=tuple(builder.steps))


def _with_twin_of(
    builder: Builder, step: Step, made: Sequence[ProgramValue | None], *, elementwise: bool = False
) -> tuple[Builder, bool]:
    """Add the twin of ``step``; return the builder then, and whether all that it makes and writes to is exact.

    Args:
        builder: the twin so far.
        step: of the program.
        made: its results in the program, None for those that later writes took away.
        elementwise: whether only operators that work element by element may stand in for it.

    Raises:
        NoClaim: neither the step nor another one fits.
    """
    fallback = None
    for candidate in _candidates(builder, step, elementwise=elementwise):
        try:
            builder.add(candidate)
        except Refused:
            continue
        if _alike(builder, candidate, made):
            values = [builder.values[number] for number in touched(candidate) if number in builder.values]
            if all(value.value_range.exact for value in values):
                return builder, True
            fallback = fallback or candidate
        again = Builder(builder.arguments, builder.blocks)
        for added in builder.steps[:-1]:
            again.add(added)
        builder = again
    if fallback is None:
        raise NoClaim(f"no twin: nothing stands in for {step.operator}")
    builder.add(fallback)
    return builder, False


def _alike(builder: Builder, step: Step, made: Sequence[ProgramValue | None]) -> bool:
    """Tell whether the results of ``step`` are like those of the program's: in sizes, dtype, and the gradient."""
    ours = [builder.values[number] for number in step.results]
    return all(
        other is None
        or value.unbacked
        or (value.shape, value.dtype, value.requires_grad) == (other.shape, other.dtype, other.requires_grad)
        for value, other in zip(ours, made, strict=True)
    )


def _candidates(builder: Builder, step: Step, *, elementwise: bool) -> Iterator[Step]:
    """Yield the step itself, and those that may stand in for it."""
    operator = operator_named(step.operator)
    yield step
    if operator.calls or operator.uses_rng or operator.unbacked or not operator.operands:
        return
    for other in _stand_ins(operator.name):
        if elementwise and not other.elementwise:
            continue
        parameters = _parameters(builder, step, other)
        if parameters is not None:
            yield replace(step, operator=other.name, parameters=parameters)


@functools.cache
def _stand_ins(name: str) -> tuple[Operator, ...]:
    """Return operators that take, make and write to as much: those that the table above names, then relatives."""
    operator = operator_named(name)
    named = [one for one in _STAND_INS.get((len(operator.operands), operator.results), ()) if one in operators()]
    turn = zlib.crc32(name.encode())
    first = named[:_SMALL] if operator.results else named
    first = first[turn % len(first) :] + first[: turn % len(first)] if first else []
    others = [one.name for one in operators().values() if one.family == operator.family]
    others = others[turn % len(others) :] + others[: turn % len(others)]
    found = []
    for one in map(operator_named, dict.fromkeys((*first, *named, *others))):
        as_many = (len(one.operands), one.results, one.writes)
        same = as_many == (len(operator.operands), operator.results, operator.writes) and one.sealed == operator.sealed
        if one is not operator and same and not (one.calls or one.uses_rng or one.unbacked):
            found.append(one)
    return tuple(found[:_MOST])


def _parameters(builder: Builder, step: Step, other: Operator) -> tuple[tuple[str, Parameter], ...] | None:
    """Return parameters for ``other``: those of the step, where it has the same, else the simplest."""
    if other.parameter_names == operator_named(step.operator).parameter_names:
        return step.parameters
    if any(number not in builder.values for number in step.operands):
        return None
    return builder.parameters(other, step.operands, Picks(()))


class Terms(NamedTuple):
    """What is known of the elements of one operand.

    Attributes:
        unit: a power of two that all are multiples of.
        largest: the largest magnitude.
        together: the sum of the magnitudes.
    """

    unit: float
    largest: float
    together: float


def terms_of(value: torch.Tensor | float) -> Terms | None:
    """Return what is known of a tensor's elements or of a number; None where one is NaN or infinite."""
    if not isinstance(value, torch.Tensor):
        return Terms(unit_of(value), abs(value), abs(value))
    if is_zero_tensor(value):
        return Terms(1.0, 0.0, 0.0)
    magnitudes = value.detach().abs().double()
    if not bool(magnitudes.isfinite().all()):
        return None
    magnitudes = magnitudes[magnitudes > 0]
    if not magnitudes.numel():
        return Terms(1.0, 0.0, 0.0)
    mantissa, exponent = torch.frexp(magnitudes)
    digits = torch.ldexp(mantissa, torch.tensor(53)).long()
    units = torch.ldexp((digits & -digits).double(), exponent - 53)
    return Terms(float(units.min()), float(magnitudes.max()), float(magnitudes.sum()))


def _added(operands: Sequence[Terms]) -> Terms:
    """Return a unit of the sum of one element of each operand, and a bound."""
    bound = sum(one.largest for one in operands)
    return Terms(min(one.unit for one in operands), bound, bound)


def _multiplied(operands: Sequence[Terms]) -> Terms:
    unit, bound = 1.0, 1.0
    for one in operands:
        unit, bound = unit * one.unit, bound * one.largest
    return Terms(unit, bound, bound)


def _summed(operands: Sequence[Terms]) -> Terms:
    """Return a unit of sums of any elements of all operands, and a bound."""
    bound = sum(one.together for one in operands)
    return Terms(min(one.unit for one in operands), bound, bound)


def _contracted(operands: Sequence[Terms]) -> Terms:
    """Return a unit of sums of products of two operands, whichever, to which the others are added, and a bound."""
    units = [one.unit for one in operands]
    bound = sum(one.largest for one in operands)
    for one, other in itertools.combinations(operands, 2):
        units.append(one.unit * other.unit)
        bound += min(one.largest * other.together, one.together * other.largest)
    return Terms(min(units), bound, bound)


#: How operators of ATen combine their operands, by name; those that write in place have the same names here.
_COMBINED: dict[str, Callable[[Sequence[Terms]], Terms]] = {
    **dict.fromkeys(("add", "sub", "rsub"), _added),
    **dict.fromkeys(("mul", "square"), _multiplied),
    **dict.fromkeys(
        (
            *("sum", "cumsum", "nansum", "trace", "index_add", "scatter_add", "embedding_dense_backward", "diff"),
            *("col2im", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"),
            *("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward", "reflection_pad1d_backward"),
            *("reflection_pad2d_backward", "reflection_pad3d_backward", "replication_pad1d_backward"),
            *("replication_pad2d_backward", "replication_pad3d_backward", "unfold_backward"),
            *("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward"),
            *("_index_put_impl", "index_put", "put", "scatter", "value_selecting_reduction_backward"),
        ),
        _summed,
    ),
    **dict.fromkeys(
        (
            *("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "baddbmm", "addbmm", "addr", "addcmul"),
            *("convolution", "convolution_backward", "linalg_cross"),
        ),
        _contracted,
    ),
}

#: Operators that move, choose or make values and are not among those of :data:`EXACT_OPS`.
_MOVED = frozenset(
    {
        *("set", "fill_diagonal", "detach", "rot90", "index_reduce", "take"),
        *("select_backward", "diagonal_backward", "hardtanh_backward", "masked_scatter_backward", "new_empty_strided"),
        *("empty_permuted", "bernoulli", "fmax", "fmin", "aminmax", "nanmedian", "fmod", "remainder", "frac"),
        *("copysign", "heaviside", "adaptive_max_pool3d", "pixel_unshuffle", "channel_shuffle", "upsample_nearest1d"),
        *("upsample_nearest2d", "upsample_nearest3d", "replication_pad1d", "replication_pad2d", "replication_pad3d"),
        *("reflection_pad3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
        *("threshold", "hardshrink", "hardshrink_backward", "nextafter", "frexp"),
    }
)

#: Keyword arguments that results are multiplied with or that are added.
_FACTORS = ("alpha", "beta", "value")


class RoundingWatch(OutsideCompilers):
    """A mode that notes, in ``rounding``, the first operator of which a result may have been rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.rounding = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        exact = bool(self.rounding) or _exact_operands(func, args, kwargs or {})
        made = func(*with_memory(func, args), **(kwargs or {}))
        results = [one for one in flatten(made)[0] if isinstance(one, torch.Tensor)]
        rounds = [one for one in results if one.is_floating_point() or one.is_complex()]
        if rounds and not (exact if isinstance(exact, bool) else all(_holds(one, exact) for one in rounds)):
            self.rounding = _name(func)
        return made


def _name(func: Any) -> str:
    return schema_of(func).name.removeprefix("aten::") if is_op_overload(func) else str(func)


def _holds(result: torch.Tensor, terms: Terms) -> bool:
    """Tell whether the dtype of a result holds every multiple of a unit up to a bound."""
    digits = DIGITS.get(str(result.dtype).removeprefix("torch."), 0)
    return bool(terms.largest <= terms.unit * 2.0**digits)


def _exact_operands(func: Any, args: Any, kwargs: Any) -> bool | Terms:
    """Return what has to fit into a result's dtype for it to be exact, or whether it is whatever the dtype."""
    if not is_op_overload(func):
        return False
    if any(one.alias_info is not None and not one.alias_info.is_write for one in schema_of(func).returns):
        return True
    name = _name(func).removesuffix("_").removeprefix("_foreach_")
    floats = [one for one in flatten((args, kwargs))[0] if isinstance(one, torch.Tensor) and one.is_floating_point()]
    if name in ("copy", "_to_copy"):
        dtype = args[0].dtype if len(args) > 1 and isinstance(args[1], torch.Tensor) else kwargs.get("dtype")
        source = floats[-1] if floats else None
        return source is None or dtype is None or bool(torch.equal(source.to(dtype).to(source.dtype), source))
    if name == "pow":
        return _raised(args, floats)
    if name in ("div", "mean"):
        return _divided(name, args, floats)
    if name in _COMBINED:
        numbers = [kwargs[factor] for factor in _FACTORS if factor in kwargs]
        if _COMBINED[name] in (_added, _multiplied):
            numbers += [one for one in args if isinstance(one, (int, float)) and not isinstance(one, bool)]
        operands = list(map(terms_of, (*floats, *numbers)))
        known = [one for one in operands if one is not None]
        return _COMBINED[name](known) if known and len(known) == len(operands) else False
    return name in EXACT_OPS or name in _MOVED


def _raised(args: Any, floats: Sequence[torch.Tensor]) -> bool | Terms:
    """Return what powers need that are products of a few factors."""
    terms, exponent = terms_of(floats[0]) if floats else None, args[1]
    if terms is None or isinstance(exponent, torch.Tensor) or exponent not in (0, 1, 2, 3):
        return False
    return _multiplied([terms] * int(exponent))


def _divided(name: str, args: Any, floats: Sequence[torch.Tensor]) -> bool | Terms:
    """Return what divisions by powers of two need; no others are exact everywhere."""
    terms = terms_of(floats[0]) if floats else None
    if terms is None:
        return False
    if name == "mean":
        # Means of all and of some dimensions alike: the sums fit, and so do what is divided, by a power of two.
        count = floats[0].numel()
        return Terms(terms.unit / count, terms.together, 0) if count and not count & (count - 1) else False
    divisor = args[1] if len(args) > 1 else None
    if isinstance(divisor, torch.Tensor):
        found = terms_of(divisor)
        if found is None or not bool((torch.frexp(divisor.detach().double())[0].abs() == 0.5).all()):
            return False
        return Terms(terms.unit / found.largest, terms.largest / found.unit, 0)
    if not isinstance(divisor, (int, float)) or not divisor or unit_of(divisor) != abs(divisor):
        return False
    return Terms(terms.unit / abs(divisor), terms.largest / abs(divisor), 0)


#: Families whose operators run others where no dispatch mode sees them.
_UNWATCHED = ("nested", "cond", "loop", "transform", "custom")


class TwinRun(ExampleRun):
    """A run of the twin of another run's program.

    Args:
        example: the other run.
        twin: the twin of its program.
    """

    def __init__(self, example: ExampleRun, twin: IntegerTwin) -> None:
        super().__init__(
            example.regional, twin.program, example.mode, blame=False, form=example.form, alone=example.alone
        )

    @cached_property
    def exact(self) -> Mapping[str, Exactness]:
        """The outputs, inputs and gradients of which every correct compile computes the same values."""
        gradients = [] if self.rounding_backward else range(len(self.program.arguments))
        return {**super().exact, **{f"grad of input {index}": Exactness(zeros=False) for index in gradients}}

    @cached_property
    def rounding_backward(self) -> str:
        """Why gradients are not compared without tolerance; empty where they are.

        Raises:
            BadProgramError: eager refuses the twin.
        """
        if not self.trains:
            return "it does not train"
        unwatched = {operator_named(step.operator).family for step in self.program.steps} & {*_UNWATCHED}
        if unwatched:
            return f"operators of {min(unwatched)} are not watched"
        for expected in self.expected:
            with self.regional.observer.paused(), RoundingWatch() as watch:
                self.execute(self.program.function, expected.inputs)
            if watch.rounding:
                return f"{watch.rounding} may round"
        return ""


def check_integer_twin(example: ExampleRun) -> None:
    """Raise where the integer twin of the program fails, or differs from eager in a bit."""
    if example.cold.error is not None:
        raise NoClaim("the program does not run")
    twin = integer_twin(example.program)
    run = TwinRun(example, twin)
    try:
        _ = run.expected
    except BadProgramError as error:
        raise NoClaim("eager refuses the twin") from error
    if all(twin.value_ranges[number].exact is False for number in twin.program.outputs) and run.rounding_backward:
        raise NoClaim(f"all outputs are rounded, by {', '.join(twin.rounded)}; gradients: {run.rounding_backward}")
    raise_failure(run, run.cold, "integer_twin")
    mismatches = without_fake_strides(run, run.expected[0].inputs, mismatches_of(run, run.cold))
    raise_mismatches(run, mismatches, "integer_twin", "on small integers, in the program below: ")


ORACLES = (
    Oracle(
        "integer_twin",
        "The program on small integers, with operators that round exchanged, gives eager's bits.",
        check_integer_twin,
        every=4,
        place=180,
        fails_in_capture=True,
        after_parity=True,
        scripted=True,
    ),
)
