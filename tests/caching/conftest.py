"""What the tests of the store share: a clean memory of warnings, no shared cache but the one asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_regional.reference.caching import container, store
from pytest_regional.reference.caching.container import TargetFingerprint
from tests.faults.caching.writer import MACHINE

VARIABLES = (
    "TORCHINDUCTOR_REDIS_URL",
    "TORCHINDUCTOR_REDIS_HOST",
    "TORCHINDUCTOR_REDIS_PORT",
    store.SECRET,
    store.UNAUTHENTICATED,
)


@pytest.fixture(autouse=True)
def as_new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing said, nothing failed, nothing asked for, nobody else's cache."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    container.reset_warnings()
    store.reset_failures()
    yield
    container.reset_warnings()
    store.reset_failures()


Become = Callable[[TargetFingerprint], None]


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Have this machine be :data:`MACHINE`, and then another one."""

    def become(machine: TargetFingerprint) -> None:
        monkeypatch.setattr(container, "this_machine", lambda: machine)

    become(MACHINE)
    return become


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_HOST", "127.0.0.1")
    monkeypatch.setenv(store.SECRET, "a secret")
    return monkeypatch


@pytest.fixture
def quiet() -> Iterator[None]:
    """No warning is given: it would be an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
