"""Whole compiles through a real Redis server: another machine compiles nothing, a forged entry is compiled again."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch
import torch._dynamo

import pytest_regional.testing
from pytest_regional.reference import CacheWarning
from pytest_regional.reference.caching.container import reset_warnings
from tests.caching.test_redis import raw, redis  # noqa: F401 - fixtures
from tests.reference.artifact_programs import inputs, product, results
from tests.reference.caches import compiled, outcomes


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Move to the machine of that name: its cache folder, and nothing in memory."""

    def move(name: str) -> None:
        torch._dynamo.reset()
        reset_warnings()
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / name))

    yield move
    torch._dynamo.reset()


def run():
    with outcomes() as seen:
        values = results(compiled(product), *inputs())
    return values, (seen["hit"], seen["miss"], seen["regions"])


@pytest.mark.usefixtures("raw")
@pytest.mark.filterwarnings(f"error::{CacheWarning.__module__}.CacheWarning")
def test_another_machine_compiles_nothing(machine):
    machine("a")
    values, seen = run()
    assert seen == (0, 1, 2)
    machine("b")
    shared, seen = run()
    assert seen == (1, 0, 0)
    assert all(map(torch.equal, values, shared))


@pytest.mark.usefixtures("raw")
@pytest.mark.filterwarnings(f"error::{CacheWarning.__module__}.CacheWarning")
def test_entries_from_the_server_are_kept_on_the_machine(machine, environment):
    machine("a")
    run()
    machine("b")
    run()
    environment.delenv("TORCHINDUCTOR_REDIS_HOST")
    assert run()[1] == (1, 0, 0)


def test_a_forged_entry_is_compiled_again(machine, raw):  # noqa: F811
    machine("a")
    values, _ = run()
    for name in raw.keys("*"):
        data = bytearray(raw.get(name))
        data[-1] ^= 1
        raw.set(name, bytes(data))
    machine("b")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        shared, seen = run()
    assert seen == (0, 1, 2)
    assert sum(issubclass(warning.category, CacheWarning) for warning in given) == 1
    assert all(map(torch.equal, values, shared))


def compile_elsewhere(regional):
    """Run in another process, whose machine has an empty cache folder."""
    results(regional.compile(product), *inputs())
    return dict(regional.counters)


@pytest.mark.usefixtures("warm_process")
@pytest.mark.usefixtures("raw")
def test_processes_of_a_test_share_what_the_test_asks_for(environment, tmp_path):
    host, port = "127.0.0.1", os.environ["TORCHINDUCTOR_REDIS_PORT"]
    for name, expected in (("first", (0, 1)), ("second", (1, 0))):
        with pytest_regional.testing.regional(cache_dir=tmp_path / name, expects_regions=False) as harness:
            environment.setenv("TORCHINDUCTOR_REDIS_HOST", host)
            environment.setenv("TORCHINDUCTOR_REDIS_PORT", port)
            counters = harness.in_new_process(compile_elsewhere).value
        assert (counters["cache_hits"], counters["cache_misses"]) == expected
