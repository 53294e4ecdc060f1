"""What is set before torch is imported, which reads it once; that it is early enough stands in ``test_xdist.py``."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def values(pytester, monkeypatch):
    """The environment of a run, where the caller has set what the test says."""

    def ask(**variables):
        for name in ("OMP_WAIT_POLICY", "TORCHINDUCTOR_COMPILE_THREADS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        pytester.parseconfig("--regional-backend=aot_eager")
        return dict(os.environ)

    return ask


def test_threads_wait_asleep_and_each_process_compiles_itself(values):
    assert values().items() >= {"OMP_WAIT_POLICY": "PASSIVE", "TORCHINDUCTOR_COMPILE_THREADS": "1"}.items()


def test_what_the_caller_sets_holds(values):
    kept = {"OMP_WAIT_POLICY": "ACTIVE", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    assert values(**kept).items() >= kept.items()
