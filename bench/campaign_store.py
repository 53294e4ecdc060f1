"""Print how many fuzzing workers one store serves: ``python -m bench.campaign_store --workers 100 1000 --seconds 20``.

A few processes are full of workers, each with a store of its own, which do what a worker of a campaign does, without
the programs: a worker sleeps for as long as one takes. Once in 20 programs it takes a number, and asks for new findings
and claims; after each it writes its own record of 6 KB; one program in 200 fails, in one of 50 ways, and then it tries
to claim that. The stores are a folder, and a Redis server that keeps nothing on disk. All share this machine's cores,
so what bends first are often the workers: compare the two columns of processor time.

At last the programs are made shorter by half, again and again, until fewer than 90 % of them are reached.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from pytest_regional.fuzz.store import Store, open_store
from tests.redis_server import RunningRedis, free_port

SECRET = b"bench"
#: More than cores: what waits for the disk in one keeps no other from going on.
PROCESSES = 8
RECORD = {"seen": "x" * 6000}
PROGRAMS_A_SYNC, PROGRAMS_A_FAILURE, SIGNATURES = 20, 200, 50
#: Of the ideal programs a minute; below, a store is said to bend.
ENOUGH = 0.9
COLUMNS = (
    "Store",
    "Workers",
    "Program, s",
    "Operations/s",
    "Median, ms",
    "p99, ms",
    "Programs/min",
    "Of the ideal",
    "Conflicts",
    "Known to all after, s",
    "Server, s/1000",
    "Workers, s/1000",
)


@dataclass
class Counts:
    """What workers did, in one thread or many.

    Attributes:
        times: seconds of each operation of a store.
        programs: how many were finished.
        ideal: how many would have been, had operations taken no time.
        conflicts: writes that others were faster with.
        learned: for each way to fail, when the claim was made and when the last of the workers knew, and how many knew.
        processor: seconds of this process.
    """

    times: list[float] = field(default_factory=list)
    programs: int = 0
    ideal: int = 0
    conflicts: int = 0
    learned: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    processor: float = 0.0

    def add(self, other: Counts) -> None:
        """Add what others did."""
        self.times += other.times
        self.programs += other.programs
        self.ideal += other.ideal
        self.conflicts += other.conflicts
        self.processor += other.processor
        for name, (made, last, knew) in other.learned.items():
            before = self.learned.get(name, (made, last, 0))
            self.learned[name] = min(made, before[0]), max(last, before[1]), knew + before[2]


class Worker:
    """One worker.

    Args:
        store: its own.
        name: of its record.
        program: seconds of one program.
    """

    def __init__(self, store: Store, name: str, program: float) -> None:
        self.store, self.name, self.program = store, name, program
        self.counts = Counts()
        self.random = random.Random(name)
        self.known: dict[str, dict[str, int]] = {"findings": {}, "claims": {}}
        self.version = self.phase = 0

    def timed(self, operation: Callable[[], Any]) -> Any:
        """Return what an operation returns, and note how long it takes."""
        begin = time.perf_counter()
        try:
            return operation()
        finally:
            self.counts.times.append(time.perf_counter() - begin)

    def begin(self, start: float, seconds: float) -> float:
        """Return when the first program ends, of those that begin from ``start`` on, at some time."""
        begin = start + self.random.random() * self.program
        self.phase = self.random.randrange(PROGRAMS_A_SYNC)
        self.counts.ideal = int((start + seconds - begin) / self.program)
        return begin + self.program

    def end_program(self) -> float:
        """Do what follows a program, and what precedes the next; return in how many seconds that ends."""
        begin = time.perf_counter()
        self.record()
        self.counts.programs += 1
        if (self.counts.programs + self.phase) % PROGRAMS_A_SYNC == 0:
            self.sync()
        return time.perf_counter() - begin + self.program

    def sync(self) -> None:
        """Take a number, and learn what others found."""
        self.timed(lambda: self.store.next_number("program", f"{self.name}.{self.counts.programs}"))
        for table, known in self.known.items():
            for name, entry in self.timed(lambda table=table, known=known: self.store.entries(table, known)).items():
                known[name] = entry.version
                if table == "claims":
                    self.counts.learned.setdefault(name, (entry.data["at"], time.time(), 1))

    def record(self) -> None:
        """Write what a program came to."""
        written = self.timed(
            lambda: self.store.write("workers", self.name, {**RECORD, "at": self.version}, version=self.version)
        )
        assert written, "nobody else writes a worker's record"
        self.version += 1
        signature = f"signature-{self.random.randrange(SIGNATURES)}"
        if self.random.random() < 1 / PROGRAMS_A_FAILURE and signature not in self.known["claims"]:
            at = time.time()
            if self.timed(lambda: self.store.write("claims", signature, {"by": self.name, "at": at}, version=0)):
                self.known["claims"][signature] = 1
                self.counts.learned[signature] = at, at, 1
                self.timed(lambda: self.store.write("findings", signature, RECORD, version=0))
            else:
                self.counts.conflicts += 1


def work(url: str, names: Sequence[str], program: float, seconds: float, ready: Barrier, done: Queue[Counts]) -> None:
    """Be a process full of workers."""
    workers = [Worker(open_store(url, secret=SECRET, tell=lambda _: None), name, program) for name in names]
    for worker in workers:  # Workers join one by one, long before.
        worker.record()
        worker.counts = Counts()
    ready.wait()
    start, before = time.time() + 0.2, time.process_time()
    # One after the other: with a thread each, hundreds wait for the interpreter's lock, and not for the store.
    due = [(worker.begin(start, seconds), index) for index, worker in enumerate(workers)]
    heapq.heapify(due)
    while due and due[0][0] < start + seconds and time.time() < start + seconds:
        at, index = due[0]
        wait = at - time.time()
        if wait > 0:
            time.sleep(wait)
        # A process that was woken up late is late for this program alone.
        heapq.heapreplace(due, (at + workers[index].end_program(), index))
    counts = Counts(processor=time.process_time() - before)
    for worker in workers:
        counts.add(worker.counts)
        worker.store.close()
    done.put(counts)


def measured(url: str, workers: int, program: float, seconds: float) -> Counts:
    """Return what so many workers do in so many seconds."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(PROCESSES), context.Queue()
    names = [f"worker-{index}" for index in range(workers)]
    processes = [
        context.Process(target=work, args=(url, names[index::PROCESSES], program, seconds, ready, done))
        for index in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    counts = Counts()
    for _ in processes:
        counts.add(done.get(timeout=60 + 10 * seconds))
    for process in processes:
        process.join()
    return counts


@contextlib.contextmanager
def places(root: Path) -> Iterator[dict[str, tuple[Callable[[str], str], Callable[[], float]]]]:
    """Yield, for each kind of store, what gives a URL for a name, and the processor seconds of its server so far."""
    with RunningRedis(free_port(), root) as server:

        def seconds() -> float:
            ticks = Path(f"/proc/{server.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")

        yield {
            "folder": (lambda name: str(root / name), lambda: 0.0),
            "redis": (lambda name: f"redis://127.0.0.1:{server.port}/0?campaign={name}", seconds),
        }


def row(kind: str, workers: int, program: float, seconds: float, counts: Counts, server: float) -> tuple[str, ...]:
    """Return one line of the table."""
    thousands = len(counts.times) / 1000
    known = [last - made for made, last, knew in counts.learned.values() if knew == workers]
    return (
        kind,
        str(workers),
        f"{program:.3g}",
        f"{len(counts.times) / seconds:.0f}",
        f"{statistics.median(counts.times) * 1000:.2f}",
        f"{statistics.quantiles(counts.times, n=100)[-1] * 1000:.1f}",
        f"{counts.programs * 60 / seconds:.0f}",
        f"{counts.programs / counts.ideal:.0%}",
        str(counts.conflicts),
        f"{statistics.median(known):.1f} ({len(known)} of {len(counts.learned)})" if known else "none was",
        f"{server / thousands:.2f}" if server else "",
        f"{counts.processor / thousands:.2f}",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each store and number of workers, and where each store bends."""
    parser = argparse.ArgumentParser(prog="python -m bench.campaign_store", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (default: 20)")
    parser.add_argument("--program", type=float, default=0.6, help="seconds of one program (default: 0.6)")
    parser.add_argument("--bend", action=argparse.BooleanOptionalAction, default=True, help="look for where it bends")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as root, places(Path(root)) as kinds:
        for line in (COLUMNS, ("---",) * len(COLUMNS)):
            print(f"| {' | '.join(line)} |", flush=True)

        def line_of(kind: str, workers: int, program: float) -> Counts:
            url_of, server_seconds = kinds[kind]
            before = server_seconds()
            counts = measured(url_of(f"{kind}-{workers}-{program:g}"), workers, program, options.seconds)
            cells = row(kind, workers, program, options.seconds, counts, server_seconds() - before)
            print(f"| {' | '.join(cells)} |", flush=True)
            return counts

        for kind in kinds:
            for workers in options.workers:
                counts = line_of(kind, workers, options.program)
            program = options.program
            while options.bend and counts.programs >= ENOUGH * counts.ideal and program > 0.001:
                program /= 2
                counts = line_of(kind, options.workers[-1], program)


if __name__ == "__main__":
    main()
