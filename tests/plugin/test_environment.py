"""What is set before torch is imported, which reads it once; that it is early enough stands in ``test_xdist.py``."""

from __future__ import annotations

import pytest

from pytest_regional import environment


@pytest.fixture
def values(tmp_path, monkeypatch):
    """What is set for a worker or for another process, where the caller has set what the test says."""

    def ask(*, worker, **variables):
        for name in ("OMP_WAIT_POLICY", "TORCHINDUCTOR_COMPILE_THREADS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return environment._values(tmp_path, tmp_path / "main", worker=worker)

    return ask


def test_threads_of_workers_wait_asleep(values):
    assert values(worker=True)["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "OMP_WAIT_POLICY" not in values(worker=False)


def test_each_process_compiles_itself(values):
    assert values(worker=False)["TORCHINDUCTOR_COMPILE_THREADS"] == "1"


def test_what_the_caller_sets_holds(values):
    kept = {"OMP_WAIT_POLICY": "ACTIVE", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    assert not kept.keys() & values(worker=True, **kept).keys()
