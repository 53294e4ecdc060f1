"""What the generator knows of one operator: how it is written, what it needs, and what holds of its result."""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pytest_regional._torch.tracing import base_of, storage_key
from pytest_regional.fuzz.model.arguments import LIMITS, ValueRange

if TYPE_CHECKING:
    import torch


OPERAND_NAMES = ("a", "b", "c", "d")


@dataclass(frozen=True, eq=False)
class ProgramValue:
    """A value of a program under construction.

    Attributes:
        number: its number in the program.
        tensor: what it is for the inputs that the program is built with; shapes, strides and aliasing are eager's own.
        value_range: what holds of it for all inputs.
        unbacked: whether its sizes depend on data.
    """

    number: int
    tensor: torch.Tensor
    value_range: ValueRange
    unbacked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.tensor.shape)

    @property
    def rank(self) -> int:
        """Its number of dimensions."""
        return len(self.shape)

    @property
    def count(self) -> int:
        """Its number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def is_float(self) -> bool:
        """Whether its dtype is a floating one."""
        return bool(self.tensor.is_floating_point())

    @property
    def is_bool(self) -> bool:
        """Whether it holds truth values."""
        return self.dtype == "bool"

    @property
    def is_integer(self) -> bool:
        """Whether it holds integers."""
        return not self.is_float and not self.is_bool

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to it."""
        return bool(self.tensor.requires_grad)


class Picks:
    """The numbers that a code holds for an operator's parameters; 0, or none left, picks the first, simplest choice."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Return one of ``choices``; what is left of a number serves once all are used."""
        number = self._numbers.pop(0) if self._numbers else 0
        left, chosen = divmod(number, len(choices))
        self._numbers += [left] if left else []
        return choices[chosen]

    def below(self, limit: int) -> int:
        """Return an integer from 0 to ``limit - 1``."""
        return int(self.one_of(range(max(limit, 1))))

    def flag(self) -> bool:
        """Return whether."""
        return bool(self.below(2))


Wanted: TypeAlias = Callable[..., bool]
"""Whether a value suits as an operand: called with the value and the operands chosen before it."""

Parameters: TypeAlias = Mapping[str, Any]


