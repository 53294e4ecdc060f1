"""Workers on a Ray cluster: an actor for each, which starts the worker's process on its machine and waits for it.

The process has the Python of its environment, which needs no Ray, and may have another version of Python and PyTorch
than the cluster. When the actor dies, its process notices the end of its standard input and ends as well.

Read in Ray 2.60: ``ray.init``, ``ray.remote``, ``ray.wait``. Ray is imported when it is used: it is not installed
without ``pytest-regional[cluster]``.
"""

from __future__ import annotations

import contextlib
import importlib
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_regional._errors import RegionalError
from pytest_regional._secrets import SecretVariables, masked, without_secrets_of
from pytest_regional.fuzz.workers.assignment import Assignment
from pytest_regional.fuzz.workers.engines import Ending, LocalProcesses

#: What starts a cluster on this machine, for one campaign.
LOCAL = "local"

#: Seconds between two looks of an actor at its process.
_LOOK = 0.2


#: What Ray 2.60 does not say of a cluster that turned the client away.
_TOKEN = (
    "One that asks for a token needs RAY_AUTH_MODE=token here, and its token in RAY_AUTH_TOKEN or ~/.ray/auth_token"
)


class ClusterError(RegionalError, RuntimeError):
    """There is no such cluster, or it cannot be used; says why."""


class WorkerActor:
    """Runs one worker process at a time on the machine that Ray chose; each method may run while :meth:`work` does.

    Args:
        pythons: by the name of an environment, its interpreter on this machine.
        variables: for the process, on top of those of the machine.
    """

    def __init__(self, pythons: Mapping[str, str], variables: Mapping[str, str]) -> None:
        import os

        self._processes = LocalProcesses(pythons, {**os.environ, **variables})

    def work(self, line: str) -> tuple[int | None, str, Any]:
        """Start a process with an assignment and wait for its end; return status, words and the program it died of."""
        import tempfile

        with tempfile.TemporaryDirectory(prefix="pytest-regional-") as scratch:
            assignment = replace(Assignment.loads(line), scratch=Path(scratch) / "worker")
            self._processes.start(assignment)
            try:
                while not (endings := self._processes.endings()):
                    time.sleep(_LOOK)
            finally:
                self._processes.close()
            return endings[0].status, endings[0].says, endings[0].program

    def stop(self) -> None:
        """Have the process end behind the program that it checks."""
        self._processes.stop()

    def kill(self, name: str) -> None:
        """End the process."""
        self._processes.kill(name)


class RayCluster:
    """Workers as actors of a Ray cluster.

    Args:
        address: ``local`` starts a cluster on this machine; any other one is what ``ray.init`` takes, such as
            ``ray://host:10001``, or ``auto`` on a machine of the cluster.
        workers: for how many workers a local cluster has room.
        pythons: by the name of an environment, its interpreter on all machines.
        variables: for the processes.

    Raises:
        ClusterError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, address: str, workers: int, pythons: Mapping[str, str], variables: Mapping[str, str]) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ClusterError("the package ray is missing. Run: pip install 'pytest-regional[cluster]'") from error
        options = {"num_cpus": workers, "include_dashboard": False} if address == LOCAL else {"address": address}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the error says the same
                self._ray.init(**options, log_to_driver=False, logging_level="ERROR", namespace="pytest-regional")
        except Exception as error:
            # Whatever Ray's client raises: ConnectionError, RuntimeError, those of gRPC.
            why = without_secrets_of(address, f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
            hint = "" if address == LOCAL else f". {_TOKEN}"
            raise ClusterError(f"no Ray cluster answers at {masked(address)}: {why}{hint}") from error
        self._pythons, self._variables = dict(pythons), SecretVariables(variables)
        self._running: dict[Any, tuple[Assignment, Any]] = {}

    def start(self, assignment: Assignment) -> None:
        """Start an actor, once the cluster has a core for it, and its process."""
        remote = self._ray.remote(num_cpus=1, max_concurrency=4, max_restarts=0)(WorkerActor)
        actor = remote.remote(self._pythons, self._variables)
        self._running[actor.work.remote(assignment.dumps())] = assignment, actor

    def endings(self) -> list[Ending]:
        """Return the workers that ended since this was last asked."""
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        return [self._ending(future) for future in done]

    def _ending(self, future: Any) -> Ending:
        assignment, actor = self._running.pop(future)
        try:
            status, says, program = self._ray.get(future)
        except self._ray.exceptions.RayError as error:
            first = next((line for line in str(error).splitlines() if line), type(error).__name__)
            return Ending(assignment, None, f"its actor ended: {first}")
        finally:
            self._ray.kill(actor)
        return Ending(assignment, status, says, program)

    def stop(self) -> None:
        """Have all workers end behind the programs that they check."""
        for _, actor in self._running.values():
            actor.stop.remote()

    def kill(self, name: str) -> None:
        """End a worker's process."""
        for assignment, actor in self._running.values():
            if assignment.name == name:
                actor.kill.remote(name)

    def close(self) -> None:
        """Leave the cluster, and end one that was started for this campaign."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            for _, actor in self._running.values():
                self._ray.kill(actor)
        self._ray.shutdown()


__all__ = ["LOCAL", "ClusterError", "RayCluster", "WorkerActor"]
