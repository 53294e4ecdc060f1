"""Processes that use one store at once; they import no torch, so they begin in a tenth of a second."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]

_BEGIN = """
import sys, time
from pytest_regional.fuzz.store import open_store
store = open_store(sys.argv[1], secret=b"the campaign's secret", patience=30, tell=lambda _: None)
print("ready", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def running(url: str, programs: list[str], *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Begin programs, which have a ``store`` and ``sys.argv[2:]``; when all are ready, they go on at once."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _BEGIN + program, url, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for program in programs
    ]
    try:
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def printed(process: subprocess.Popen[str]) -> list[str]:
    """Return the lines of a process that ends well."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output.splitlines()