def no_parameters(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    """Return no parameters."""
    return {}


@dataclass(frozen=True, eq=False)
class Operator:
    """One way to write a statement.

    Attributes:
        name: unique in the table, such as ``"add"``.
        family: the class of operators it belongs to, such as ``"pointwise"``.
        template: its source: ``{a}``, ``{b}``, ... stand for operands, other names for parameters.
        operands: what each operand has to be.
        value_range: returns what holds of the result, given the operands' values and the parameters: one
            :class:`ValueRange`, or one for each result and then each written operand; None refuses. Value ranges of
            called blocks come behind the operands.
        choose: parameters for given operands; None where there are none.
        results: how many values it makes; 0 for a statement that only writes.
        writes: which operands it writes to.
        writes_constants: whether no gradient flows to what it writes, although one may flow to its operands.
        elementwise: whether each element of the result depends on the same element of the operands alone, so that it
            serves in blocks, which are called with any shape.
        uses_rng: whether it draws random numbers.
        unbacked: whether sizes of its result depend on data.
        needs: names of definitions (functions, custom ops) that its source uses.
        calls: how many blocks it calls; its template names them ``{block}`` and ``{other}``.
        passes: how many operands, the last ones, it passes to a block.
        calls_rng: whether a block that it calls may draw random numbers: ``"trained"`` where gradients flow.
        block_wrapper: a function that its blocks are wrapped with where they are defined.
        autocast: whether it does the same under autocast on every device, so that it may stand there.
        evaluate: how to compute it while building, where its source would compile; gets operands, parameters, and the
            blocks as functions.
        sealed: whether eager allows no writes to its results where gradients flow to them: they come out of a custom
            autograd function, as views.
        differentiates: whether it differentiates its block, so that kinks matter without training too.
        since: the first torch that has it.
    """

    name: str
    family: str
    template: str
    operands: tuple[Wanted, ...] = ()
    value_range: Callable[..., Any] = field(default=lambda *operands, **parameters: None)
    choose: Callable[[Sequence[ProgramValue], Picks], Parameters | None] = no_parameters
    results: int = 1
    writes: tuple[int, ...] = ()
    writes_constants: bool = False
    elementwise: bool = False
    uses_rng: bool = False
    unbacked: bool = False
    needs: tuple[str, ...] = ()
    calls: int = 0
    passes: int = 1
    calls_rng: Literal["never", "trained", "always"] = "never"
    block_wrapper: str = ""
    autocast: bool = False
    evaluate: Callable[..., Any] | None = None
    sealed: bool = False
    differentiates: bool = False
    since: tuple[int, int] = (2, 11)

    def written(self, operands: Sequence[str], parameters: Parameters, blocks: Sequence[str] = ()) -> str:
        """Return its source with names for the operands."""
        names = dict(zip(OPERAND_NAMES, operands, strict=False))
        called = dict(zip(("block", "other"), blocks, strict=False))
        literals = {name: _literal(name, value) for name, value in parameters.items()}
        return self.template.format(**names, **called, **literals)

    @functools.cached_property
    def parameter_names(self) -> tuple[str, ...]:
        """The names of its parameters, in the order of its source."""
        others = (*OPERAND_NAMES, "block", "other")
        return tuple(name for name in dict.fromkeys(_field_names(self.template)) if name not in others)

    @functools.cached_property
    def code(self) -> CodeType:
        """Its source as Python code over the same names."""
        names = {name: name for name in (*OPERAND_NAMES, "block", "other", *self.parameter_names)}
        mode = "eval" if self.results else "exec"
        return compile(self.template.format(**names), f"<{self.name}>", mode, dont_inherit=True)


def _literal(name: str, value: Any) -> str:
    """Return the source of a parameter: dtypes go by their names."""
    return f"torch.{value}" if name == "dtype" and value is not None else repr(value)


def _field_names(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def fits_dtype(tensor: torch.Tensor, value_range: ValueRange) -> bool:
    """Tell whether the dtype of ``tensor`` holds all values of ``value_range`` without wrapping round."""
    low, high = _HOLDS.get(str(tensor.dtype).removeprefix("torch."), (-math.inf, math.inf))
    return low <= value_range.low and value_range.high <= high


_HOLDS: Mapping[str, tuple[float, float]] = {**LIMITS, "bool": (0, 1), "float16": (-65504.0, 65504.0)}


# What operands may be


def anything(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want any tensor with static sizes."""
    return not value.unbacked


def real(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a floating-point tensor, NaN and infinities allowed."""
    return value.is_float and not value.unbacked


def floating(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a floating-point tensor of numbers of ordinary magnitude, of which no operator overflows on its way."""
    return numeric(value) and value.value_range.ordinary


def numeric(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a floating-point tensor of numbers, however large."""
    return value.is_float and value.value_range.finite and not value.unbacked


def integer(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want an integer tensor."""
    return value.is_integer and not value.unbacked


def boolean(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor of truth values."""
    return value.is_bool and not value.unbacked


def also(*conditions: Wanted) -> Wanted:
    """Return a condition that holds where all of ``conditions`` do."""

    def all_hold(value: ProgramValue, *before: ProgramValue) -> bool:
        return all(condition(value, *before) for condition in conditions)

    return all_hold


def ranked(least: int, most: int = 8) -> Wanted:
    """Return the condition of having from ``least`` to ``most`` dimensions."""
    return lambda value, *before: least <= value.rank <= most


def nonempty(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor with elements."""
    return value.count > 0


def finite(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor without NaN and infinities."""
    return value.value_range.finite


def exact(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor whose values every implementation agrees on, and that is finite."""
    return value.value_range.exact and value.value_range.finite


def distinct(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor without ties."""
    return value.value_range.distinct and value.value_range.exact and value.value_range.finite


def agreed(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor whose values every implementation agrees on, NaN and infinities allowed."""
    return value.value_range.exact and not value.unbacked


def bits(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor whose bits every implementation agrees on, signs of zeros included, NaN and infinities allowed."""
    return agreed(value) and value.value_range.zeros


def signed(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a finite tensor whose bits every implementation agrees on, signs of zeros included."""
    return exact(value) and value.value_range.zeros


def unkinked_at(*points: float) -> Wanted:
    """Return the condition that a derivative that jumps at ``points`` does no harm.

    It does none where there is no gradient, where all agree on the bits, and where values stay on one side.
    """

    def harmless(value: ProgramValue, *before: ProgramValue) -> bool:
        value_range = value.value_range
        return (
            not value.requires_grad
            or value_range.exact
            or not any(value_range.low - 0.01 <= at <= value_range.high + 0.01 for at in points)
        )

    return harmless


def unkinked(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want that a derivative that depends on which of the operands is larger does no harm."""
    operands = (value, *before)
    return not any(one.requires_grad for one in operands) or all(one.value_range.exact for one in operands)


def at_least(low: float) -> Wanted:
    """Return the condition of elements from ``low`` upward."""
    return lambda value, *before: value.value_range.low >= low


def no_larger_than(size: float) -> Wanted:
    """Return the condition of magnitudes up to ``size``."""
    return lambda value, *before: value.value_range.size <= size


def same_dtype(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want the first operand's dtype."""
    return value.dtype == before[0].dtype


def same_shape(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want the first operand's shape."""
    return value.shape == before[0].shape


def broadcasts(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a shape that broadcasts with the first operand's."""
    pairs = zip(reversed(value.shape), reversed(before[0].shape), strict=False)
    return all(ours == theirs or 1 in (ours, theirs) for ours, theirs in pairs)


def matrix_of(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a matrix that the first operand can be multiplied with from the left."""
    return value.rank == 2 and before[0].rank >= 1 and value.shape[0] == before[0].shape[-1]


def fits_into(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a shape that broadcasts to the first operand's, which it does not enlarge."""
    if value.rank > before[0].rank:
        return False
    pairs = zip(reversed(value.shape), reversed(before[0].shape), strict=False)
    return all(ours in (theirs, 1) for ours, theirs in pairs)


def writable(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor that eager allows to write to: no leaf that wants a gradient, no element twice in memory."""
    tensor = value.tensor
    leaf = tensor.requires_grad and (tensor.is_leaf or _is_view_of_leaf(tensor))
    return not leaf and not _overlaps(tensor) and not value.unbacked


def _overlaps(tensor: torch.Tensor) -> bool:
    """Tell whether elements may lie in the same place; some tensors that only look like it are counted in."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def own_places(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want that no two elements have the same place in memory where a gradient flows, which would be divided."""
    return not (value.requires_grad and _overlaps(value.tensor))


def _is_view_of_leaf(tensor: torch.Tensor) -> bool:
    base = base_of(tensor)
    return base is not None and base.requires_grad and base.is_leaf


def each_in_its_place(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want elements that share no place in memory."""
    return not _overlaps(value.tensor)


def dense(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor whose rows lie one behind the other in memory."""
    return bool(value.tensor.is_contiguous())


def as_made(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want the strides of a new tensor, also in dimensions of one element, where any stride is as good."""
    return bool(value.tensor.stride() == value.tensor.new_empty(value.tensor.shape).stride())


def apart(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor that shares no element with the operands before; they may be slices of one memory."""
    return not any(_share_elements(value.tensor, one.tensor) for one in before)


#: Tensors of one memory with more elements count as sharing some.
_COMPARED = 4096


def _share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors share memory, as far as their sizes, strides and offsets do not rule it out."""
    if storage_key(one) != storage_key(other):
        return False
    if one.element_size() != other.element_size() or max(one.numel(), other.numel()) > _COMPARED:
        return True
    return not _places(one).isdisjoint(_places(other))


def _places(tensor: torch.Tensor) -> set[int]:
    """Return where the elements of ``tensor`` lie in its memory, counted in elements."""
    places = {tensor.storage_offset()} if tensor.numel() else set[int]()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = {place + stride * index for place in places for index in range(size)}
    return places


def same_or_apart(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want the first operand itself, seen alike, or a tensor that shares no memory with it.

    What is read while its own elements are written has no defined value; eager refuses that, but not of all strides.
    """
    written, read = before[0].tensor, value.tensor
    alike = (written.data_ptr(), written.shape, written.stride()) == (read.data_ptr(), read.shape, read.stride())
    return alike or apart(value, before[0])


def another(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor that is none of the operands before, under another number as well."""
    return all(value.tensor is not one.tensor for one in before)


def either(*conditions: Wanted) -> Wanted:
    """Return a condition that holds where one of ``conditions`` does."""
    return lambda value, *before: any(condition(value, *before) for condition in conditions)


def without_gradient(value: ProgramValue, *before: ProgramValue) -> bool:
    """Want a tensor that gradients do not flow to."""
    return not value.requires_grad
