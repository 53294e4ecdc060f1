"""``fuzz``: a fuzzing campaign without a test file, by several processes, on one machine or on a Ray cluster."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import time
from pathlib import Path
from typing import Any

from pytest_regional._base.documents import DocumentError, read
from pytest_regional._base.errors import RegionalError, RegionalRuntimeError, RegionalValueError
from pytest_regional._base.limits import handling, memory_of
from pytest_regional._base.text import duration, plural, printable, unknown_name
from pytest_regional.cli.targets import UsageError
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.findings.files import too_many
from pytest_regional.fuzz.processes import Processes
from pytest_regional.fuzz.ray_cluster import RayCluster
from pytest_regional.fuzz.settings import MODES, named_settings
from pytest_regional.fuzz.shards import MOST_SHARDS, SEEDS, CampaignFolder, Part, Plan, Work

#: Seconds between two lines that say how far the campaign is.
_EVERY = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        f"{parser.description} The same command again goes on where it ended. Ctrl-C and SIGTERM end it after the "
        "programs that are being checked. Exit status 0: nothing new; 1: new findings, or programs that ended their "
        "process; 2: it could not run."
    )
    what = parser.add_argument_group("what is fuzzed")
    what.add_argument("--backend", metavar="NAMES", default="reference", help="backends, comma-separated (reference)")
    what.add_argument(
        "--mode", metavar="NAMES", help=f"modes, comma-separated: {', '.join(MODES)} (default: that of the device)"
    )
    what.add_argument("--device", metavar="NAME", default="cpu", help="as --regional-device of pytest (cpu)")
    what.add_argument("--seed", metavar="N", type=int, help="what programs are drawn from (default: a new one)")
    what.add_argument("--settings", metavar="NAMES", default="", help="compiler settings that are drawn, or 'all'")
    what.add_argument("--timeout", metavar="S", type=float, default=120.0, help="CPU seconds for one program (120)")
    what.add_argument("--audit", action="store_true", help="draw what a backend disclaims, too")
    what.add_argument("--no-blame", action="store_true", help="do not search which step of a compile is to blame")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--budget",
        metavar="BUDGET",
        default="10m",
        help="a time (30s, 10m, 2h) that this command works, or the number of programs (500) of the whole campaign "
        "(default: 10m)",
    )
    how.add_argument("--workers", metavar="N", type=int, help="processes (default: one for each core)")
    how.add_argument(
        "--memory", metavar="SIZE", default="3G", help="a process that takes more is replaced by a new one (3G)"
    )
    how.add_argument(
        "--findings", metavar="DIR", type=Path, default=Path("regional-findings"), help="directory of findings"
    )
    how.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="check on a Ray cluster: 'local' starts one on this machine, 'ray://host:10001' joins one (default: "
        "processes of this machine, without Ray)",
    )
    how.add_argument(
        "--exit-zero",
        action="store_true",
        help="exit status 0 also for new findings, where a scheduler takes 1 as failed",
    )


def run(asked: argparse.Namespace) -> int:
    """Run the campaign; return the exit status."""
    try:
        return _run(asked)
    except KeyboardInterrupt:
        print("ended at once: the same command checks the current programs again")
        return 130
    except RegionalError as error:
        raise UsageError(_sentence(error)) from error


def _run(asked: argparse.Namespace) -> int:
    for name in ("backend", "mode", "device", "cluster"):
        if getattr(asked, name) == "":  # a variable that is not set
            raise UsageError(f"--{name}= has no value: leave it out, or give one.")
    try:
        budget = Budget.parse(asked.budget)
    except RegionalValueError as error:
        raise UsageError(f"--budget: {error}.") from error
    try:
        memory = memory_of(asked.memory)
    except ValueError as error:
        raise UsageError(f"--memory={asked.memory}: {error}.") from error
    if asked.workers is not None and not 1 <= asked.workers <= 10_000:
        raise UsageError(f"--workers={asked.workers}: give a number from 1 to 10000.")
    wanted = _plan(asked)
    try:
        folder, plan = CampaignFolder.begun(asked.findings, wanted, asked.seed)
    except OSError as error:
        raise UsageError(f"--findings={asked.findings}: it cannot be written: {error.strerror}.") from error
    work = Work(
        plan,
        folder.identity,
        asked.findings.absolute(),
        range(MOST_SHARDS),
        budget.examples,
        budget.seconds,
        memory,
        (os.getcwd(),),
    )
    with folder.locked() as lock:
        shown = Shown(folder)
        before = folder.total().examples
        names = "; ".join(part.name for part in plan.parts)
        print(f"{names}; --seed={plan.seed}; campaign {folder.path}", flush=True)
        interrupted = _on_cluster(asked, work, shown) if asked.cluster else _here(asked, work, shown, lock)
        shown.look()
        total = folder.total()
    if not interrupted and budget.examples is None and total.examples == before:
        raise RegionalRuntimeError(
            "no program was checked in this time, of which starting processes takes a part: give more"
        )
    print(f"{shown.sums()}; {shown.count} new in {asked.findings}" if shown.count else f"{shown.sums()}\nnothing new")
    if wrong := too_many(total.refused, total.examples):
        print(printable(f"warning: {wrong}"))
    return 0 if asked.exit_zero else int(bool(shown.count))


def _here(asked: argparse.Namespace, work: Work, shown: Shown, lock: int) -> bool:
    """Check on this machine; return whether somebody ended it."""
    processes = Processes(work, asked.workers or os.cpu_count() or 1, lock, shown.look)
    interrupted: list[int] = []

    def handle(number: int, frame: object) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(number)
        print("ending after the current programs; once more ends it at once", flush=True)
        processes.stop()

    with handling(handle, signal.SIGINT, signal.SIGTERM):
        processes.run()
    return bool(interrupted)


def _on_cluster(asked: argparse.Namespace, work: Work, shown: Shown) -> bool:
    """Check on a cluster, which an interrupt ends at once; return whether somebody ended it."""

    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    ending = handling(handle, signal.SIGINT, signal.SIGTERM)
    with contextlib.closing(RayCluster(asked.cluster, asked.workers)) as cluster, ending:
        cluster.run(work, shown.look)
    return False


class Shown:
    """What is printed of a campaign: each new finding, and now and then how far it is.

    Args:
        folder: of the campaign.

    Attributes:
        count: how many findings and crashes are new.
    """

    def __init__(self, folder: CampaignFolder) -> None:
        self._folder = folder
        self._known = set(self._files())
        self._begun = self._line = time.monotonic()
        self.count = 0

    def _files(self) -> list[Path]:
        return sorted([*self._folder.findings.glob("*.json"), *self._folder.findings.glob("crashes/*.json")])

    def look(self) -> None:
        """Print what is new."""
        for path in self._files():
            if path not in self._known:
                self._known.add(path)
                self.count += 1
                print(printable(f"new finding: {_title(path)}\n    {path.with_suffix('.py')}"), flush=True)
        if time.monotonic() - self._line >= _EVERY:
            self._line = time.monotonic()
            print(f"{duration(time.monotonic() - self._begun)}: {self.sums()}", flush=True)

    def sums(self) -> str:
        """Return what the campaign has come to."""
        total = self._folder.total()
        parts = [plural(total.examples, "program"), plural(self.count, "new finding")]
        parts += [f"{total.skipped_known} skipped as known"] if total.skipped_known else []
        parts += [f"{sum(total.refused.values())} refused"] if total.refused else []
        parts += [f"{sum(total.unclaimed.values())} not supported"] if total.unclaimed else []
        return ", ".join(parts)


def _title(path: Path) -> str:
    """Return what a finding says happens, without importing torch."""
    try:
        at = read(path, dict[str, Any], "finding")
        return f"{at['oracle']} ({at['stage']}): {at['origin']}"
    except (KeyError, DocumentError):
        return "it cannot be read"


def _plan(asked: argparse.Namespace) -> Plan:
    """Return what the command line asks for."""
    if asked.seed is not None and not 0 <= asked.seed < SEEDS:
        raise UsageError(f"--seed={asked.seed}: give a number from 0 to {SEEDS - 1}.")
    device = asked.device
    modes = _names(asked.mode) if asked.mode else ["emulated" if device.startswith("cuda-emulated") else "native"]
    for mode in modes:
        if mode not in MODES:
            raise UsageError(f"--mode={asked.mode}: {unknown_name('mode', mode, MODES)}")
    if not 1 <= asked.timeout <= 86_400:
        raise UsageError(f"--timeout={asked.timeout:g}: give seconds from 1 to 86400.")
    try:
        settings = named_settings(_names(asked.settings) if asked.settings != "none" else ())
    except RegionalValueError as error:
        raise UsageError(f"--settings={asked.settings}: {_sentence(error)}") from error
    return Plan(
        tuple(
            Part(backend, "cuda-emulated" if mode == "emulated" and device == "cpu" else device, mode)
            for backend in _names(asked.backend)
            for mode in modes
        ),
        secrets.randbelow(2**31) if asked.seed is None else asked.seed,
        tuple(setting.name for setting in settings),
        asked.timeout,
        asked.audit,
        not asked.no_blame,
    )


def _sentence(error: RegionalError) -> str:
    text = str(error)
    return text if text.endswith(".") else f"{text}."


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
