"""A process in which a test left something that cannot be put back: under pytest-xdist another one runs the rest.

The worker reports its test as any other. When its next test would begin it tears down what fixtures of modules and of
the session hold there, leaves a note for the controller, and ends; the controller gives the test to another worker and
puts a fresh one in its place. A run without workers has no other process: there the test that did it fails.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from os import _exit  # as it is before anybody guards it
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_regional.harness.isolation import Leak


class PoisonedProcessError(AssertionError):
    """A test left something changed that cannot be put back, in the only process that there is."""


class Poison:
    """What is known of one process.

    Args:
        config: pytest's.
        notes: the folder of notes between the processes of a run.
    """

    def __init__(self, config: pytest.Config, notes: Path) -> None:
        self._config = config
        self._notes = notes
        self._test = self._because = ""

    @property
    def _is_replaced(self) -> bool:
        """Whether this is a worker for which another may be started."""
        return hasattr(self._config, "workerinput") and self._config.option.maxworkerrestart is None

    def taken(self, test: str, leaks: Sequence[Leak]) -> str:
        """Note what ``test`` left for good, and return what follows from that.

        Raises:
            PoisonedProcessError: no other process can run the rest.
        """
        what = "; ".join(leak.name for leak in leaks)
        if not self._is_replaced:
            raise PoisonedProcessError(
                f"{test} left what cannot be put back: {what}. Later results of this process cannot be trusted; with "
                f"pytest-xdist (-n 1) the rest would run in another"
            )
        if not self._because:
            self._test, self._because = test, f"{test} left {what}"
        return f"left what cannot be put back: {what} (this worker ends, and another runs the rest)"

    def leave_before(self, item: pytest.Item) -> None:
        """End this process if an earlier test left something in it for good; ``item`` is given to another."""
        if not self._because:
            return
        note = {"because": self._because, "test": self._test, "error": _torn_down(item.session)}
        path = self._note_of(self._config.workerinput["workerid"])  # type: ignore[attr-defined]
        path.parent.mkdir(parents=True, exist_ok=True)  # a test may have removed it
        path.write_text(json.dumps(note), encoding="utf-8")
        _exit(0)

    def _note_of(self, worker: str) -> Path:
        return self._notes / f"ended-{worker}.json"

    def of_worker(self, node: Any) -> dict[str, Any] | None:
        """Return why a worker that is gone ended on purpose, and what went wrong with that; ``None`` if it did not."""
        path = self._note_of(node.gateway.id)
        if not path.exists():
            return None
        node.regional_ended_on_purpose = True
        note: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return note


def _torn_down(session: pytest.Session) -> str:
    """Tear down the fixtures of modules and of the session, as pytest does behind the last test; return what failed."""
    try:
        session._setupstate.teardown_exact(None)
    except Exception:  # noqa: BLE001 - told by the controller
        return traceback.format_exc()
    return ""


def teardown_errors(note: dict[str, Any], node: Any) -> Iterator[pytest.TestReport]:
    """Yield, as an error of the last test, what failed when an ended worker tore its fixtures down."""
    if note["error"]:
        file = note["test"].partition("::")[0]
        report = pytest.TestReport(note["test"], (file, None, file), {}, "failed", note["error"], "teardown")
        report.node = node  # type: ignore[attr-defined]
        yield report


def ended_on_purpose(node: Any) -> bool:
    """Say whether a worker that is gone ended by :meth:`Poison.leave_before`."""
    return bool(getattr(node, "regional_ended_on_purpose", False))


def keep_tests_of_ended_workers(scheduler: Any) -> None:
    """Have a scheduler of pytest-xdist give the test that an ended worker did not begin to another.

    It takes that test for the one that the worker died in. Those that can put no test back have a way of their own
    (:mod:`pytest_regional._xdist`); such a one of the user's reports the test as crashed.
    """
    remove = scheduler.remove_node

    def remove_node(node: Any) -> str | None:
        test: str | None = remove(node)
        if test is None or not ended_on_purpose(node):
            return test
        return None if _is_put_back(scheduler, test) else test

    scheduler.remove_node = remove_node


def _is_put_back(scheduler: Any, test: str) -> bool:
    try:
        scheduler.mark_test_pending(test)
    except NotImplementedError:
        return False
    return True


__all__ = ["Poison", "PoisonedProcessError", "ended_on_purpose", "keep_tests_of_ended_workers", "teardown_errors"]
