"""What a campaign loses when its processes are killed: ``python -m bench.campaign_deaths --workers 100``.

A campaign of a number of programs runs on two workers, against a backend with planted faults, while processes are
killed with SIGKILL at random moments: workers, the server of the store (Redis with ``appendonly``), or the process that
runs the command, which is then started again. Then it runs to its end, and what the store holds is compared with what
the workers wrote into a file of their own:

- each program was checked by one worker (none twice, none missing); one that a killed worker was checking is reported
  as a crash;
- each finding was kept once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_regional.fuzz.store import Store, open_store
from pytest_regional.fuzz.workers.plan import Part, Plan, joined
from pytest_regional.fuzz.workers.status import StatusReader

ROOT = Path(__file__).parents[1]

#: Seconds that a campaign may take after the last kill.
LAST_SECONDS = 3600.0


def faulty(gm: Any, inputs: Any) -> Any:
    """Compile with AOTAutograd alone, and negate all results where the graph holds a sine: the planted fault."""
    from torch._dynamo.backends.debugging import aot_eager

    compiled = aot_eager(gm, inputs)
    if "sin" not in gm.code:
        return compiled
    return lambda *args: tuple(-value for value in compiled(*args))


def run_head(url: str, workers: int, journal: Path, findings: Path) -> int:
    """Run the campaign of a store as the command ``fuzz`` does, with workers that write into ``journal``."""
    from rich.console import Console

    from pytest_regional.fuzz.workers.engines import LocalProcesses
    from pytest_regional.fuzz.workers.head import Head
    from pytest_regional.report.campaign_screen import CampaignScreen

    environment = {**os.environ, "BENCH_JOURNAL": str(journal), "OMP_NUM_THREADS": "1"}
    engine = LocalProcesses({"python": sys.executable}, environment, "bench.campaign_worker")
    with tempfile.TemporaryDirectory() as scratch, contextlib.closing(open_store(url)) as store:
        screen = CampaignScreen(Console(stderr=True), None)
        head = Head(store, url, joined(store, None), engine, screen, findings=findings, scratch=Path(scratch))
        return head.run(workers).exit_status


@dataclass
class Trial:
    """A campaign whose processes are killed.

    Attributes:
        url: of the store.
        folder: for everything else.
        programs: how many.
        kills: how many processes were killed.
        commands: how often the command was started.
    """

    url: str
    folder: Path
    programs: int
    workers: int = 2
    kills: int = 0
    commands: int = 0
    heads: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def journal(self) -> Path:
        """What the workers write."""
        return self.folder / "journal.txt"

    def start(self) -> None:
        """Start the command."""
        findings = self.folder / "findings"
        findings.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "bench.campaign_deaths", "--head", self.url, str(self.journal), str(findings)]
        with (self.folder / "head.txt").open("ab") as log:
            self.heads.append(
                subprocess.Popen([*command, str(self.workers)], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            )
        self.commands += 1

    @property
    def over(self) -> bool:
        """Whether the command that was started last has ended."""
        return self.heads[-1].poll() is not None

    def wait(self) -> None:
        """Wait for the end of the campaign; a command that ended before it is started again."""
        until = time.monotonic() + LAST_SECONDS
        while time.monotonic() < until:
            if self.over:
                return
            time.sleep(0.5)
        raise RuntimeError(f"the campaign did not end within {LAST_SECONDS:.0f} s: see {self.folder}")


def kill_worker(trial: Trial, store: Store, chance: random.Random) -> bool:
    """Kill a worker that checks a program."""
    workers = [
        entry.data
        for entry in store.entries("workers").values()
        if entry.data["state"] == "working" and entry.data["task"]["program"] is not None
    ]
    if not workers:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(workers)["process"], signal.SIGKILL)
        return True
    return False


def kill_head(trial: Trial, store: Store, chance: random.Random) -> bool:
    """Kill the command, and start it again."""
    if not kill_is_possible(store):
        return False
    trial.heads[-1].kill()
    trial.heads[-1].wait()
    trial.start()
    return True


def kill_is_possible(store: Store) -> bool:
    """Tell whether a worker works."""
    return any(entry.data["state"] == "working" for entry in store.entries("workers").values())


class Redis:
    """A server that keeps what it was told, and is started again after it was killed."""

    def __init__(self, folder: Path, port: int) -> None:
        self._command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        self._command += ["--appendonly", "yes", "--appendfsync", "always", "--dir", str(folder)]
        self.start()

    def start(self) -> None:
        """Start it."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def kill(self, trial: Trial, store: Store, chance: random.Random) -> bool:
        """Kill the server, and start it again a little later."""
        if not kill_is_possible(store):
            return False
        self.process.kill()
        self.process.wait()
        time.sleep(chance.uniform(0.0, 3.0))
        self.start()
        return True


