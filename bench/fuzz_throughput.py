"""Judged programs a second in the modes that generate no code: ``python -m bench.fuzz_throughput [--turns 3]``.

In each turn the same programs, drawn anew, are checked in each mode, on one core: what is drawn counts as well. In mode
``aten`` sixteen graphs come of a program, and those that have no such graph are not judged. The first turn does not
count. ``--profile MODE`` shows where the time goes instead.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from pytest_regional.fuzz.draw.annotations import VARIANTS, with_other_annotations
from pytest_regional.fuzz.draw.graphs import random_programs
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles import BadProgramError, OracleViolationError, check
from pytest_regional.harness.regional import Regional
from pytest_regional.testing import regional

MODES = ("interpret", "graph", "aten")

#: What every mode here can judge of every program.
ORACLES = ("compiles", "parity", "region_boundary", "configs", "plan")

#: Programs that are drawn for a turn, and seed of the first one.
PROGRAMS, SEED = 16, 6000

Clock = Callable[[], float]


def drawn(mode: str, seed: int, programs: int) -> Iterator[Program]:
    """Yield what is checked in ``mode``, drawn while it is asked for."""
    found = islice(random_programs(seed), programs)
    return with_other_annotations(found, VARIANTS, seed) if mode == "aten" else found


def turn(harness: Regional, mode: str, seed: int, programs: int, clock: Clock = time.perf_counter) -> float:
    """Return the seconds that a judged program takes, those included that went into others."""
    begin, judged = clock(), 0
    for program in drawn(mode, seed, programs):
        try:
            judged += "compiles" in check(harness, program, mode=mode, oracles=ORACLES, blame=False).oracles
        except OracleViolationError:
            judged += 1
        except BadProgramError:
            continue
    return (clock() - begin) / max(judged, 1)


def measure(
    turns: int, modes: Sequence[str] = MODES, programs: int = PROGRAMS, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of a judged program, by mode, one figure for each turn."""
    found: dict[str, list[float]] = {mode: [] for mode in modes}
    with regional("reference", "cpu", expects_regions=False) as harness:
        for number in range(turns + 1):
            for mode in modes:
                seconds = turn(harness, mode, SEED + number, programs, clock)
                if number:
                    found[mode].append(seconds)
    return found


def profile(mode: str, programs: int) -> None:
    """Print where the time of one turn goes."""
    with regional("reference", "cpu", expects_regions=False) as harness:
        turn(harness, mode, SEED, programs)
        profiler = cProfile.Profile()
        profiler.runcall(turn, harness, mode, SEED + 1, programs)
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(60)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--programs", type=int, default=PROGRAMS, help="drawn for each turn")
    parser.add_argument("--modes", default=",".join(MODES), type=lambda text: text.split(","))
    parser.add_argument(
        "--cpu", action="store_true", help="count seconds of this process, not of the clock on the wall"
    )
    parser.add_argument("--profile", metavar="MODE")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if options.profile:
        profile(options.profile, options.programs)
        return
    clock = time.process_time if options.cpu else time.perf_counter
    for mode, seconds in measure(options.turns, options.modes, options.programs, clock).items():
        rates = [1 / one for one in seconds]
        shown = f"{statistics.median(rates):8.1f} judged programs a second ({min(rates):.1f} to {max(rates):.1f})"
        print(f"{mode:12}{shown}")


if __name__ == "__main__":
    main()
