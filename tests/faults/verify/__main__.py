"""How many planted faults of generated code are refuted, and how many of those a run sees: Markdown.

``python -m tests.faults.verify [SECONDS]``. A fault is refuted if the property that it breaks is, and the emulator
confirms it. Exits 1 if fewer than 95 % of those that break a kernel are; others break what holds between kernels.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from pytest_regional.verify import REFUTED
from tests.faults.verify.planted import BUFFERS, FAULTS, PlantedFault

_WANTED = 0.95


@dataclass(frozen=True)
class Result:
    """One fault: whether it was refuted, whether a run with the program's inputs shows it, and what was said."""

    fault: PlantedFault
    refuted: bool
    seen: bool
    seconds: float
    said: Sequence[str]


def results(seconds: float) -> Iterator[Result]:
    """Verify each program with each fault."""
    from pytest_regional.emulation import emulated
    from tests.faults.verify.planted import compiled, seen, verified

    with emulated("h200") as emulation:
        made = cache(lambda program, sizes: compiled(emulation, program, sizes))
        for fault in FAULTS:
            code = made(fault.program, fault.sizes)
            broken = fault.mutate(code.source)
            if broken == code.source:
                raise ValueError(f"{fault} cannot be planted")
            started = time.perf_counter()
            found = verified(emulation, code, broken, seconds)
            outcomes = [outcome for one in found for outcome in one.outcomes]
            spent = time.perf_counter() - started
            refuted = any(o.verdict == REFUTED and o.property == fault.property for o in outcomes)
            said = [f"{o.property} {o.verdict}: {' '.join(o.reason.split())[:160]}" for o in outcomes]
            yield Result(fault, refuted, seen(emulation, code, broken), spent, said)


def table(found: Sequence[Result]) -> str:
    """Return the table, and below it what was said of the faults that were not refuted."""
    lines = ["| Kind | Faults | Refuted | Of those seen when run | Median seconds |", "| --- | --- | --- | --- | --- |"]
    kinds = list(dict.fromkeys(result.fault.kind for result in found))
    for kind in kinds:
        lines.append(_row(kind, [result for result in found if result.fault.kind == kind]))
    lines.append(_row("all", found))
    for result in found:
        if not result.refuted:
            lines += ["", f"Not refuted: {result.fault}, {result.fault.property}", *(f"* {one}" for one in result.said)]
    return "\n".join(lines)


def _row(kind: str, found: Sequence[Result]) -> str:
    refuted = [result for result in found if result.refuted]
    seconds = statistics.median(result.seconds for result in found)
    cells = (kind, len(found), len(refuted), sum(result.seen for result in refuted), f"{seconds:.2f}")
    return f"| {' | '.join(map(str, cells))} |"


def main(seconds: float = 20.0) -> int:
    """Print the table."""
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    found = list(results(seconds))
    print(table(found))
    provable = [result.refuted for result in found if result.fault.property != BUFFERS]
    share = sum(provable) / len(provable)
    print(f"\n{sum(provable)} of {len(provable)} that break memory, races or coverage are refuted ({share:.1%}).")
    return 0 if share >= _WANTED else 1


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
