"""Compiling 1, 8 and 32 equal blocks, forward and backward: cold beside PyTorch, and warm beside cold."""

from __future__ import annotations

import tempfile

from .processes import timed_module
from .row import Claim, Row, Target

MODULE = "tests.benchmarks.probes.blocks"
SIZES = (1, 8, 32)
AT_32 = Target("at most 1/4", most=1 / 4)
COLD = tuple(
    Claim(
        f"blocks: {size} equal, cold compile",
        "backend `regional`",
        "PyTorch's regional backend",
        "s",
        AT_32 if size == 32 else None,
    )
    for size in SIZES
)
WARM = Claim(
    "blocks: 32 equal, warm",
    "next process, outer cache filled",
    "first process, cold",
    "s",
    Target("at most 1/10", most=1 / 10),
    style="{:.3f}",
)
CLAIMS = (*COLD, WARM)


def probe(who: str, blocks: int, folder: str) -> tuple[float, int]:
    """Return seconds and region compiles of a process with its caches in ``folder``."""
    _, output = timed_module(MODULE, [who, str(blocks)], more={"TORCHINDUCTOR_CACHE_DIR": folder})
    words = next(line for line in output.splitlines() if line.startswith("probe")).split()
    return float(words[1]), int(words[2])


def measure(rounds: int) -> list[Row]:
    """Take turns of all sizes and both backends; a warm process follows its cold one."""
    ours: dict[int, list[tuple[float, int]]] = {size: [] for size in SIZES}
    theirs: dict[int, list[tuple[float, int]]] = {size: [] for size in SIZES}
    warm: list[tuple[float, int]] = []
    for _ in range(rounds):
        for size in SIZES:
            with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
                ours[size].append(probe("ours", size, folder))
                if size == 32:
                    warm.append(probe("ours", size, folder))
                theirs[size].append(probe("PyTorch", size, other))
    rows = [
        claim.row(_seconds(ours[size]), _seconds(theirs[size]), _compiles(ours[size], theirs[size]))
        for claim, size in zip(COLD, SIZES, strict=True)
    ]
    return [*rows, WARM.row(_seconds(warm), _seconds(ours[32]), _compiles(warm, ours[32]))]


def _seconds(runs: list[tuple[float, int]]) -> list[float]:
    return [seconds for seconds, _ in runs]


def _compiles(*sides: list[tuple[float, int]]) -> str:
    return "region compiles: " + " against ".join(str(runs[0][1]) for runs in sides)
