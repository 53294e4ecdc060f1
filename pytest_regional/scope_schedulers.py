"""``--dist loadgroup``, ``loadscope``, ``loadfile`` and ``each`` when workers die in tests, or end between them.

pytest-xdist gives a test that took its worker along to the next worker, again and again; leaves a worker that replaced
another with a single test, which it does not run before it has a second; and loses the tests that it wants to give to
one which has not collected yet (read in 3.5 to 3.8). Such a run loses tests, or never ends. It can go when
pytest-xdist's own schedulers survive ``tests/plugin/test_scope_schedulers.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from pytest_regional._poisoned import ended_on_purpose

#: Those that give tests to workers in groups.
DISTRIBUTIONS = ("loadfile", "loadgroup", "loadscope")


def scheduler_for(config: Any, log: Any) -> Any:
    """Return pytest-xdist's scheduler for ``--dist``, mended; ``None`` for a distribution that needs no mending."""
    distribution = config.getvalue("dist")
    if distribution == "each":
        return _mended_each()(config, log)
    return _mended(distribution)(config, log) if distribution in DISTRIBUTIONS else None


@cache
def _mended(distribution: str) -> type[Any]:
    from xdist import scheduler  # type: ignore[import-untyped]

    bases: dict[str, type[Any]] = {
        "loadfile": scheduler.LoadFileScheduling,
        "loadgroup": scheduler.LoadGroupScheduling,
        "loadscope": scheduler.LoadScopeScheduling,
    }
    base = bases[distribution]

    class Mended(base):  # type: ignore[misc, valid-type]
        """A test that kills its worker has had its turn, no worker waits for a second test, none gets one too early."""

        def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
            """Note what a worker has collected; one that replaces a dead one and collects other tests is sent away."""
            super().add_node_collection(node, collection)
            if node not in self.registered_collections:
                node.shutdown()

        def remove_node(self, node: Any) -> str | None:
            """Take back what a worker has not run, but for the test that it died in, which is returned.

            One that ended on purpose died in none.
            """
            if self.collection is None:
                self.registered_collections.pop(node, None)  # the one that replaces it has yet to collect
            workload: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
            left = {scope: unit for scope, unit in workload.items() if not all(unit.values())}
            if not left:
                return None
            first = next(iter(left.values()))
            crashed = next(test for test, completed in first.items() if not completed)
            ended = ended_on_purpose(node)
            first[crashed] = not ended
            self.workqueue.update({scope: unit for scope, unit in left.items() if not all(unit.values())})
            for living in self.assigned_work:
                self._reschedule(living)
            return None if ended else crashed

        def _reschedule(self, node: Any) -> None:
            """Give a worker more, until it has two tests or knows that it will get no second."""
            if node not in self.registered_collections:
                return  # it replaces a dead one and has not collected yet
            super()._reschedule(node)
            while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

    return Mended


@cache
def _mended_each() -> type[Any]:
    from xdist import scheduler

    class MendedEach(scheduler.EachScheduling):  # type: ignore[misc]
        """A worker that replaced another may be replaced again, and several at once."""

        def remove_node(self, node: Any) -> str | None:
            """Keep what a worker has not run for the one that takes its place, with the test that it did not begin."""
            if self.node2collection:
                self.node2collection.setdefault(node, next(iter(self.node2collection.values())))
            crashed: str | None = super().remove_node(node)
            if crashed is None or not ended_on_purpose(node):
                return crashed
            self._removed2pending.setdefault(node, []).insert(0, self.node2collection[node].index(crashed))
            return None

        def schedule(self) -> None:
            """Send tests to workers that have collected."""
            late = [node for node, tests in self.node2pending.items() if not tests and node not in self.node2collection]
            for node in late:
                del self.node2pending[node]
            super().schedule()
            self.node2pending.update((node, []) for node in late)

    return MendedEach


__all__ = ["DISTRIBUTIONS", "scheduler_for"]
