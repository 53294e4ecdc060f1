"""A small suite through the fixtures, and the same checks by hand."""

from __future__ import annotations

import tempfile
from pathlib import Path

from .processes import timed_module
from .row import Claim, Row, Target
from .turns import in_turns

DATA = Path(__file__).parent / "data"
CLAIMS = (
    Claim(
        "fixtures: a suite of four tests",
        "through the fixture `regional`",
        "by hand with PyTorch's helpers",
        "s",
        Target("at most 1.05", most=1.05),
    ),
)


def seconds_of(file: str, *arguments: str) -> float:
    """Time a pytest process on a suite of ``DATA``, with caches of its own."""
    with tempfile.TemporaryDirectory() as folder:
        more = {"PYTHONPATH": str(DATA), "TORCHINDUCTOR_CACHE_DIR": folder, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        seconds, _ = timed_module("pytest", ["-q", "-p", "no:cacheprovider", *arguments, file], DATA, more)
    return seconds


def measure(rounds: int) -> list[Row]:
    """Take turns of both suites, neither with a kernel store."""
    arguments = "-p", "regional", "--regional-backend=reference", "--regional-device=cpu", "-oregional_kernel_store=off"
    ways = {
        "ours": lambda: seconds_of("through_fixtures.py", *arguments),
        "theirs": lambda: seconds_of("by_hand.py"),
    }
    seconds_of("through_fixtures.py", *arguments, "--collect-only")  # byte code
    seconds_of("by_hand.py", "--collect-only")
    return [CLAIMS[0].row(**in_turns(rounds, ways))]
