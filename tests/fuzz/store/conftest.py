"""A store in a folder, and one on a Redis server: what holds for one holds for the other."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_regional.fuzz.store import Store, open_store
from pytest_regional.fuzz.store.opening import SECRET, UNAUTHENTICATED

KEY = b"the campaign's secret"

#: Opens the same store once more, as another process would.
Opener = Callable[..., Store]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SECRET, UNAUTHENTICATED):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["folder", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store is."""
    if request.param == "folder":
        return str(tmp_path / "campaign")
    port = request.getfixturevalue("redis_port")
    return f"redis://127.0.0.1:{port}/0?campaign=test-{secrets.token_hex(8)}"


@pytest.fixture
def told() -> list[str]:
    """What stores say; a test that expects nothing ends with nothing there."""
    return []


@pytest.fixture
def opened(url: str, told: list[str]) -> Iterator[Opener]:
    stores: list[Store] = []

    def opener(secret: bytes = KEY, **options: object) -> Store:
        stores.append(open_store(url, secret=secret, **{"tell": told.append, "patience": 20.0, **options}))
        return stores[-1]

    yield opener
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Opener) -> Store:
    return opened()
