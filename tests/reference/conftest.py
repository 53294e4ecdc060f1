"""Isolation for library tests: no plugin fixtures, a cache folder of their own, Dynamo reset around each."""

import pytest
import torch._dynamo

from pytest_regional.harness.isolation import seed_torch


@pytest.fixture(autouse=True)
def _private_caches(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
    torch._dynamo.reset()
    seed_torch(0)
    yield
    torch._dynamo.reset()
