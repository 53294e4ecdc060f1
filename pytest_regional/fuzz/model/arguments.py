"""The inputs of a program (shape, dtype, layout, aliasing, contents), and ranges of the values of any tensor.

An input is described, not stored: its tensor is made by Python source that the printed program holds as well, so what
the harness ran and what a finding's script runs are the same by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

#: No rounded value of a generated program is larger: products of a few of them stay far from float16's 65504.
LARGEST = 512.0

#: Nor is one that is rounded and has one sign, so that no sum cancels, larger than this.
LARGEST_OF_ONE_SIGN = 1e36

#: Bits of the integers that a floating dtype holds all of.
DIGITS = {"float32": 24, "float64": 53, "bfloat16": 8, "float16": 11, "complex64": 24, "complex128": 53}

#: Limits of what integer dtypes hold, beyond which eager wraps round.
LIMITS = {
    "uint8": (0, 2**8 - 1),
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


@dataclass(frozen=True)
class ValueRange:
    """What holds of all elements of one tensor.

    Attributes:
        low: no finite element is smaller.
        high: no finite element is larger.
        exact: every correct implementation computes these values (inputs, copies, integers), so a jump is safe here.
        distinct: no two elements are equal, so order and position of the largest are safe.
        finite: no element is NaN or infinite.
        unit: a power of two that every element is a multiple of; None where none is known.
        zeros: whether every correct implementation gives zeros the same sign.
    """

    low: float
    high: float
    exact: bool = False
    distinct: bool = False
    finite: bool = True
    unit: float | None = None
    zeros: bool = True

    @property
    def size(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))

    @property
    def reasonable(self) -> bool:
        """Whether magnitudes stay where nothing overflows, and where sums that cancel leave no rounding errors."""
        if self.exact:
            return True
        one_sign = self.low >= 0 or self.high <= 0
        return self.size <= (LARGEST_OF_ONE_SIGN if one_sign else LARGEST)

    @property
    def ordinary(self) -> bool:
        """Whether magnitudes stay where no intermediate of any operator overflows in any dtype."""
        return self.size <= LARGEST

    def join(self, other: ValueRange) -> ValueRange:
        """Return what holds of a mix of elements of both."""
        return ValueRange(
            min(self.low, other.low),
            max(self.high, other.high),
            self.exact and other.exact,
            False,
            self.finite and other.finite,
            _finer(self, other),
            self.zeros and other.zeros,
        )

    def moved(self) -> ValueRange:
        """Return the range of the same elements elsewhere, each once at most: views, slices, permutations."""
        return self

    def repeated(self) -> ValueRange:
        """Return the range of elements that may occur several times."""
        return replace(self, distinct=False)

    def kept(self, low: float, high: float) -> ValueRange:
        """Return the range of elements that are chosen, or change their sign at most, and are then in other bounds."""
        return replace(self, low=low, high=high, distinct=False)

    def scaled(self, factor: float) -> ValueRange:
        """Return the range of elements times ``factor``, rounded."""
        ends = sorted((self.low * factor, self.high * factor))
        unit = None if self.unit is None else self.unit * unit_of(factor)
        return replace(
            self, low=ends[0], high=ends[1], exact=self.exact and abs(factor) == 1, distinct=False, unit=unit
        )

    def summed(self, count: int) -> ValueRange:
        """Return the range of sums of up to ``count`` elements."""
        count = max(count, 1)
        return ValueRange(
            min(0.0, self.low * count), max(0.0, self.high * count), finite=self.finite, unit=self.unit, zeros=False
        )

    def within(self, function: Callable[[float], float]) -> ValueRange:
        """Return the range after a function that rises or falls throughout, rounded."""
        ends = sorted((function(self.low), function(self.high)))
        return ValueRange(ends[0], ends[1], finite=self.finite)

    def settled(self, dtype: str) -> ValueRange:
        """Return what holds of a result of ``dtype`` that is bounded so, however its operands were combined.

        Multiples of a unit are exact while the dtype holds them all; integers that leave its limits wrap round.
        """
        if dtype == "bool":
            return integers(0, 1)
        if dtype in LIMITS:
            low, high = LIMITS[dtype]
            exact = self.exact or self.unit is not None
            return replace(self, exact=exact) if low <= self.low and self.high <= high else integers(low, high)
        if dtype not in DIGITS or self.unit is None:
            return self
        exact = self.finite and self.size <= self.unit * 2 ** DIGITS[dtype]
        return replace(self, exact=exact, unit=self.unit if exact else None)


def unit_of(number: float) -> float:
    """Return the largest power of two that ``number`` is a multiple of; 1 for 0."""
    if number == 0 or not math.isfinite(number):
        return 1.0
    numerator, denominator = float(number).as_integer_ratio()
    return (numerator & -numerator) / denominator


def _finer(first: ValueRange, second: ValueRange) -> float | None:
    return None if first.unit is None or second.unit is None else min(first.unit, second.unit)


def between(low: float, high: float, *operands: ValueRange) -> ValueRange:
    """Return the range of rounded results between two bounds, finite where all operands are."""
    return ValueRange(low, high, finite=all(operand.finite for operand in operands))


def integers(low: float, high: float, *, distinct: bool = False) -> ValueRange:
    """Return the range of integers or truth values, which are exact."""
    return ValueRange(low, high, exact=True, distinct=distinct, unit=1.0)


def constant(value: float) -> ValueRange:
    """Return the range of one number."""
    return ValueRange(value, value, exact=True, finite=math.isfinite(value), unit=unit_of(value))


def product(first: ValueRange, second: ValueRange) -> ValueRange:
    """Return the range of elementwise products."""
    ends = [a * b for a in (first.low, first.high) for b in (second.low, second.high)]
    unit = None if first.unit is None or second.unit is None else first.unit * second.unit
    return _combined(min(ends), max(ends), first, second, unit)


def total(first: ValueRange, second: ValueRange) -> ValueRange:
    """Return the range of elementwise sums."""
    return _combined(first.low + second.low, first.high + second.high, first, second, _finer(first, second))


def difference(first: ValueRange, second: ValueRange) -> ValueRange:
    """Return the range of elementwise differences."""
    return _combined(first.low - second.high, first.high - second.low, first, second, _finer(first, second))


def _combined(low: float, high: float, first: ValueRange, second: ValueRange, unit: float | None) -> ValueRange:
    return replace(between(low, high, first, second), unit=unit, zeros=first.zeros and second.zeros)


#: Dtypes of generated tensors, the simplest first.
FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int64", "int32", "uint8")
#: All that an input may have.
DTYPES = (*FLOATS, *INTEGERS, "bool", "int8", "int16", "complex64", "complex128")

Layout = Literal[
    "dense",
    "transposed",
    "strided",
    "offset",
    "expanded",
    "channels_last",
    "tail",
    "margin",
    "zero_stride",
    "channels_last_transposed",
]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

#: What a view of another argument shows: ``{x}`` is that argument, ``{b}`` the buffer that it was made as a view of,
#: which is itself where it is no view. Those that share no element with each other are ``first_half`` and
#: ``second_half``, ``even`` and ``odd``; ``head`` and ``tail`` share all but two rows.
PART_SOURCES: dict[str, str] = {
    "whole": "{x}.detach()",
    "same": "{x}",
    "view": "{x}.view_as({x})",
    "tail": "{b}[1:]",
    "head": "{b}[:-1]",
    "first_half": "{b}[: len({b}) // 2]",
    "second_half": "{b}[len({b}) // 2 :]",
    "transposed": "{x}.transpose(0, -1)",
    "columns": "{b}[..., 1:]",
    "even": "{b}[..., ::2]",
    "odd": "{b}[..., 1::2]",
    "row": "{b}[:1].squeeze(0)",
    "expanded": "{b}[:1].expand_as({b})",
}
PARTS = tuple(PART_SOURCES)
#: Parts of a tensor of any rank; the others cut one of its dimensions.
PARTS_OF_ANY_RANK = ("whole", "same", "view", "transposed")

Content = Literal[
    "signed", "positive", "distinct", "nonfinite", "index", "mask", "whole", "places", "large", "edges", "order"
]

#: Source of the functions that make values; ``g`` is the generator. Magnitudes are between 1/4 and 2, away from zero,
#: where many derivatives jump.
CONTENT_SOURCES: dict[Content, str] = {
    "signed": """\