def with_kills(trial: Trial, kills: int, kill: Callable[[Trial, Store, random.Random], bool], seconds: float) -> None:
    """Run the trial with so many kills, one within each ``seconds``, and then to its end."""
    chance = random.Random(0)
    trial.start()
    with contextlib.closing(open_store(trial.url)) as store:
        while trial.kills < kills and not trial.over:
            time.sleep(chance.uniform(0.0, seconds))
            trial.kills += kill(trial, store, chance)
    trial.wait()


def findings_of(trial: Trial) -> list[str]:
    """Return in sentences what is wrong in the end; nothing where all is as it should be."""
    with contextlib.closing(open_store(trial.url)) as store:
        status = StatusReader(store, joined(store, None)).read()
    lines = [line.split() for line in trial.journal.read_text(encoding="utf-8").splitlines()]
    checked = Counter((int(line[1]), int(line[2])) for line in lines if line[0] == "checks")
    identities = Counter(line[3] for line in lines if line[0] == "checks")
    kept = Counter(line[1] for line in lines if line[0] == "keeps")
    totals = status.totals
    crashes = sum(crash.kind == "batch" for crash in status.crashes)
    accounted = status.checked + crashes
    wrong = [f"program {place} was checked {times} times" for place, times in checked.items() if times > 1]
    wrong += [f"finding {name} was kept {times} times" for name, times in kept.items() if times > 1]
    if accounted != trial.programs:
        wrong.append(f"{accounted} of {trial.programs} programs are accounted for")
    again = sum(times - 1 for times in identities.values())
    print(
        f"| {trial.kills} | {trial.commands} | {trial.programs} | {totals.examples} | {totals.skipped_known} "
        f"| {crashes} ({len(status.crashes) - crashes}) | {len(status.findings)} | {again} | {len(wrong)} |",
        flush=True,
    )
    return wrong


def begun(url: str, programs: int) -> None:
    """Begin a campaign."""
    plan = Plan((Part("bench.campaign_deaths:faulty", "cpu", "native"),), 11, programs=programs, blames=False)
    with contextlib.closing(open_store(url)) as store:
        joined(store, plan)


@contextlib.contextmanager
def _folder(kept: Path | None, name: str) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        (kept / name).mkdir(parents=True)
        yield kept / name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="how often a worker is killed")
    parser.add_argument("--heads", type=int, default=0, metavar="N", help="how often the command is killed")
    parser.add_argument("--servers", type=int, default=0, metavar="N", help="how often the server is killed")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where stores and logs stay")
    parser.add_argument("--port", type=int, default=16399)
    parser.add_argument("--head", nargs=4, metavar=("URL", "JOURNAL", "FINDINGS", "WORKERS"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.head:
        return run_head(asked.head[0], int(asked.head[3]), Path(asked.head[1]), Path(asked.head[2]))
    print("| killed | commands | programs | checked | skipped | crashes (others) | findings | equal | wrong |")
    print("|---|---|---|---|---|---|---|---|---|")
    wrong: list[str] = []
    os.environ.setdefault("PYTEST_REGIONAL_CAMPAIGN_SECRET", "bench")
    for kind, times in (("workers", asked.workers), ("heads", asked.heads), ("servers", asked.servers)):
        if not times:
            continue
        with _folder(asked.keep, kind) as folder, contextlib.ExitStack() as stack:
            url, kill, seconds = str(folder / "store"), kill_worker, 3.0
            if kind == "heads":
                kill, seconds = kill_head, 30.0
            if kind == "servers":
                server = Redis(folder, asked.port)
                stack.callback(lambda server=server: server.process.kill())
                url, kill, seconds = f"redis://127.0.0.1:{asked.port}/0", server.kill, 10.0
                time.sleep(1.0)
            trial = Trial(url, folder, programs={"workers": 4, "heads": 20, "servers": 10}[kind] * times)
            begun(url, trial.programs)
            with_kills(trial, times, kill, seconds)
            wrong += findings_of(trial)
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
