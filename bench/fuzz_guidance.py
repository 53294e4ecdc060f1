"""Guided against undirected campaigns in equal time: ``python -m bench.fuzz_guidance --seconds 40 --seeds 3``.

For each seed campaigns of equal length take turns: *undirected* (every program is drawn, what it reaches is recorded)
and *guided* (half are mutants of kept programs); with ``--ways plain,undirected,guided`` also *plain* (all are drawn,
nothing is recorded). No finding is reduced, and a failure that was seen before is no reason to skip a program. Distinct
failures differ in oracle, stage or origin. Programs that eager refuses are faults of the generator. Seconds are those
of this process on a processor: what else the machine does would decide more than guidance does.
"""

from __future__ import annotations

import argparse
import collections
import logging
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from pytest_regional.backends.spec import PARTITIONERS
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import random_programs
from pytest_regional.fuzz.guidance import MUTATED, Guidance
from pytest_regional.fuzz.oracles import BadProgramError, OracleViolationError, check
from pytest_regional.fuzz.programs import Programs
from pytest_regional.harness.regional import Regional
from pytest_regional.testing import regional

Failure = tuple[str, str, str]

#: The share of mutants by way; nothing is recorded where there is none.
SHARES = {"plain": None, "undirected": 0.0, "guided": MUTATED}


@dataclass
class Outcome:
    """What came of one campaign."""

    programs: int = 0
    refused: int = 0
    seconds: float = 0.0
    keys: int = 0
    mutants: int = 0
    failures: collections.Counter[Failure] = field(default_factory=collections.Counter)


def campaign(
    checker: Callable[..., object], share: float | None, seed: int, seconds: float, variants: object
) -> Outcome:
    """Check programs for some seconds of processor time; ``share`` of them are mutants."""
    outcome = Outcome()
    guidance = None if share is None else Guidance(seed, Options(), share=share)
    partitioners = PARTITIONERS if "partitioner" in variants else ()
    subject = Programs(
        checker,
        lambda number: random_programs(number, options=Options()),
        limit=60.0,
        partitioners=partitioners,
        guidance=guidance,
    )

    def known(violation: OracleViolationError, *features: frozenset[str]) -> bool:
        outcome.failures[violation.oracle, violation.stage, violation.origin] += 1
        return True

    started = time.process_time()
    for program in subject.draw(seed):
        try:
            subject.check(program, known)
        except BadProgramError:
            outcome.refused += 1
        outcome.programs += 1
        outcome.seconds = time.process_time() - started
        if outcome.seconds >= seconds:
            break
    if guidance is not None:
        outcome.keys, outcome.mutants = guidance.counts.keys, guidance.counts.mutated
    return outcome


def measured(
    harness: Regional, mode: str, ways: Sequence[str], seeds: Sequence[int], seconds: float
) -> dict[str, list[Outcome]]:
    """Return the outcomes of each way, one for each seed; which way is first changes with the seed."""

    def checker(program: object, **how: object) -> object:
        return check(harness, program, mode=mode, **how)

    found: dict[str, list[Outcome]] = {way: [] for way in ways}
    campaign(checker, None, 0, 5.0, harness.variants)  # what is imported late is imported here
    for seed in seeds:
        first = seed % len(ways)
        for way in (*ways[first:], *ways[:first]):
            outcome = campaign(checker, SHARES[way], seed, seconds, harness.variants)
            found[way].append(outcome)
            print(f"seed {seed}, {way}: {outcome}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, list[Outcome]]) -> str:
    """Return the table: means over seeds, and each way divided by the undirected one, or by the first."""
    lines = [
        "| way | programs a minute | mutants | coverage keys | distinct failures (each seed) | all seeds | refused |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    base = found.get("undirected") or next(iter(found.values()))
    for way, outcomes in found.items():
        rates, before = ([60 * one.programs / one.seconds for one in some] for some in (outcomes, base))
        rate = f"{statistics.mean(rates):.1f} ({statistics.mean(rates) / statistics.mean(before):.2f})"
        total = sum(one.keys for one in outcomes), sum(one.keys for one in base)
        keys = (
            f"{total[0] / len(outcomes):.0f} ({total[0] / total[1]:.2f})" if total[0] and total[1] else "not recorded"
        )
        distinct = [len(one.failures) for one in outcomes]
        mean = f"{statistics.mean(distinct):.1f} ({', '.join(map(str, distinct))})"
        together = len(set().union(*(one.failures for one in outcomes)))
        mutants, refused = sum(one.mutants for one in outcomes), sum(one.refused for one in outcomes)
        lines.append(f"| {way} | {rate} | {mutants} | {keys} | {mean} | {together} | {refused} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--mode", default="native")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--ways", default="undirected,guided", type=lambda text: text.split(","))
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with regional(options.backend, "cpu", expects_regions=False) as harness:
        found = measured(harness, options.mode, options.ways, seeds, options.seconds)
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {options.backend} ({options.mode}), "
        f"{options.seeds} seeds, {options.seconds:g} s of processor time each"
    )
    print(table(found))
    print("\nhow often each failure was seen, by way:")
    counts = {way: sum((one.failures for one in outcomes), collections.Counter()) for way, outcomes in found.items()}
    for failure in sorted(set().union(*counts.values())):
        print(f"  {' '.join(str(counts[way][failure]).rjust(3) for way in found)}  {' '.join(failure)[:150]}")


if __name__ == "__main__":
    main()
