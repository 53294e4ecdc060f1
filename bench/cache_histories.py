"""Run many sequences of cache operations, and print what the backend answered.

``python -m bench.cache_histories [COUNT] [--mode native] [--seed S]``. Each sequence begins with empty caches. After
each compile the counters have to say what the model predicts, and the values have to be eager's: a stale result breaks
one of the two. In mode ``interpret`` an entry is of use only to the process that stored it, so that only mode
``native`` has new processes; they are forked from a server. Prints the sequences that break the model, and how many
compiles the model predicts of each kind. Status 1 if a sequence breaks it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import sys
import time
from collections.abc import Iterable, Sequence

from pytest_regional._torch.config import recompiles_allowed
from pytest_regional.fuzz.caches.random_sequences import sequences_for
from pytest_regional.fuzz.caches.sequences import Compile, Event, Executor, NewProcess
from pytest_regional.fuzz.modes import keeping_whole_results
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.harness.process import ForkServers, NewProcesses
from pytest_regional.harness.regional import Regional
from pytest_regional.testing import regional

BACKEND = "reference"


def run(harness: Regional, drawn: Iterable[Sequence[Event]], mode: str) -> collections.Counter[str]:
    """Execute sequences; return how many there were, how many events, and compiles by what the model predicted."""
    counts: collections.Counter[str] = collections.Counter()
    with keeping_whole_results(harness, mode), recompiles_allowed(1000):
        for events in drawn:
            counts["sequences"] += 1
            executor = Executor(harness, mode)
            try:
                for event in events:
                    counts["events"] += 1
                    counts.update(predicted(executor, event))
                    executor.execute(event)
            except OracleViolationError as error:
                counts["broken"] += 1
                print(f"{executor.executed}: {error}", flush=True)
    return counts


def predicted(executor: Executor, event: Event) -> list[str]:
    """Return what the model predicts of a compile; nothing of other events."""
    match event:
        case Compile(key):
            return [executor.model.answer(key)]
        case NewProcess(key):
            return [f"{executor.model.answer_elsewhere(key)}, new process"]
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=10_000, help="how many sequences")
    parser.add_argument("--mode", choices=("interpret", "native"), default="interpret", help="what a compile does")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn from")
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    servers = ForkServers(1, "cpu")
    with contextlib.ExitStack() as at_end, regional(BACKEND, "cpu", expects_regions=False) as harness:
        at_end.callback(servers.end)
        harness.new_processes = NewProcesses(servers, "cpu")
        drawn = sequences_for(harness, options.seed, processes=options.mode == "native")
        counts = run(harness, itertools.islice(drawn, options.count), options.mode)
    print(f"{time.perf_counter() - begin:.0f} s; " + ", ".join(f"{name} {counts[name]}" for name in sorted(counts)))
    return int(counts["broken"] > 0)


if __name__ == "__main__":
    sys.exit(main())
