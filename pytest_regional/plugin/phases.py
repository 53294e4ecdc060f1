"""Setup, call and teardown of a marked test: each has limits on time and memory, and a crash in it is reported so."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from pytest_regional._base.limits import MemoryLimit, TimeLimit, memory_limit, time_limit
from pytest_regional._base.stash import TARGET, is_fuzz_test
from pytest_regional.report import facts
from pytest_regional.report.this_run import CRASH, Heartbeat, last_heartbeat

if TYPE_CHECKING:
    from pytest_regional.plugin.session import RegionalSession


@dataclass(frozen=True)
class Limits:
    """The limits of the phase that runs."""

    time: TimeLimit
    memory: MemoryLimit

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Count nothing that the block takes."""
        with self.time.suspended(), self.memory.suspended():
            yield


_LIMITS: pytest.StashKey[Limits] = pytest.StashKey()


def limits_of(item: pytest.Item) -> Limits:
    """Return the limits of the phase that ``item`` is in; outside of all, limits that limit nothing."""
    return item.stash.get(_LIMITS, Limits(TimeLimit(), MemoryLimit()))


class PhaseHooks:
    """Limits, and the heartbeat file.

    Registered after :class:`pytest_regional.plugin.running.MarkedTestHooks`, so that the limits are around all that it
    does.
    """

    def __init__(self, session: RegionalSession) -> None:
        self._session = session
        self._errors = session.errors
        self._heartbeat = Heartbeat(session.scratch_dir, session.folder.name)
        #: By worker of pytest-xdist that is gone.
        self._last: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Write, when a test is over, that none runs."""
        try:
            return (yield)
        finally:
            with self._errors.kept(f"writing that {item.nodeid} is over"):
                self._heartbeat.end()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Limit what fixtures of all scopes do, and ``setup_method`` and the like."""
        with self._limited(item, "setup"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Limit the test itself; of unittest, its ``setUp`` and ``tearDown`` with it."""
        with self._limited(item, "call"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Limit the ends of all fixtures that go with this test."""
        with self._limited(item, "teardown"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
        """Keep processes that a shared fixture started when the test that first used it reaches its limit."""
        value = yield
        if fixturedef.scope != "function":
            limits_of(request._pyfuncitem).time.spare_processes()
        return value

    @contextlib.contextmanager
    def _limited(self, item: pytest.Item, phase: str) -> Iterator[None]:
        if TARGET not in item.stash:
            yield
            return
        settings = self._session.settings
        # A fuzz test limits the time of each program.
        seconds = None if phase == "call" and is_fuzz_test(item) else settings.timeout
        with (
            time_limit(seconds, stderr_of(item.config), "" if phase == "call" else phase) as time,
            memory_limit(settings.memory) as memory,
        ):
            item.stash[_LIMITS] = Limits(time, memory)
            with self._errors.kept(f"writing that {item.nodeid} is in its {phase}"):
                if phase == "setup":
                    self._heartbeat.begin(item.nodeid, facts.plain(facts.of(item, item.stash[TARGET], None)))
                self._heartbeat.phase(phase)
            try:
                yield
            finally:
                del item.stash[_LIMITS]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Read the last heartbeat of a worker that is gone, before its test is reported."""
        with self._errors.kept(f"reading what worker {node.gateway.id} was doing"):
            last = last_heartbeat(self._session.scratch_dir, node.gateway.id)
            if last is not None:
                self._last[node.gateway.id] = last

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Put the phase of a test that crashed its worker on its report, with its facts, in case it had just begun."""
        with self._errors.kept(f"reading in what phase {crashitem} crashed"):
            worker = getattr(report, "node").gateway.id  # noqa: B009 - pytest-xdist's
            crash = self._last.pop(worker, None)
            if crash and crash["test"] == crashitem:
                setattr(report, CRASH, crash)


def stderr_of(config: pytest.Config) -> int:
    """Return the standard error past pytest's capture, which pytest keeps for messages of dying processes."""
    return config.stash.get(fault_handler_stderr_fd_key, 2)
