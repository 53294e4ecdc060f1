"""Errors of a call that are the user's own: a keyword in the wrong place, an annotation that nobody understands."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pytest_regional._region import AnnotationError
from pytest_regional._torch.dynamo_errors import annotation_mistake_in


def refuse_keywords(function: str, unknown: Mapping[str, Any]) -> None:
    """Raise a TypeError that says how to give the keyword arguments ``unknown`` to the program, if there are any."""
    if not unknown:
        return
    names = ", ".join(f"{name}=" for name in unknown)
    near = difflib.get_close_matches(next(iter(unknown)), _keywords_of(function), n=1)
    meant = f" Did you mean {near[0]}=?" if near else ""
    shown = ", ".join(f'"{name}": ...' for name in unknown)
    raise TypeError(
        f"{function} has no keyword {names}.{meant} Keyword arguments of the program are given as a mapping: pass "
        f"kwargs={{{shown}}}"
    )


def refuse_no_program(function: str, program: object) -> None:
    """Raise a TypeError where ``program`` is what a program returned, or nothing that can be called."""
    if callable(program):
        return
    given = "a tensor" if isinstance(program, torch.Tensor) else f"of type {type(program).__name__}"
    raise TypeError(
        f"regional.{function} needs a function or module, and this is {given}. Give the program and its arguments, "
        f"not what it returns: {function}(program, x), not {function}(program(x))"
    )


def _keywords_of(function: str) -> list[str]:
    from pytest_regional.harness.graph_passes.running import run_pass
    from pytest_regional.harness.regional import Regional

    called = run_pass if function == "run_pass" else getattr(Regional, function)
    return [p.name for p in inspect.signature(called).parameters.values() if p.kind is p.KEYWORD_ONLY]


def raise_annotation_error(error: BaseException | None) -> None:
    """Raise the :class:`AnnotationError` that ``error`` is, or that compilers wrapped into it, without their frames.

    So is one that Dynamo met while it traced the program, and what it says of a number in an annotation.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, AnnotationError):
            raise error.with_traceback(None) from None
        mistake = annotation_mistake_in(error)
        if mistake is not None:
            raise AnnotationError(mistake) from None
        seen.add(id(error))
        error = getattr(error, "inner_exception", None) or error.__cause__


@contextlib.contextmanager
def annotation_errors_alone() -> Iterator[None]:
    """Let an :class:`AnnotationError` leave the body as itself, however deep in a compile it arose."""
    try:
        yield
    except Exception as error:
        raise_annotation_error(error)
        raise
