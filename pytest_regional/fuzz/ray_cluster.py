"""Runs a campaign on a Ray cluster: Ray gives shards to its machines, and starts those of a lost machine on another.

A task is a few shards. It gets the files of known findings, runs one process as on a single machine, and returns the
files that are new or changed. The machines need pytest-regional in the environment of Ray.

Read in Ray 2.60: ``ray.init``, ``ray.remote``, ``ray.wait``. Ray is imported when it is used: it is not installed
without ``pytest-regional[cluster]``.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._base.text import masked, without_secrets_of
from pytest_regional.fuzz.processes import Processes
from pytest_regional.fuzz.shards import SIZE, CampaignFolder, Work

#: What starts a cluster on this machine, for one campaign.
LOCAL = "local"

#: Shards of one task, at most: starting a process takes as long as a few programs.
MOST_SHARDS = 5

#: How often Ray starts a task again whose machine or process is lost.
RETRIES = 3

#: A campaign ends after so many tasks that Ray gave up.
_LOST = 3

#: What Ray 2.60 does not say of a cluster that turned the client away.
_TOKEN = (
    "One that asks for a token needs RAY_AUTH_MODE=token here, and its token in RAY_AUTH_TOKEN or ~/.ray/auth_token"
)


def check_shards(work: Work, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Check shards on this machine; return the files that are new or changed, by their place in the findings.

    Args:
        work: what is to be done; the folder of findings is another one here.
        files: known findings, and how far the shards are.

    Raises:
        RegionalRuntimeError: the process cannot do what it is to do.
    """
    with tempfile.TemporaryDirectory(prefix="pytest-regional-") as temporary:
        findings = Path(temporary)
        folder = CampaignFolder(findings, work.identity)
        folder.path.mkdir(parents=True)
        unpack(files, findings)
        with folder.locked() as lock:
            Processes(dataclasses.replace(work, findings=findings), 1, lock).run()
        return {name: data for name, data in packed(findings).items() if files.get(name) != data}


def packed(findings: Path) -> dict[str, bytes]:
    """Return the findings, crashes and shards in a folder, by their place in it."""
    patterns = ("*.json", "*.py", "crashes/*.json", "crashes/*.py", "campaigns/*/shard-*.json")
    return {
        str(path.relative_to(findings)): path.read_bytes() for pattern in patterns for path in findings.glob(pattern)
    }


def unpack(files: Mapping[str, bytes], findings: Path) -> None:
    """Write files into a folder."""
    for name, data in files.items():
        path = findings / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class RayCluster:
    """A Ray cluster that checks the shards of one campaign.

    Args:
        address: ``local`` starts a cluster on this machine; any other one is what ``ray.init`` takes, such as
            ``ray://host:10001``, or ``auto`` on a machine of the cluster.
        workers: how many tasks run at once; None for as many as the cluster has cores.

    Raises:
        RegionalRuntimeError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, address: str, workers: int | None) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise RegionalRuntimeError(
                "the package ray is missing. Run: pip install 'pytest-regional[cluster]'"
            ) from error
        options = {"num_cpus": workers, "include_dashboard": False} if address == LOCAL else {"address": address}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the error says the same
                self._ray.init(**options, log_to_driver=False, logging_level="ERROR", namespace="pytest-regional")
        except Exception as error:
            # Whatever Ray's client raises: ConnectionError, RuntimeError, those of gRPC.
            why = without_secrets_of(address, f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
            hint = "" if address == LOCAL else f". {_TOKEN}"
            raise RegionalRuntimeError(f"no Ray cluster answers at {masked(address)}: {why}{hint}") from error
        self.workers = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def run(self, work: Work, look: Callable[[], None] = lambda: None) -> None:
        """Check all shards, as long as there is time.

        Args:
            work: what all tasks do together.
            look: called every few seconds.

        Raises:
            RegionalRuntimeError: the processes cannot do what they are to do, or Ray gave up a task.
        """
        until = None if work.seconds is None else time.monotonic() + work.seconds
        task = self._ray.remote(num_cpus=1, max_retries=RETRIES)(check_shards)
        folder, tasks = CampaignFolder(work.findings, work.identity), _tasks(work, self.workers)
        running: set[Any] = set()
        lost: list[str] = []
        while True:
            while len(running) < self.workers and len(lost) < _LOST and (until is None or time.monotonic() < until):
                if (one := next(tasks, None)) is None:
                    break
                seconds = None if until is None else max(until - time.monotonic(), 0.0)
                running.add(task.remote(dataclasses.replace(one, seconds=seconds), _known(folder, one.shards)))
            if not running:
                break
            for future in self._ray.wait(list(running), num_returns=1, timeout=2.0)[0]:
                running.discard(future)
                try:
                    _take(self._ray.get(future), work.findings)
                except self._ray.exceptions.RayTaskError as error:
                    raise RegionalRuntimeError(str(error.cause)) from error
                except self._ray.exceptions.RayError as error:
                    lost.append(next((line for line in str(error).splitlines() if line), type(error).__name__))
            look()
        if lost:
            raise RegionalRuntimeError(
                f"Ray gave up shards, which the same command checks again; the last ones: {lost[-1]}"
            )

    def close(self) -> None:
        """Leave the cluster, and end one that was started for this campaign."""
        self._ray.shutdown()


def _tasks(work: Work, workers: int) -> Iterator[Work]:
    """Yield the work of each task, whose shards are not all finished; there are a few tasks for each worker."""
    folder = CampaignFolder(work.findings, work.identity)
    last = work.shards.stop if work.programs is None else -(-work.programs // SIZE)
    together = max(1, min(MOST_SHARDS, last // (2 * workers)))
    for begin in range(0, last, together):
        shards = range(begin, begin + together)
        if any(folder.left(shards, work.programs)):
            yield dataclasses.replace(work, shards=shards)


def _known(folder: CampaignFolder, shards: range) -> dict[str, bytes]:
    """Return the files that a task needs: known findings, and how far its shards are."""
    places = {str(folder.file(shard).relative_to(folder.findings)) for shard in shards}
    return {
        name: data
        for name, data in packed(folder.findings).items()
        if name in places or re.fullmatch(r"[^/]+\.json", name)
    }


def _take(files: Mapping[str, bytes], findings: Path) -> None:
    """Take over what a task returned: findings that are new or smaller, crashes, and how far its shards are."""
    from pytest_regional.fuzz.findings.folder import merge

    with tempfile.TemporaryDirectory(prefix="pytest-regional-") as folder:
        unpack({name: data for name, data in files.items() if not name.startswith("campaigns/")}, Path(folder))
        merge(Path(folder), findings)
    unpack({name: data for name, data in files.items() if name.startswith("campaigns/")}, findings)
