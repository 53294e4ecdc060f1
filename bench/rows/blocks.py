"""Compiling 1, 8 and 32 equal blocks, forward and backward: cold beside PyTorch, warm beside both cold compiles."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from .processes import timed_module
from .row import Claim, Row, Target

MODULE = "bench.probes.blocks"
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
WARM = tuple(
    Claim(
        f"blocks: 32 equal, warm beside {whose} cold",
        "next process, outer cache filled",
        against,
        "s",
        Target("at most 1/10", most=1 / 10),
        style="{:.3f}",
    )
    for whose, against in (("PyTorch's", "PyTorch's regional backend, cold"), ("its own", "first process, cold"))
)
CLAIMS = (*COLD, *WARM)
#: Finds out what the processor can do, by compiling; seconds for each new folder, which no side measures.
PROCESSOR = "bench.probes.processor"


def probe(who: str, blocks: int, folder: Path) -> tuple[float, int]:
    """Return seconds and region compiles of a process with its caches in ``folder``."""
    _, output = timed_module(MODULE, [who, str(blocks)], more={"TORCHINDUCTOR_CACHE_DIR": str(folder)})
    words = next(line for line in output.splitlines() if line.startswith("probe")).split()
    return float(words[1]), int(words[2])


def measure(rounds: int) -> list[Row]:
    """Take turns of all sizes and both backends; a warm process follows its cold one."""
    ours: dict[int, list[tuple[float, int]]] = {size: [] for size in SIZES}
    theirs: dict[int, list[tuple[float, int]]] = {size: [] for size in SIZES}
    warm: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as first:
        timed_module(PROCESSOR, [], more={"TORCHINDUCTOR_CACHE_DIR": first})

        def new_folder() -> tempfile.TemporaryDirectory[str]:
            folder = tempfile.TemporaryDirectory()
            shutil.copytree(first, folder.name, dirs_exist_ok=True)
            return folder

        for _ in range(rounds):
            for size in SIZES:
                with new_folder() as mine, new_folder() as other:
                    ours[size].append(probe("ours", size, Path(mine)))
                    if size == 32:
                        warm.append(probe("ours", size, Path(mine)))
                    theirs[size].append(probe("PyTorch", size, Path(other)))
    rows = [
        claim.row(_seconds(ours[size]), _seconds(theirs[size]), _compiles(ours[size], theirs[size]))
        for claim, size in zip(COLD, SIZES, strict=True)
    ]
    for claim, cold in zip(WARM, (theirs[32], ours[32]), strict=True):
        rows.append(claim.row(_seconds(warm), _seconds(cold), _compiles(warm, cold)))
    return rows


def _seconds(runs: list[tuple[float, int]]) -> list[float]:
    return [seconds for seconds, _ in runs]


def _compiles(*sides: list[tuple[float, int]]) -> str:
    return "region compiles: " + " against ".join(str(runs[0][1]) for runs in sides)
