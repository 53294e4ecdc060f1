"""One harness for all tests of a module: checking resets it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_regional import BackendLeakError
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles import CheckResult, OracleViolationError, check
from pytest_regional.testing import regional
from tests.fuzz.oracles.backends import faulty

Check = Callable[..., CheckResult]


@pytest.fixture(scope="module")
def checked() -> Iterator[Check]:
    """Check on the reference backend in the mode ``interpret``."""
    with regional("reference", "cpu", expects_regions=False) as harness:
        yield lambda program, *oracles: check(harness, program, mode="interpret", oracles=oracles or None)


@pytest.fixture
def violation() -> Callable[..., OracleViolationError]:
    """Return the error of checking on a backend with a planted fault, given as keywords of ``faulty``."""

    def check_faulty(program: Program, *oracles: str, **faults: Any) -> OracleViolationError:
        # A fault that leaves a setting changed is told again at the harness's end.
        with contextlib.suppress(BackendLeakError), regional(faulty(**faults), "cpu", expects_regions=False) as harness:
            with pytest.raises(OracleViolationError) as raised:
                check(harness, program, mode="interpret", oracles=oracles or None)
        return raised.value

    return check_faulty