def signed(*shape):
    return (torch.rand(shape, generator=g) * 1.75 + 0.25) * (torch.randint(0, 2, shape, generator=g) * 2 - 1)
""",
    "positive": """\
def positive(*shape):
    return torch.rand(shape, generator=g) * 1.5 + 0.5
""",
    "distinct": """\
def distinct(*shape):
    count = max(math.prod(shape), 1)
    return (torch.randperm(count, generator=g)[: math.prod(shape)].reshape(shape) * 2 + 1 - count) / count * 2
""",
    "nonfinite": """\
def nonfinite(*shape):
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.5])
    return torch.where(
        torch.rand(shape, generator=g) < 0.3,
        special[torch.randint(0, 4, shape, generator=g)],
        torch.rand(shape, generator=g) + 0.25,
    )
""",
    "index": """\
def index(*shape, below):
    return torch.randint(0, below, shape, generator=g)
""",
    "mask": """\
def mask(*shape):
    return torch.randint(0, 2, shape, generator=g) > 0
""",
    "whole": """\
def whole(*shape):
    return torch.randint(-3, 4, shape, generator=g)
""",
    "places": """\
def places(*shape):
    count = math.prod(shape)
    return torch.randperm(count, generator=g).reshape(shape) - count // 2
""",
    "order": """\
