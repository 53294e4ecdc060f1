"""Retired workers: a process in which a test left state that cannot be restored runs no further test.

The worker reports that test as any other. When its next test would begin it tears down the fixtures of modules and of
the session, leaves a note for the controller, and exits; the controller gives the test to another worker and starts a
fresh one. A run without workers has no other process: there the test that left the state fails.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from os import _exit  # before it is guarded
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._errors import RegionalError

if TYPE_CHECKING:
    from pytest_regional.harness.isolation import Leak


class UnrestorableStateError(RegionalError, AssertionError):
    """A test left state that cannot be restored, in the only process that there is."""


class Retirement:
    """Whether this process, and which workers, are retired.

    Args:
        config: pytest's.
        scratch_dir: the directory of files between the processes of a run.
    """

    def __init__(self, config: pytest.Config, scratch_dir: Path) -> None:
        self._config = config
        self._scratch_dir = scratch_dir
        self._test = self._because = ""

    @property
    def _is_replaced(self) -> bool:
        """Whether this is a worker for which another may be started."""
        return hasattr(self._config, "workerinput") and self._config.option.maxworkerrestart is None

    def retire(self, test: str, leaks: Sequence[Leak]) -> str:
        """Retire this process after ``test``, which left ``leaks``; return what to warn of.

        Raises:
            UnrestorableStateError: no other process can run the rest.
        """
        what = "; ".join(leak.name for leak in leaks)
        if not self._is_replaced:
            raise UnrestorableStateError(
                f"{test} left state that cannot be restored: {what}. Later results of this process cannot be trusted; "
                f"with pytest-xdist (-n 1) the other tests would run in a new one"
            )
        if not self._because:
            self._test, self._because = test, f"{test} left {what}"
        return f"left state that cannot be restored: {what} (this worker is retired, and another runs the other tests)"

    def exit_before(self, item: pytest.Item) -> None:
        """Exit if this process is retired; another one runs ``item``."""
        if not self._because:
            return
        note = {"because": self._because, "test": self._test, "error": _torn_down(item.session)}
        path = self._note_of(self._config.workerinput["workerid"])  # type: ignore[attr-defined]
        path.write_text(json.dumps(note), encoding="utf-8")
        _exit(0)

    def _note_of(self, worker: str) -> Path:
        return self._scratch_dir / f"retired-{worker}.json"

    def of_worker(self, node: Any) -> dict[str, Any] | None:
        """Return why a worker that is gone was retired, and what went wrong with that; ``None`` if it was not."""
        path = self._note_of(node.gateway.id)
        if not path.exists():
            return None
        node.regional_retired = True
        note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return note


def _torn_down(session: pytest.Session) -> str:
    """Tear down the fixtures of modules and of the session, as pytest does after the last test; return the failure."""
    try:
        session._setupstate.teardown_exact(None)
    except Exception:  # noqa: BLE001 - reported by the controller
        return traceback.format_exc()
    return ""


def teardown_errors(note: dict[str, Any], node: Any) -> Iterator[pytest.TestReport]:
    """Yield, as an error of the last test, what failed when a retired worker tore its fixtures down."""
    if note["error"]:
        file = note["test"].partition("::")[0]
        report = pytest.TestReport(note["test"], (file, None, file), {}, "failed", note["error"], "teardown")
        report.node = node  # type: ignore[attr-defined]
        yield report


def is_retired(node: Any) -> bool:
    """Return whether a worker that is gone ended by :meth:`Retirement.exit_before`."""
    return bool(getattr(node, "regional_retired", False))


def keep_tests_of_retired_workers(scheduler: Any) -> None:
    """Have a scheduler of pytest-xdist give the test that a retired worker did not begin to another.

    It takes that test for the one that the worker died in. The schedulers that can put no test back are replaced
    (:mod:`pytest_regional._xdist`); such a scheduler of the user's reports the test as crashed.
    """
    remove = scheduler.remove_node

    def remove_node(node: Any) -> str | None:
        test: str | None = remove(node)
        if test is None or not is_retired(node):
            return test
        return None if _is_put_back(scheduler, test) else test

    scheduler.remove_node = remove_node


def _is_put_back(scheduler: Any, test: str) -> bool:
    try:
        scheduler.mark_test_pending(test)
    except NotImplementedError:
        return False
    return True
