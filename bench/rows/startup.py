"""What the plugin adds to a pytest run that has nothing to do with it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import entry_points
from pathlib import Path

from .row import Claim, Row, Target
from .turns import in_turns

UNDER_10_MS = Target("under 10 ms more", most=10)
CLAIMS = (
    Claim(
        "start-up: pytest on one empty test",
        "with the plugin, found by its entry point",
        "with `-p no:regional`",
        "ms",
        UNDER_10_MS,
        "ours - theirs",
        "{:+.1f} ms",
    ),
    Claim(
        "start-up: imports",
        "pytest and the plugin",
        "pytest alone, same process",
        "ms",
        UNDER_10_MS,
        "ours - theirs",
        "{:+.1f} ms",
    ),
)
#: The process of a pytest run varies by several milliseconds: more turns than other rows need.
TURNS_A_ROUND = 8

TEST = """import sys

def test_that_nothing_large_is_imported():
    assert not {"torch", "hypothesis", "numpy"} & set(sys.modules)
"""
#: Of one process both: what a second one would import faster or slower than the first is not ours.
PROBE = """import time
begun = time.perf_counter()
import pytest
alone = time.perf_counter()
import pytest_regional.plugin
ended = time.perf_counter()
import sys
assert not {"torch", "hypothesis", "numpy"} & set(sys.modules)
print((ended - begun) * 1000, (alone - begun) * 1000)
"""


def measure(rounds: int) -> list[Row]:
    """Take turns of whole runs; time imports."""
    turns = rounds * TURNS_A_ROUND
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_unrelated.py").write_text(TEST)
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def run(*blocked: str) -> float:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *others, *blocked]
            begin = time.perf_counter()
            subprocess.run(command, cwd=folder, env=environment, check=True, stdout=sys.stderr)
            return (time.perf_counter() - begin) * 1000

        def imports() -> tuple[float, float]:
            output = subprocess.check_output([sys.executable, "-c", PROBE], cwd=folder, env=environment, text=True)
            with_plugin, alone = map(float, output.split())
            return with_plugin, alone

        # Other plugins, some of which import numpy, would drown a difference of milliseconds.
        installed = {plugin.name for plugin in entry_points(group="pytest11")} - {"regional"}
        others = [argument for name in sorted(installed) for argument in ("-p", f"no:{name}")]
        ways = {"ours": run, "theirs": lambda: run("-p", "no:regional")}
        in_turns(1, ways)  # writes byte code
        imports()
        with_plugin, alone = zip(*(imports() for _ in range(turns)), strict=True)
        return [CLAIMS[0].row(**in_turns(turns, ways)), CLAIMS[1].row(with_plugin, alone)]
