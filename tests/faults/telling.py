"""A pytest plugin (``-p tests.faults.telling``) that writes what failed, and as what, to a file of JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.faults.verdict import TIMEOUTS

FILE = "PYTEST_REGIONAL_MUTANT_RESULTS"
"""Environment variable: where to write."""

ENOUGH = "PYTEST_REGIONAL_MUTANT_ENOUGH"
"""Environment variable: names of exceptions, separated by commas, one of which ends the run; ``*`` for any."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    """Tell of every phase that failed or was skipped, and of every test that passed."""
    report = yield
    if report.failed or report.skipped or (report.when == "call" and report.passed):
        failed = call.excinfo if report.failed else None
        line = {
            "test": item.nodeid.partition("[")[0] + _parameters(item.nodeid, item.config),
            "outcome": report.outcome,
            "error": failed.typename if failed else "Failed" if report.failed else "",
            "text": (str(failed.value).strip().splitlines() or [""])[0][:300] if failed else "",
        }
        with open(os.environ[FILE], "a") as file:
            file.write(json.dumps(line) + "\n")
        if failed and is_enough(failed.typename):
            item.session.shouldstop = "the mutant is killed"
    return report


def _parameters(nodeid: str, config: Any) -> str:
    """Return the parameters of a test without the backend's name, which is long and says nothing."""
    _, bracket, rest = nodeid.partition("[")
    kept = [part for part in rest.removesuffix("]").split("-") if "tests.faults" not in part]
    return f"[{'-'.join(kept)}]" if bracket and kept and any(kept) else ""


def is_enough(error: str) -> bool:
    """Return whether a failure by `error` ends the run."""
    enough = os.environ.get(ENOUGH, "").split(",")
    return error in enough or ("*" in enough and error not in TIMEOUTS)