def order(*shape):
    return torch.randperm(math.prod(shape), generator=g).reshape(shape)
""",
    "large": """\
def large(*shape):
    return 10 ** (20 + 10 * torch.rand(shape, generator=g, dtype=torch.float64))
""",
    "edges": """\
def edges(*shape, dtype):
    if dtype.is_floating_point:
        few, info = [0.0, -0.0, 1.0, -1.0, 0.1, 0.3, -0.7, 2.5, 3.5], torch.finfo(dtype)
        few += [info.eps, -info.tiny, info.smallest_normal * 0.5, 1 - info.eps, 1 + info.eps, 2 / info.eps - 1]
        few += [4096.0, 60000.0, -60000.0] if dtype is torch.float16 else [1e20, -1e20, 1e30, -1e30]
    else:
        info = torch.iinfo(dtype)
        few = [0, 1, 2, 7, info.max // 2, info.max // 2 + 1, info.max - 1, info.max]
        few += [info.min, info.min + 1, info.min // 2]
    return torch.tensor(few, dtype=dtype)[torch.randint(0, len(few), shape, generator=g)]
""",
}

_RANGES_OF_CONTENT: dict[Content, ValueRange] = {
    "signed": ValueRange(-2.0, 2.0, exact=True),
    "positive": ValueRange(0.5, 2.0, exact=True),
    "distinct": ValueRange(-2.0, 2.0, exact=True, distinct=True),
    "nonfinite": ValueRange(0.25, 1.5, exact=True, finite=False),
    "mask": integers(0, 1),
    "whole": integers(-3, 3),
    "large": ValueRange(0.99e20, 1.01e30, exact=True),
    "edges": ValueRange(-1.01e30, 1.01e30, exact=True),
}

#: Contents that float16 does not hold.
TOO_LARGE = ("large",)


@dataclass(frozen=True)
class TensorInput:
    """One tensor argument of a program.

    Attributes:
        shape: its sizes; a size may be 0. What is a part of another argument has the sizes of that part instead.
        dtype: name of a ``torch`` dtype.
        layout: how its elements lie in memory: ``"dense"`` rows; ``"transposed"`` last two dimensions; ``"strided"``
            every second element of a row; ``"offset"`` behind three other elements; ``"expanded"`` over the first
            dimension (stride 0); ``"channels_last"`` (rank 4); ``"tail"`` behind another row; ``"margin"`` with an
            element before and behind each row; ``"zero_stride"`` in dimensions of one element, dense otherwise;
            ``"channels_last_transposed"`` with height and width exchanged (rank 4).
        content: which values it holds; see :data:`CONTENT_SOURCES`.
        requires_grad: whether it is a leaf that wants a gradient.
        below: for indices, the first integer that does not occur.
        alias_of: number of an earlier argument, no alias itself, whose memory this one lies in.
        part: which part of that memory; see :data:`PART_SOURCES`.
        detached: whether a view has no base that autograd knows of (``_base``): only the memory tells that it is one.
        dynamic: dimensions whose size is marked as dynamic for ``torch.compile``.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: Layout = "dense"
    content: Content = "signed"
    requires_grad: bool = False
    below: int = 0
    alias_of: int | None = None
    part: str = "whole"
    detached: bool = False
    dynamic: tuple[int, ...] = ()

    def resized(self, size: int, other: int) -> TensorInput:
        """Return it with another size wherever ``size`` occurs."""
        return replace(self, shape=tuple(other if old == size else old for old in self.shape))

    @property
    def value_range(self) -> ValueRange:
        """What holds of its values."""
        if self.content == "index":
            return integers(0, max(self.below - 1, 0), distinct=math.prod(self.shape) <= 1)
        if self.content == "order":
            return integers(0, max(math.prod(self.shape) - 1, 0), distinct=self.layout != "expanded")
        if self.content == "edges" and self.dtype in LIMITS:
            return integers(*LIMITS[self.dtype])
        if self.content == "edges" and self.dtype == "float16":
            return ValueRange(-60000.0, 60000.0, exact=True)
        if self.content == "places":
            count = math.prod(self.shape)
            held = integers(-(count // 2), (count - 1) // 2, distinct=self.layout != "expanded")
            # Inputs are what they are: rounded, where the dtype does not hold so many places.
            return held if held.settled(self.dtype).exact else ValueRange(held.low, held.high, exact=True)
        value_range = _RANGES_OF_CONTENT[self.content]
        told_apart = math.prod(self.shape) <= (64 if self.dtype in ("bfloat16", "float16") else 2**20)
        if self.content == "distinct" and ("expanded" in (self.layout, self.part) or not told_apart):
            return value_range.repeated()
        return value_range


def assignments(arguments: Sequence[TensorInput]) -> Iterator[str]:
    """Yield the Python statements that make ``arguments`` as ``x0``, ``x1``, ...

    They need ``device`` and the content functions. Where another argument is a part of the buffer that one is a view
    of, the buffer is made first, as ``b0``.
    """
    owners = {argument.alias_of for argument in arguments if "{b}" in PART_SOURCES[argument.part]}
    for index, argument in enumerate(arguments):
        if argument.alias_of is not None:
            yield f"x{index} = {_part(argument, arguments)}{_leaf(argument)}"
            continue
        values, view = _laid_out(argument)
        if index in owners and view:
            yield f"b{index} = {values}"
            values = f"b{index}"
        detach = ".detach()" if argument.detached and view else ""
        yield f"x{index} = {values}{view}{detach}{_leaf(argument)}"


def _leaf(argument: TensorInput) -> str:
    return ".requires_grad_()" if argument.requires_grad else ""


def _part(argument: TensorInput, arguments: Sequence[TensorInput]) -> str:
    """Return a part of an earlier argument; of one that wants a gradient only the values."""
    assert argument.alias_of is not None
    owner, number = arguments[argument.alias_of], argument.alias_of
    buffer = f"b{number}" if _laid_out(owner)[1] else f"x{number}"
    source = PART_SOURCES[argument.part].format(x=f"x{number}", b=buffer)
    plain = argument.part in ("same", "whole") or not (argument.detached or owner.requires_grad)
    return source if plain else f"{source}.detach()"


def _values(argument: TensorInput, *shape: int) -> str:
    sizes = ", ".join(map(str, shape))
    keywords = f"below={argument.below}" if argument.content == "index" else ""
    if argument.content == "edges":
        keywords = f"dtype=torch.{argument.dtype}"
    sizes += ", " if sizes and keywords else ""
    kept = argument.content == "mask" and argument.dtype == "bool"
    where = "device" if kept else f"device, torch.{argument.dtype}"
    return f"{argument.content}({sizes}{keywords}).to({where})"


def _laid_out(argument: TensorInput) -> tuple[str, str]:
    """Return how the layout is made: the buffer, and the view of it; a shape that cannot have the layout is dense."""
    layout, shape = argument.layout, argument.shape
    if layout == "offset":
        return _values(argument, math.prod(shape) + 3), f"[3:].view({shape})"
    if layout == "zero_stride" and 1 in shape:
        strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
        kept = tuple(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))
        return _values(argument, *shape), f".as_strided({shape}, {kept})"
    if layout == "strided" and shape:
        return _values(argument, *shape[:-1], 2 * shape[-1]), "[..., ::2]"
    if layout == "margin" and shape:
        return _values(argument, *shape[:-1], shape[-1] + 2), "[..., 1:-1]"
    if layout == "tail" and shape:
        return _values(argument, shape[0] + 1, *shape[1:]), "[1:]"
    if layout == "expanded" and shape:
        return _values(argument, 1, *shape[1:]), f".expand({', '.join(map(str, shape))})"
    if layout == "transposed" and len(shape) > 1:
        *rest, rows, columns = shape
        return _values(argument, *rest, columns, rows), ".transpose(-2, -1)"
    if layout == "channels_last" and len(shape) == 4:
        return f"{_values(argument, *shape)}.contiguous(memory_format=torch.channels_last)", ""
    if layout == "channels_last_transposed" and len(shape) == 4:
        batch, channels, height, width = shape
        made = _values(argument, batch, channels, width, height)
        return f"{made}.contiguous(memory_format=torch.channels_last)", ".transpose(2, 3)"
    return _values(argument, *shape), ""
