"""The suites against one mutant: pytest in a process of its own, on the files that are meant to notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults import telling
from tests.faults.planting import CALLS_FOLDER, Mutant
from tests.faults.verdict import Alarm, Verdict, verdict_of_tests

ROOT = Path(__file__).resolve().parents[2]

#: Failures that do not count, after which a run stops.
MAX_FAILURES = 5


def checked_by_suites(
    mutant: Mutant,
    backend: str = "",
    *,
    suites: Sequence[str] = (),
    timeout: float = 300.0,
    stop: bool = True,
    first: str = "",
) -> Verdict:
    """Run the suites of ``mutant``, or ``suites``, against it, and return the verdict.

    Args:
        mutant: what is tested.
        backend: the backend's name, where it is not the mutant itself.
        suites: files to run, in place of the mutant's own.
        timeout: seconds after which the run is stopped.
        stop: whether to stop after a few failures.
        first: a test that killed it before, and is asked alone before all others.
    """
    if first:
        verdict = checked_by_suites(mutant, backend, suites=(first,), timeout=timeout, stop=stop)
        if verdict.outcome == "killed":
            return verdict
    files = list(suites or mutant.suites)
    if not files:
        return Verdict("not asked", notes=("no suite asserts this",))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        told, calls = Path(folder, "told.jsonl"), Path(folder, "calls")
        calls.mkdir()
        environment = {**os.environ, telling.FILE: str(told), CALLS_FOLDER: str(calls)}
        environment[telling.ENOUGH] = ",".join(mutant.errors) if stop else ""
        command = _command(files, backend or f"tests.faults.backends:{mutant.name}", stop=stop)
        in_time, output = _run(command, environment, timeout)
        alarms, passed, skipped = told_in(told)
        called = bool(backend) or not _counts(mutant) or any(calls.iterdir())
    if not in_time:
        alarms.append(Alarm("the whole run", "TimeoutExpired"))
    verdict = verdict_of_tests(
        mutant, alarms, called=called, tried=passed + len(alarms), seconds=time.monotonic() - began
    )
    if not passed and not alarms and skipped:
        return Verdict("survived", notes=(f"all {skipped} tests were skipped",), seconds=round(verdict.seconds, 1))
    if not passed and not alarms:
        raise RuntimeError(f"no test ran against {mutant.name}:\n{output[-3000:]}")
    return verdict


def _counts(mutant: Mutant) -> bool:
    return any(patch.counted for patch in mutant.patches)


def _command(files: Sequence[str], backend: str, *, stop: bool) -> list[str]:
    options = ["--regional-device=cpu", "-q", "-p", "no:cacheprovider", "-p", "tests.faults.telling"]
    stopping = [f"--maxfail={MAX_FAILURES}"] if stop else []
    return [sys.executable, "-m", "pytest", *files, f"--regional-backend={backend}", *options, *stopping]


def _run(command: Sequence[str], environment: dict[str, str], timeout: float) -> tuple[bool, str]:
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return False, ""
    return True, done.stdout + done.stderr


def told_in(file: Path) -> tuple[list[Alarm], int, int]:
    """Return what failed, how many tests passed, and how many were skipped, as the plugin told it."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    alarms = [Alarm(line["test"], line["error"], line["text"]) for line in lines if line["outcome"] == "failed"]
    outcomes = [line["outcome"] for line in lines]
    return alarms, outcomes.count("passed"), outcomes.count("skipped")
