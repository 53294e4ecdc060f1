"""The suites on a backend that compiles graphs, without Inductor and for inference: each test says what it needs.

It computes what eager computes, so whatever fails asks for something that is in no ``requires``. On the backend of
somebody else that would be a failure of ours.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.warm_process import run_module

ROOT = Path(__file__).parents[2]
SUITES = sorted(path.name for path in (ROOT / "suites").iterdir() if (path / "__init__.py").exists())
# Their tests draw programs by what the backend claims, and are told of in tests/fuzz.
OTHERWISE = {"fuzz"}


@pytest.mark.slow(
    "runs all suites",
    fast="tests/plugin/test_suites_name_their_needs.py::test_on_a_backend_without_capabilities_that_splits_graphs",
)
@pytest.mark.parametrize("suite", [name for name in SUITES if name not in OTHERWISE])
def test_each_test_says_what_it_needs(suite):
    options = ["--regional-backend=tests.harness.graph_backend:specification", "-q", "-rfE", "-p", "no:cacheprovider"]
    done = run_module("pytest", [f"suites/{suite}", *options], ROOT, os.environ)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    assert failed == []
    # A suite of models that are not installed collects nothing.
    assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), (
        done.stdout[-3000:] + done.stderr
    )
