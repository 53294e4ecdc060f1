"""How much more several workers check than one process: ``python -m bench.campaign_scaling --programs 200``.

The same programs (of one seed, on one backend in one mode) are checked by one process without a store, and by campaigns
of 1, 2 and 4 workers: processes, and actors of a local Ray cluster. A worker's programs a minute are those that it
checked, by the time that it spent on checking them and on the store; start-up is printed separately.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_regional.fuzz.store import open_store
from pytest_regional.fuzz.workers.engines import Engine, LocalProcesses
from pytest_regional.fuzz.workers.head import Head
from pytest_regional.fuzz.workers.plan import Part, Plan, joined
from pytest_regional.fuzz.workers.ray_cluster import LOCAL, RayCluster
from pytest_regional.report.campaign_screen import CampaignScreen

ROOT = Path(__file__).parents[1]

#: One thread for each worker: threads of one would compete with another one.
VARIABLES = {**os.environ, "OMP_NUM_THREADS": "1"}


def plan_of(backend: str, mode: str, programs: int) -> Plan:
    """Return the campaign; without guidance, so that all ways check the same programs."""
    device = "cuda-emulated" if mode == "emulated" else "cpu"
    return Plan((Part(backend, device, mode),), 5, programs=programs, guidance="off", blames=False)


def without_store(plan: Plan) -> None:
    """Check the programs of ``plan`` in this process; print seconds and how many were checked."""
    from pytest_regional.fuzz.budget import Budget
    from pytest_regional.fuzz.campaign import Campaign, quiet_logs
    from pytest_regional.fuzz.draw.encoding import Options
    from pytest_regional.fuzz.draw.graphs import random_programs
    from pytest_regional.fuzz.guidance import Guidance
    from pytest_regional.fuzz.model.claims import disclaimed
    from pytest_regional.fuzz.model.program import Program
    from pytest_regional.fuzz.programs import Programs
    from pytest_regional.testing import regional

    (part,) = plan.parts

    def drawn(seed: int) -> Iterator[Program]:
        return random_programs(seed, options=options)

    with quiet_logs(), regional(part.backend, part.device, expects_regions=False) as harness:
        options = Options(without=disclaimed(harness._spec))
        guidance = Guidance(0, options, share=0.0)  # workers count coverage as well
        subject = Programs.of(
            harness, part.backend, part.mode, drawn=drawn, blames=False, limit=120.0, guidance=guidance
        )
        campaign = Campaign(subject, Budget(seconds=86_400.0), plan.seed)
        number = 0
        while size := plan.size_of(number):
            programs = subject.draw(plan.seed_of(number))
            campaign.check(next(programs) for _ in range(size))
            number += 1
    print(json.dumps({"seconds": campaign.result.seconds, "examples": campaign.result.examples}))


def with_workers(plan: Plan, workers: int, engine: Engine) -> tuple[float, int]:
    """Return the programs a minute of all workers together, and how many they checked."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w", encoding="utf-8") as nowhere:
        from rich.console import Console

        url = str(Path(folder) / "store")
        with contextlib.closing(open_store(url)) as store:
            joined(store, plan)
            screen = CampaignScreen(Console(file=nowhere), None)
            head = Head(
                store, url, plan, engine, screen, findings=Path(folder) / "findings", scratch=Path(folder) / "scratch"
            )
            status = head.run(workers).status
    totals = [one for worker in status.workers.values() for one in worker.totals.values()]
    return sum(60 * one.examples / one.seconds for one in totals if one.seconds), sum(one.examples for one in totals)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="reference")
    parser.add_argument("--mode", default="interpret")
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    plan = plan_of(asked.backend, asked.mode, asked.programs)
    if asked.plain:
        without_store(plan)
        return 0
    print("| way | programs | programs a minute | of one process | seconds in all |")
    print("|---|---|---|---|---|")
    begun = time.monotonic()
    command = [sys.executable, "-m", "bench.campaign_scaling", "--plain", f"--programs={asked.programs}"]
    command += [f"--backend={asked.backend}", f"--mode={asked.mode}"]
    plain = json.loads(subprocess.run(command, cwd=ROOT, env=VARIABLES, stdout=subprocess.PIPE, check=True).stdout)
    one = 60 * plain["examples"] / plain["seconds"]
    print(
        f"| one process, no store | {plain['examples']} | {one:.0f} | 1.00 | {time.monotonic() - begun:.0f} |",
        flush=True,
    )
    pythons = {"python": sys.executable}
    for way in ("processes", "Ray"):
        for workers in asked.workers:
            begun = time.monotonic()
            engine: Engine = (
                LocalProcesses(pythons, VARIABLES)
                if way == "processes"
                else RayCluster(LOCAL, workers, pythons, VARIABLES)
            )
            rate, examples = with_workers(plan, workers, engine)
            seconds = time.monotonic() - begun
            print(
                f"| {way}, {workers} workers | {examples} | {rate:.0f} | {rate / one:.2f} | {seconds:.0f} |", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
