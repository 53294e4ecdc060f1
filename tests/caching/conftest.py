"""What the tests of the store share: a clean memory of warnings, a real Redis server, an entry's bytes."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_regional.reference.caching import errors, remote

VARIABLES = (
    "TORCHINDUCTOR_REDIS_URL",
    "TORCHINDUCTOR_REDIS_HOST",
    "TORCHINDUCTOR_REDIS_PORT",
    remote.SECRET,
    remote.UNAUTHENTICATED,
)


@pytest.fixture(autouse=True)
def as_new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing said, nothing failed, nothing asked for, nobody else's cache."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    errors.forget_warnings()
    remote.forget_failures()
    yield
    errors.forget_warnings()
    remote.forget_failures()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("TORCHINDUCTOR_REDIS_HOST", "127.0.0.1")
    monkeypatch.setenv(remote.SECRET, "a secret")
    return monkeypatch


@pytest.fixture
def quiet() -> Iterator[None]:
    """No warning is given: it would be an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(scope="session")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real Redis server that lives as long as the tests."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed; `make services` installs it")
    pytest.importorskip("redis", reason="the package redis is not installed; pip install 'pytest-regional[redis]'")
    port = free_port()
    folder = tmp_path_factory.mktemp("redis")
    with RunningRedis(port, folder):
        yield port


class RunningRedis:
    """A server for the length of a ``with`` block."""

    def __init__(self, port: int, folder: Path) -> None:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.port = port

    def __enter__(self) -> RunningRedis:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return self
        self.__exit__()
        raise RuntimeError("redis-server did not start within 20 s")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
