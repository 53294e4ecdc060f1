"""Operators whose arguments come from ATen's schemas: every argument that a value is known for is drawn.

A table says of an overload which tensors it takes and what holds of its result (:mod:`~.aten`). All that it takes
besides tensors, keyword arguments above all, is in its schema; :data:`CHOICES` says which values an argument of a name
may have, whatever the operator. So a new operator, or an argument that a new torch adds, is drawn without being written
down. What eager refuses of the combinations is skipped, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pytest_regional._torch.operators import REQUIRED, SchemaArgument, aten_arguments, aten_results
from pytest_regional.fuzz.operators.operator import (
    OPERAND_NAMES,
    Operator,
    Parameters,
    Picks,
    ProgramValue,
    Wanted,
    also,
    apart,
    same_or_apart,
    writable,
)

Choices: TypeAlias = Callable[[Sequence[ProgramValue], Parameters], Sequence[Any]]
"""The values that an argument may have, the simplest first, for given operands and the arguments chosen before it."""

#: Arguments that keep their default, and why.
NOT_DRAWN: Mapping[str, str] = {
    "sorted": "unsorted results have no defined order",
    "sparse": "sparse gradients are no business of compilers of dense graphs",
    "sparse_grad": "sparse gradients are no business of compilers of dense graphs",
    "non_blocking": "programs stay on one device",
    "memory_format": "layouts come from inputs and views",
    "unsafe": "it leaves out the check of indices, and indices that are drawn are valid",
    "scales_h": "they contradict output_size, and scale_factors are drawn",
    "scales_w": "they contradict output_size, and scale_factors are drawn",
    "compute_mode": "it says how to compute, not what",
    "cudnn_enabled": "it says how to compute, not what",
    "cudnn_enable": "it says how to compute, not what",
}


def _rank(values: Sequence[ProgramValue]) -> int:
    return values[0].rank


def _dims(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    rank = _rank(values)
    return (*range(rank), *range(-rank, 0)) or (0,)


def _dim_lists(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[tuple[int, ...]]:
    rank = _rank(values)
    pairs = [(0, -1), (-2, -1)] if rank >= 2 else []
    return [*((dim,) for dim in range(rank)), *((-dim - 1,) for dim in range(rank)), *pairs] or [()]


def _numbers(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[float]:
    return (1, 2, -1, 0, 0.5) if values[0].is_float else (1, 2, -1, 0, 3)


def _scalars(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[float]:
    return (2, 0.5, -1, 1.5, 0, 1, 3) if values[0].is_float else (2, -1, 0, 1, 3, 0.5)


def _dtypes(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[str | None]:
    return (None, "float64", "float32") if values[0].is_float else (None, "int64", "int32", "float32", "float64")


def _sizes(values: Sequence[ProgramValue], length: int, *options: int) -> Sequence[tuple[int, ...]]:
    same = [(option,) * length for option in options]
    return [*same, tuple(options[place % 2] for place in range(length))] if length > 1 else same


def _positions(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    dim = chosen.get("dim", 0)
    shape = values[0].shape
    return (*range(min(shape[dim], 4)), -1) if shape and shape[dim] else ()


def _counts(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[int]:
    dim = chosen.get("dim", -1)
    return tuple(range(1, 1 + min(values[0].shape[dim], 4))) if values[0].rank else (1,)


def _pads(values: Sequence[ProgramValue], chosen: Parameters) -> Sequence[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [(1, 0), (0, 2), (-1, 1), (0, -1), (-1, -1)]
    return [*found, (1, 0, 0, 1), (0, -1, 1, 0), (-1, 2, 0, -1)] if _rank(values) >= 2 else found


def _always(*choices: Any) -> Choices:
    return lambda values, chosen: choices


#: Which values an argument of a name may have; those of sizes stand in :data:`_OF_LENGTH`.
CHOICES: Mapping[str, Choices] = {
    **dict.fromkeys(("alpha", "beta"), _numbers),
    **dict.fromkeys(("other", "self", "scalar", "exponent"), _scalars),
    **dict.fromkeys(("dim", "dim0", "dim1", "dim2", "dimension"), _dims),
    "dims": _dim_lists,
    "dtype": _dtypes,
    "index": _positions,
    "k": _counts,
    "pad": _pads,
    "approximate": _always("none", "tanh"),
    "correction": _always(1, 0, 2),
    "decimals": _always(0, 1, -1),
    "diagonal": _always(0, 1, -1, 2, -2),
    "divisor_override": _always(None, 3, 1),
    "groups": _always(1, 2, 3),
    "ignore_index": _always(-100, 0, 1),
    "interpolation": _always("linear", "lower", "higher", "nearest", "midpoint"),
    "label_smoothing": _always(0.0, 0.1),
    "lambd": _always(0.5, 0.25),
    "margin": _always(1.0, 0.5),
    "max": _always(1.0, 2, 0.75, None),
    "max_val": _always(1.0, 2.0),
    "maxnorm": _always(1.0, 0.5),
    "min": _always(-1.0, 0, -2, None),
    "min_val": _always(-1.0, 0.0),
    "mode": _always("constant", "reflect", "replicate", "circular"),
    "momentum": _always(0.1, 0.5),
    "nan": _always(None, 0.5),
    "negative_slope": _always(0.01, 0.1),
    "neginf": _always(None, -1.5),
    "offset": _always(0, 1, -1),
    "ord": _always(2, 1, 3),
    "p": _always(2.0, 1.0, 3.0),
    "padding_idx": _always(-1, 0, 1),
    "padding_value": _always(0.0, 0.5),
    "posinf": _always(None, 1.5),
    "reduce": _always("sum", "prod", "mean", "amax", "amin"),
    "reduction": _always(1, 0, 2),
    "rounding_mode": _always("floor", "trunc"),
    "side": _always(None, "left", "right"),
    "threshold": _always(20, 1),
    "value": _scalars,
    "weight": _always(0.25, 0.75),
    "downscale_factor": _always(2),
    "upscale_factor": _always(2),
}

#: The same of lists that have a length: sizes of windows, images and steps.
_OF_LENGTH: Mapping[str, tuple[int, ...]] = {
    "kernel_size": (2, 3, 1),
    "stride": (1, 2, 3),
    "padding": (0, 1, 2),
    "dilation": (1, 2),
    "output_padding": (0, 1),
    "output_size": (2, 1, 3),
}

#: All that arguments are called in the table, for those who read programs from files.
ARGUMENTS = frozenset(
    {
        *("accumulate", "align_corners", "alpha", "approximate", "assume_unique", "beta", "bins"),
        *("ceil_mode", "correction", "count_include_pad", "decimals", "delta", "descending"),
        *("diagonal", "dilation", "dim", "dim1", "dim2", "dimension", "dims", "divisor_override"),
        *("downscale_factor", "dtype", "dx", "end", "eps", "exponent", "full", "groups", "ignore_index"),
        *("include_self", "index", "input_scale", "invert", "k", "keepdim", "kernel_size"),
        *("label_smoothing", "lambd", "largest", "log_input", "log_target", "margin", "max", "max_val"),
        *("maxnorm", "min", "min_val", "mode", "momentum", "n", "nan", "negative_slope", "neginf"),
        *("normalized_shape", "num_groups", "number", "offset", "ord", "out_int32", "output_padding"),
        *("output_size", "p", "pad", "padding", "posinf", "reduce", "reduction", "repeats", "right"),
        *("rounding_mode", "scalars", "scale", "scale_factors", "shifts", "sparse_grad", "stable"),
        *("start", "step", "storage_offset", "stride", "swap", "threshold", "upscale_factor", "value"),
        "weight",
    }
)

#: Texts that arguments may be.
WORDS = frozenset(
    {
        *("none", "tanh", "floor", "trunc", "left", "right", "sum", "prod", "mean", "amax", "amin", "add", "multiply"),
        *("constant", "reflect", "replicate", "circular", "linear", "lower", "higher", "nearest", "midpoint"),
        *("float32", "float64", "int32", "int64"),
    }
)

#: Names of arguments that Python, or the table's source, has other uses for.
_RENAMED = {"self": "number", "other": "number", "scalar": "number"}


def choices_of(argument: SchemaArgument) -> Choices | None:
    """Return the values that ``argument`` may have, its default first; None where nothing is known of it."""
    found = _known(argument)
    if found is None or argument.default is REQUIRED:
        return found
    default = tuple(argument.default) if isinstance(argument.default, list) else argument.default
    known = found
    return lambda values, chosen: (default, *(one for one in known(values, chosen) if not _same(one, default)))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _known(argument: SchemaArgument) -> Choices | None:
    if argument.name in NOT_DRAWN:
        return None
    if argument.type == "bool" or argument.type == "Optional[bool]":
        return _always(False, True)
    if argument.name in _OF_LENGTH and argument.length is not None:
        length, options = argument.length, _OF_LENGTH[argument.name]
        return lambda values, chosen: _sizes(values, length, *options)
    if argument.name == "dim" and "List" in argument.type:
        return _dim_lists
    return CHOICES.get(argument.name)


def derived(
    overload: str,
    family: str,
    operands: Mapping[str, Wanted | tuple[Wanted, ...]],
    value_range: Callable[..., Any],
    *,
    given: Mapping[str, Choices] | None = None,
    in_place: bool = False,
    first: bool = False,
    **fields: Any,
) -> tuple[Operator, ...]:
    """Return the operator of an ATen overload, with all arguments that its schema has; none where this torch lacks it.

    Args:
        overload: such as ``"add.Tensor"``.
        family: the family it belongs to.
        operands: what the tensors have to be, by the schema's names; several for a list of tensors. The first ones are
            chosen first.
        value_range: as of :class:`Operator`.
        given: values of arguments that mean something else than in other operators.
        in_place: whether there is a form that writes to ``self`` as well, which is then returned, too.
        first: whether only the first result is a value of the program; the others depend on more than is promised.
        fields: other fields of :class:`Operator`.

    Raises:
        TypeError: an argument that has to be given, and of which nothing is known.
    """
    made = [_operator(overload, family, operands, value_range, given or {}, first=first, **fields)]
    if in_place:
        packet, _, rest = overload.partition(".")
        writing = f"{packet}_.{rest}" if rest else f"{packet}_"
        changed = _writing(operands, itself=family in ("pointwise", "integer"))
        made.append(_operator(writing, family, changed, value_range, given or {}, written=True, **fields))
    return tuple(operator for operator in made if operator is not None)


def _writing(
    operands: Mapping[str, Wanted | tuple[Wanted, ...]], *, itself: bool
) -> Mapping[str, Wanted | tuple[Wanted, ...]]:
    """Return what operands have to be where ``self`` is written to.

    Args:
        operands: what they have to be where nothing is written.
        itself: whether ``self`` may be read as another operand as well: each element is read before it is written.
    """
    changed: dict[str, Wanted | tuple[Wanted, ...]] = {}
    itself = itself and next(iter(operands)) == "self" and not isinstance(operands["self"], tuple)
    for name, wanted in operands.items():
        every = wanted if isinstance(wanted, tuple) else (wanted,)
        if name == "self":
            parts = tuple(also(one, writable, apart) for one in every)
        else:
            parts = tuple(also(one, same_or_apart if itself else apart) for one in every)
        changed[name] = parts if isinstance(wanted, tuple) else parts[0]
    return changed


def _operator(
    overload: str,
    family: str,
    operands: Mapping[str, Wanted | tuple[Wanted, ...]],
    value_range: Callable[..., Any],
    given: Mapping[str, Choices],
    *,
    first: bool = False,
    written: bool = False,
    **fields: Any,
) -> Operator | None:
    arguments = aten_arguments(overload)
    if arguments is None:
        return None
    wanted, places = _operands(operands)
    texts: list[str] = []
    drawn: dict[str, Choices] = {}
    skipped = False
    for argument in arguments:
        text = places.get(argument.name)
        if text is None and "Tensor" not in argument.type:
            choices = given.get(argument.name) or choices_of(argument)
            if choices is not None:
                name = _RENAMED.get(argument.name, argument.name)
                drawn[name], text = choices, f"{{{name}}}"
        if text is None:
            if argument.default is REQUIRED:
                raise TypeError(f"nothing is known of argument {argument.name!r} of {overload}")
            skipped = True
        else:
            texts.append(f"{argument.name}={text}" if argument.keyword_only or skipped else text)
    packet, _, rest = overload.partition(".")
    template = f"torch.ops.aten.{packet}.{rest or 'default'}({', '.join(texts)})"
    several = isinstance(operands.get("self"), tuple)
    targets = tuple(range(len(operands["self"]))) if several else (list(operands).index("self"),) if written else ()  # type: ignore[arg-type]
    results = 0 if written else len(operands["self"]) if several else 1 if first else aten_results(overload)  # type: ignore[arg-type]
    if (first and aten_results(overload) > 1) or (several and results == 1):
        template += "[0]"
    return Operator(
        f"aten_{packet}{'_' if rest else ''}{rest}",
        family,
        template,
        wanted,
        value_range,
        _chooser(drawn),
        results,
        targets if written else (),
        **fields,
    )


def _operands(operands: Mapping[str, Wanted | tuple[Wanted, ...]]) -> tuple[tuple[Wanted, ...], dict[str, str]]:
    """Return the conditions of all operands, and by argument how they stand in the source."""
    names = iter(OPERAND_NAMES)
    wanted: list[Wanted] = []
    places = {}
    for name, conditions in operands.items():
        if isinstance(conditions, tuple):
            places[name] = f"[{', '.join(f'{{{next(names)}}}' for _ in conditions)}]"
            wanted += conditions
        else:
            places[name] = f"{{{next(names)}}}"
            wanted.append(conditions)
    return tuple(wanted), places


def _chooser(drawn: Mapping[str, Choices]) -> Callable[[Sequence[ProgramValue], Picks], Parameters | None]:
    def choose(values: Sequence[ProgramValue], picks: Picks) -> Parameters | None:
        chosen: dict[str, Any] = {}
        for name, choices in drawn.items():
            options = choices(values, chosen)
            if not options:
                return None
            chosen[name] = picks.one_of(options)
        return chosen

    return choose
