"""A real Redis server, for the tests of what is shared through one."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path


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
