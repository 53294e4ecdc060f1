"""Views, and operators whose sizes depend on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_regional.fuzz.model.arguments import ValueRange, between, integers, product
from pytest_regional.fuzz.operators.operator import (
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    anything,
    boolean,
    broadcasts,
    floating,
    nonempty,
    ranked,
)


def _moved(a: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.moved()


def _repeated(a: ProgramValue, **parameters: Any) -> ValueRange:
    return a.value_range.repeated()


def _view(
    name: str,
    call: str,
    *conditions: Wanted,
    choose: Callable[[Sequence[ProgramValue], Picks], Parameters | None] | None = None,
    value_range: Any = _moved,
    results: int = 1,
) -> Operator:
    fields: dict[str, Any] = {} if choose is None else {"choose": choose}
    wanted = also(anything, *conditions)
    return Operator(name, "view", "{a}." + call, (wanted,), value_range, results=results, autocast=True, **fields)


def _two_dimensions(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    rank = values[0].rank
    first = picks.below(rank)
    return {"first": first, "second": (first + 1 + picks.below(rank - 1)) % rank}


def _permutation(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    rank = values[0].rank
    turned = picks.below(rank)
    dims = [(dim + turned) % rank for dim in range(rank)]
    return {"dims": tuple(reversed(dims) if picks.flag() else dims)}


def _dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank)}


def _new_dimension(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"dim": picks.below(values[0].rank + 1)}


def _slice(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    dim = picks.below(values[0].rank)
    size = values[0].shape[dim]
    start = picks.below(size)
    return {"dim": dim, "start": start, "length": 1 + picks.below(size - start)}


def _place(values: Sequence[ProgramValue], picks: Picks) -> Parameters | None:
    dim = picks.below(values[0].rank)
    size = values[0].shape[dim]
    return {"dim": dim, "index": picks.below(size)} if size else None


def _new_shape(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return {"shape": picks.one_of(_shapes_of(values[0].shape))}


def _shapes_of(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return shapes of as many elements."""
    found = [(-1,), (1, *shape), (*shape, 1)] if 0 not in shape else [(0,), (1, *shape)]
    if len(shape) >= 2:
        found += [(shape[0] * shape[1], *shape[2:]), (*shape[2:], shape[1], shape[0])]
    if shape and shape[-1] % 2 == 0 and shape[-1]:
        found += [(*shape[:-1], 2, shape[-1] // 2), (*shape[:-1], shape[-1] // 2, 2)]
    return found


def _expansion(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    shape = values[0].shape
    enlarged = tuple(3 if size == 1 else size for size in shape)
    return {"shape": picks.one_of(((2, *shape), enlarged, (1, *enlarged)))}


def _single(value: ProgramValue, *before: ProgramValue) -> bool:
    return 1 in value.shape


def _with_size(least: int, most: int = 64) -> Wanted:
    return lambda value, *before: any(least <= size <= most for size in value.shape)


def _dimension_of(least: int, most: int = 64) -> Callable[[Sequence[ProgramValue], Picks], Parameters]:
    def choose(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
        return {"dim": picks.one_of([dim for dim, size in enumerate(values[0].shape) if least <= size <= most])}

    return choose


def _squeezable(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    return _dimension_of(1, 1)(values, picks)


def _window(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    found = _dimension_of(2)(values, picks)
    return {**found, "step": 1 + picks.below(2)}


def _pieces(a: ProgramValue, **parameters: Any) -> tuple[ValueRange, ValueRange]:
    return a.value_range.moved(), a.value_range.moved()


def _split_sizes(values: Sequence[ProgramValue], picks: Picks) -> Parameters:
    found = _dimension_of(2)(values, picks)
    size = values[0].shape[found["dim"]]
    first = 1 + picks.below(size - 1)
    return {**found, "sizes": (first, size - first)}


_VIEWS = (
    _view("transpose", "transpose({first}, {second})", ranked(2), choose=_two_dimensions),
    _view("narrow", "narrow({dim}, {start}, {length})", ranked(1), _with_size(1), choose=_slice),
    _view("flatten", "flatten()"),
    _view("reshape", "reshape({shape})", choose=_new_shape),
    _view("view", "view({shape})", choose=_new_shape),
    _view("permute", "permute({dims})", ranked(2), choose=_permutation),
    _view("select", "select({dim}, {index})", ranked(1), _with_size(1), choose=_place),
    _view("unsqueeze", "unsqueeze({dim})", ranked(0, 4), choose=_new_dimension),
    _view("squeeze", "squeeze({dim})", _single, choose=_squeezable),
    _view("expand", "expand({shape})", ranked(0, 3), choose=_expansion, value_range=_repeated),
    _view("matrix_transpose", "mT", ranked(2)),
    _view("diagonal", "diagonal(0, 0, -1)", ranked(2)),
    _view("unfold", "unfold({dim}, 2, {step})", ranked(1, 3), _with_size(2), choose=_window, value_range=_repeated),
    _view("every_second", "movedim(0, -1)[..., ::2]", ranked(1)),
    Operator("head", "view", "{a}[:5]", (also(anything, ranked(1)),), _moved, autocast=True),
    _view("detach", "detach()"),
    _view("alias", "view_as({a})"),
    _view("chunk", "chunk(2, {dim})", _with_size(2), choose=_dimension_of(2), value_range=_pieces, results=2),
    _view("split", "split({sizes}, {dim})", _with_size(2), choose=_split_sizes, value_range=_pieces, results=2),
    _view("unbind", "unbind({dim})", _with_size(2, 2), choose=_dimension_of(2, 2), value_range=_pieces, results=2),
    _view(
        "tensor_split",
        "tensor_split(3, {dim})",
        _with_size(3),
        choose=_dimension_of(3),
        value_range=lambda a, dim: (a.value_range, a.value_range, a.value_range),
        results=3,
    ),
)


#: No value of a generated program has more elements than this once it is flattened.
_MOST = 64


def _unbacked(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.unbacked and value.is_float


def _selected(a: ProgramValue, b: ProgramValue) -> ValueRange:
    return b.value_range.moved()


def _number(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.is_integer and value.count == 1 and value.value_range.exact and not value.unbacked


def _multiplied(a: ProgramValue, b: ProgramValue) -> ValueRange:
    return product(a.value_range, b.value_range)


def _sized(name: str, template: str, value_range: Any, *operands: Any, **fields: Any) -> Operator:
    return Operator(name, "data_dependent", template, operands, value_range, **fields)


def _vector_of_counts(value: ProgramValue, *before: ProgramValue) -> bool:
    return value.is_integer and not value.unbacked and value.rank == 1 and value.value_range.low >= 0


_SIZES = (
    _sized(
        "masked_select",
        "torch.masked_select({b}, {a})",
        _selected,
        boolean,
        also(floating, nonempty, broadcasts),
        unbacked=True,
    ),
    _sized(
        "nonzero",
        "torch.nonzero({a}).flatten().to(torch.float32)",
        lambda a: ValueRange(0, max((0, *a.shape))),
        boolean,
        unbacked=True,
    ),
    _sized(
        "bincount",
        "torch.bincount({a}, minlength=4).to(torch.float32)",
        lambda a: ValueRange(0, max(a.count, 1)),
        _vector_of_counts,
        unbacked=True,
    ),
    _sized(
        "bincount_counted",
        "torch.count_nonzero(torch.bincount({a}, minlength=4))",
        lambda a: integers(0, max(a.count, 1)),
        _vector_of_counts,
    ),
    _sized("unbacked_sin", "torch.sin({a})", lambda a: between(-1, 1, a.value_range), _unbacked, unbacked=True),
    _sized("unbacked_mul", "{a} * 0.5", lambda a: a.value_range.scaled(0.5), _unbacked, unbacked=True),
    _sized("unbacked_sum", "torch.sum({a})", lambda a: a.value_range.summed(_MOST), _unbacked),
    _sized("unbacked_cat", "torch.cat([{a}, {a}])", lambda a: a.value_range.repeated(), _unbacked, unbacked=True),
    _sized("mul_item", "{a} * {b}.item()", _multiplied, floating, _number),
    _sized(
        "count_item",
        "torch.full((2, 2), {a}.sum().item(), device={a}.device)",
        lambda a: integers(0, a.count),
        also(boolean, anything),
    ),
)

OPERATORS = (*_VIEWS, *_SIZES)
