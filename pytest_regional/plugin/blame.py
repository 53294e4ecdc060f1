"""What is to blame for a failed test: under ``--regional-blame=deep`` it is called again and again."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pytest_regional._base.limits import RegionalTimeoutError, time_limit
from pytest_regional._base.region import AnnotationError
from pytest_regional._base.stash import is_fuzz_test
from pytest_regional.harness.blame.culprit import Culprit
from pytest_regional.harness.blame.reproducing import culprit_of
from pytest_regional.harness.parity.report import BadProgramError
from pytest_regional.plugin.phases import limits_of

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: A search that hangs ends after so many seconds of the clock for each second of CPU time that it may take, at least.
_HANGS, _AT_LEAST = 3.0, 180.0

_ENDINGS = (pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception)
"""What ``pytest.fail`` and the like raise: no ``Exception``, which is all that a search for a culprit looks at."""


@contextlib.contextmanager
def blamed(item: pytest.Item, regional: Regional, check_end: Callable[[], None]) -> Iterator[None]:
    """Run a test and the checks at its end; where it fails, add what is to blame to ``regional.culprits``.

    A failed comparison has looked already, but where it does not fail alone it needs an earlier part of the test. A
    property test or a fuzz test looks by itself. A test of unittest keeps state in its object, and a known failure is
    known. Neither is called again.
    """
    known = len(regional.culprits)
    # A fixture may clear what the test's module holds for each test.
    module = vars(item.module) if isinstance(item, pytest.Function) else {}
    held = [value for name, value in module.items() if not name.startswith("__")]
    values = [*getattr(item, "funcargs", {}).values(), *held]
    put_back = _as_they_are(values)
    at_end: Callable[[], None] | None = None
    try:
        yield
        # Only where they fail they belong to the failure: a test may pass without a compile otherwise.
        at_end = check_end
        check_end()
    except (Exception, pytest.fail.Exception) as error:
        found = [one for one in regional.culprits[known:] if one.layer != "nothing"]
        searched = isinstance(error, RegionalTimeoutError) or bool(found)
        if isinstance(item, pytest.Function) and not searched and _is_called_again(item):
            # Fixtures are torn down with what the test left, and not the last experiment.
            put_back_for_fixtures = _as_they_are(values)
            regional.culprits[known:] = _culprit(item, regional, put_back, at_end) or regional.culprits[known:]
            put_back_for_fixtures()
        raise


def _is_called_again(item: pytest.Function) -> bool:
    looks_by_itself = getattr(item.obj, "is_hypothesis_test", False) or is_fuzz_test(item)
    keeps_state = issubclass(item.cls or object, unittest.TestCase)
    return not looks_by_itself and not keeps_state and item.get_closest_marker("xfail") is None


def _as_they_are(values: Sequence[Any]) -> Callable[[], None]:
    """Return a function that gives lists, dictionaries, sets and tensors what they hold now."""
    containers = [(one, one.copy()) for one in values if isinstance(one, list | dict | set) and one is not sys.modules]
    plain = [one for one in values if isinstance(one, torch.Tensor) and one.layout == torch.strided]
    # Of one whose elements share memory none can be put back alone.
    tensors = [(one, one.detach().clone(), one.grad) for one in plain if one.nbytes <= one.untyped_storage().nbytes()]

    def identities(container: Any) -> list[int]:
        """Return what identifies the content: tensors do not compare."""
        content = itertools.chain(*container.items()) if isinstance(container, dict) else container
        return [id(one) for one in content]

    def put_back() -> None:
        for value, kept in containers:
            # One that is unchanged is left alone: it may be a registry of others', which the module imports.
            if identities(value) != identities(kept):
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(kept)
        with torch.no_grad():
            for value, held, grad in tensors:
                value.copy_(held)
                value.grad = grad

    return put_back


def _culprit(
    item: pytest.Function, regional: Regional, put_back: Callable[[], None], at_end: Callable[[], None] | None
) -> list[Culprit]:
    """Return what is to blame; nothing where the program is at fault and no compiler.

    Whatever else the search raises is its answer: it must not hide the failure.
    """

    def call_again() -> None:
        # What it prints was printed the first time.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            put_back()
            try:
                item.runtest()
                if at_end is not None:
                    at_end()
            except _ENDINGS as ending:
                raise AssertionError(f"{type(ending).__name__}: {ending}") from ending

    depth, regional.blame_depth = regional.blame_depth, "off"
    try:
        at_most = max(_AT_LEAST, _HANGS * regional.blame_seconds)
        with limits_of(item).suspended(), time_limit(at_most, phase="the search for what is to blame"):
            return [culprit_of(regional, call_again)]
    except (BadProgramError, AnnotationError):
        return []
    except (Exception, RegionalTimeoutError) as error:  # noqa: BLE001
        return [Culprit.of_failed_search(error)]
    finally:
        regional.blame_depth = depth
