"""Compare Python values that are no tensors: which are equal, and what those consist of that say nothing themselves."""

from __future__ import annotations

import enum
import functools
import numbers
import types
from collections.abc import Iterator
from typing import Any

import numpy
import torch

from pytest_regional._errors import RegionalError
from pytest_regional.harness.parity.captured import Captured
from pytest_regional.harness.parity.objects import LIMIT, is_object, walk

#: What is equal only to itself and has no parts.
_SINGLE = (
    enum.Enum,
    types.ModuleType,
    types.BuiltinFunctionType,
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch.qscheme,
)
_RUNNING = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


class NotComparableError(RegionalError, TypeError):
    """Nothing tells whether two values are equal; the message says why."""


def is_equal(found: Any, expected: Any) -> bool | None:
    """Return whether two values of one type are equal; None if neither of them says, so that :func:`insides` tells.

    Values that hold others may say that they are not because these have no ``__eq__``.
    """
    if found is expected:
        return True
    if isinstance(expected, _SINGLE):
        return False
    if isinstance(expected, type):
        return _same_class(found, expected)
    if isinstance(expected, types.FunctionType):
        return None if same_code(found.__code__, expected.__code__) else False
    if isinstance(expected, types.MethodType) or not has_equality(expected):
        return None
    try:
        equal = found == expected
    except Exception:  # noqa: BLE001 - an __eq__ that fails, on tensors for one, says nothing.
        return None
    if isinstance(expected, set | frozenset) and not equal and not all(map(_equals_its_like, expected)):
        return None
    return bool(equal) if isinstance(equal, bool | numpy.bool_) else None


def has_equality(value: Any) -> bool:
    """Say whether the class of ``value`` defines what is equal to it."""
    method: Any = type(value).__eq__
    return method is not object.__eq__


def _equals_its_like(value: Any) -> bool:
    return isinstance(value, _SINGLE) or (has_equality(value) and not isinstance(value, torch.Tensor))


def insides(value: Any) -> dict[str, Any]:
    """Return what ``value`` consists of, by what follows its name in reports.

    Raises:
        NotComparableError: nothing is known of its insides.
    """
    found = dict(_insides(value))
    if not found and not (is_object(value) or isinstance(value, types.FunctionType)):
        raise NotComparableError(f"a {type(value).__name__}, without __eq__ or attributes")
    return found


def _insides(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        yield ".__defaults__", value.__defaults__
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f" (variable {name})", _content(cell)
    elif isinstance(value, types.MethodType):
        yield from ((".__func__", value.__func__), (".__self__", value.__self__))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, torch.Generator):
        yield ".get_state()", Captured.of(value.get_state())
    elif isinstance(value, torch.nn.Module):
        raise NotComparableError("a module that the program makes")
    elif isinstance(value, _RUNNING):
        raise NotComparableError(f"a {type(value).__name__}, which runs when it is read")
    elif isinstance(value, set | frozenset):
        raise NotComparableError("a set of what has no __eq__, and no order")
    elif isinstance(value, numpy.ndarray):
        yield from ((".dtype", value.dtype), (".tolist()", value.tolist()))
    elif isinstance(value, BaseException):
        yield from ((".args", value.args), (".__dict__", value.__dict__))
    elif is_object(value) and not isinstance(value, numbers.Number):
        for name, inside in walk(value, "", LIMIT):
            yield name, Captured.of(inside) if isinstance(inside, torch.Tensor) else inside


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not assigned yet
        return None


def _same_class(found: type, expected: type) -> bool:
    if (found.__module__, found.__qualname__) != (expected.__module__, expected.__qualname__):
        return False
    raise NotComparableError(f"a class that each run makes anew, {expected.__qualname__}")


def same_code(found: types.CodeType, expected: types.CodeType) -> bool:
    """Say whether two functions do the same, wherever they stand in a file."""
    if (found.co_code, found.co_names, found.co_freevars) != (
        expected.co_code,
        expected.co_names,
        expected.co_freevars,
    ):
        return False
    pairs = zip(found.co_consts, expected.co_consts, strict=False)
    return len(found.co_consts) == len(expected.co_consts) and all(_same_constant(*pair) for pair in pairs)


def _same_constant(found: Any, expected: Any) -> bool:
    if isinstance(found, types.CodeType) and isinstance(expected, types.CodeType):
        return same_code(found, expected)
    return type(found) is type(expected) and bool(found == expected)


__all__ = ["NotComparableError", "has_equality", "insides", "is_equal", "same_code"]
