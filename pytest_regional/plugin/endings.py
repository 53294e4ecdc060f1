"""Runs that end early, and what they print and leave.

A test may end the process; a signal may: SIGTERM, SIGHUP and SIGQUIT end a run as Ctrl-C does, with its reports and
without its folder of temporary files. A process that a test forked may return into pytest as a second run. The test is
named, the exit status is never that of success, and no report claims that the run finished.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._base import processes
from pytest_regional._base.stash import TARGET
from pytest_regional.plugin import environment
from pytest_regional.plugin.phases import stderr_of
from pytest_regional.report.this_run import UnfinishedReports

if TYPE_CHECKING:
    from pytest_regional.plugin.session import RegionalSession

#: Windows has the first alone.
NAMES = ("SIGTERM", "SIGHUP", "SIGQUIT")


class EndedBySignal(KeyboardInterrupt):
    """A signal asked the process to end; pytest ends a run so, and no test catches it by mistake.

    It is no :class:`Exception`: compilers catch any of those, and the run would go on.
    """


class EndingSignals:
    """Turns those signals into :class:`EndedBySignal`, in the process that installs it, until it puts them back.

    A signal that has a handler, or is ignored, is left as it is. A second signal ends the process at
    once, whatever the first has come to.

    Args:
        ending: called with the signal's name when one comes; returns the message.

    Attributes:
        came: the number of the signal that came, or 0.
        raises: whether the run is still to be interrupted; one that writes its reports is not.
    """

    def __init__(self, ending: Callable[[str], str]) -> None:
        self.came = 0
        self.raises = True
        self._ending = ending
        self._process = os.getpid()
        self._taken: list[int] = []

    def install(self) -> None:
        """Install the handlers; outside of the main thread, where Python does not allow it, nothing is done."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in NAMES:
            signum = getattr(signal, name, None)
            if signum is None or signal.getsignal(signum) is not signal.SIG_DFL:
                continue
            # Python does not know of handlers of :mod:`faulthandler`, or of a library.
            if not processes.catches(os.getpid(), signum):
                signal.signal(signum, self._handle)
                self._taken.append(signum)
        # Forked processes are other programs, which such a signal ends as ever, whatever they do at that time.
        processes.IN_FORKS.append(self.put_back)

    def put_back(self) -> None:
        """Restore the default, unless another handler has been installed since."""
        if self.put_back in processes.IN_FORKS:
            processes.IN_FORKS.remove(self.put_back)
        for signum in self._taken:
            if signal.getsignal(signum) == self._handle:
                signal.signal(signum, signal.SIG_DFL)
        self._taken.clear()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.came or os.getpid() != self._process:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self.came = signum
        message = self._ending(signal.Signals(signum).name)
        if self.raises:
            raise EndedBySignal(message)


#: ``os.execl``, ``os.execvp`` and their like call the last two.
_ENDING = ("_exit", "abort", "execv", "execve")

#: The module with which pytest-xdist ends workers that do not end by themselves.
_OWN_ENDS = ("execnet.gateway_base",)


class ExitGuard:
    """Replaces those functions in the process that made it, until :meth:`put_back`.

    Args:
        ending: called before the process ends, with what ended it, in words.

    Attributes:
        test: the marked test that runs, or ran last; empty before the first, when all is as Python has it.
    """

    def __init__(self, ending: Callable[[str], None]) -> None:
        self.test = ""
        self._ending = ending
        self._process = os.getpid()
        self._originals: dict[str, Callable[..., Any]] = {}

    def install(self) -> None:
        """Replace the functions: before tests are imported, whose modules may keep them by another name."""
        for name in _ENDING:
            if hasattr(os, name):
                self._originals[name] = getattr(os, name)
                setattr(os, name, self._guarded(name))

    def put_back(self) -> None:
        """Restore the functions, except those that other code has replaced since."""
        self.test = ""
        for name, original in self._originals.items():
            if getattr(getattr(os, name), "guard", None) is self:
                setattr(os, name, original)

    def leave(self, status: int) -> None:
        """End the process and print nothing."""
        self._originals.get("_exit", os._exit)(status)

    def _guarded(self, name: str) -> Callable[..., Any]:
        original = self._originals[name]

        def guarded(*arguments: Any, **keywords: Any) -> Any:
            caller = sys._getframe(1)
            while caller.f_back is not None and caller.f_globals.get("__name__") == os.__name__:
                caller = caller.f_back  # os.execvp calls os.execve
            if self.test and os.getpid() == self._process and caller.f_globals.get("__name__") not in _OWN_ENDS:
                place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
                self._ending(f"{self.test} ended it with os.{name}, called at {place}")
                if name != "abort":
                    given = next(iter((*arguments, *keywords.values())), 1) if name == "_exit" else 1
                    # The exit status that was given, 1 in place of success.
                    self.leave((given if isinstance(given, int) else 1) & 0xFF or 1)
            return original(*arguments, **keywords)

        guarded.guard = self  # type: ignore[attr-defined]
        guarded.__name__ = guarded.__qualname__ = name
        guarded.__doc__ = original.__doc__
        return guarded


#: Exit statuses of a run that did not get to its end.
_UNFINISHED = {
    pytest.ExitCode.INTERRUPTED: "it was interrupted",
    pytest.ExitCode.INTERNAL_ERROR: "pytest had an internal error",
    pytest.ExitCode.USAGE_ERROR: "it was a usage error",
}

#: What pytest calls the phases of a test; pytest-xdist reports a worker's death as another.
_PHASES = ("setup", "call", "teardown")


class EndingHooks:
    """Hooks that notice the end of a run.

    Attributes:
        reason: why the run does not end as it should; empty as long as nothing is known.
        write_reports: writes the reports of the run as far as it has come.
    """

    def __init__(self, session: RegionalSession) -> None:
        self.reason = ""
        self.write_reports: Callable[[], None] = lambda: None
        self._config = session.config
        self._errors = session.errors
        self._is_worker = hasattr(session.config, "workerinput")
        self._process = os.getpid()
        self._files = UnfinishedReports(() if self._is_worker else session.settings.reports.files)
        self._guard = ExitGuard(self._process_ends)
        self._signals = EndingSignals(self._signal_came)

    # The run

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Replace reports of an earlier run by unfinished ones; install the guards."""
        self._pytest_session = session
        self._guard.install()
        self._config.add_cleanup(self._guard.put_back)
        self._config.add_cleanup(processes.guard_forks(self._config))
        if not self._is_worker:
            self._signals.install()
            self._config.add_cleanup(self._signals.put_back)
            with self._errors.kept("writing that the reports are unfinished"), contextlib.suppress(OSError):
                self._files.write()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        """Have signals interrupt tests, and not what follows."""
        try:
            return (yield)
        finally:
            self._signals.raises = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep why pytest interrupts the run."""
        with self._errors.kept("noting why the run was interrupted"):
            self._because(f"{excinfo.typename}: {excinfo.value}".rstrip(": "))

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        """Keep that pytest itself, or another plugin, failed."""
        with self._errors.kept("noting an internal error"):
            last = (str(excrepr).strip().splitlines() or [""])[-1]
            self._because(f"pytest had an internal error: {last}")

    def run_is_over(self, session: pytest.Session) -> None:
        """Determine, before reports are written, whether the run is complete; end a process that a test forked."""
        if self._is_a_fork():
            self._guard.leave(1)
        self._signals.raises = False
        self._guard.test = ""
        self._because(_UNFINISHED.get(session.exitstatus, ""))  # type: ignore[call-overload]
        if self._signals.came:
            session.exitstatus = 128 + self._signals.came
            self._interrupt_workers()

    def _interrupt_workers(self) -> None:
        """Interrupt workers of pytest-xdist, as Ctrl-C would; by itself it waits for five seconds before it does so.

        The processes are private attributes of pytest-xdist and execnet (3.5 to 3.8; 2.1); where they are not found,
        the run ends those seconds later.
        """
        dsession = self._config.pluginmanager.getplugin("dsession")
        for gateway in getattr(getattr(dsession, "nodemanager", None), "group", ()):
            process = getattr(getattr(getattr(gateway, "_io", None), "popen", None), "pid", None)
            if isinstance(process, int):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGINT)

    def _because(self, reason: str) -> None:
        self.reason = self.reason or reason

    # Tests

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write into the files of the report which test runs."""
        with self._errors.kept(f"writing that {nodeid} runs"), contextlib.suppress(OSError):
            # An error is reported at the end, when the report itself cannot be written.
            self._files.test_begins(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that it runs no more."""
        with self._errors.kept(f"noting that {nodeid} is over"):
            self._files.test_is_over(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test runs no more whose worker died."""
        with self._errors.kept(f"noting that {report.nodeid} is over"):
            if report.when not in _PHASES:
                self._files.test_is_over(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Guard what ends the process while a marked test runs, and as long as what it started may run."""
        if TARGET in item.stash:
            self._guard.test = item.nodeid
        try:
            return (yield)
        finally:
            if self._is_a_fork():
                self._guard.leave(1)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
        """End a process that the test forked, and that would go on as a second pytest."""
        if self._is_a_fork():  # as one that pytest did not fork would end
            raised = call.excinfo.value if call.excinfo else None
            if isinstance(raised, SystemExit):
                code = raised.code
                self._guard.leave(code & 0xFF if isinstance(code, int) else int(code is not None))
            what = "".join(traceback.format_exception(raised)) if raised else "It lacks an os._exit.\n"
            self._say(f"a process that {item.nodeid} forked returned into pytest, and ends here.\n{what}")
            self._guard.leave(1 if raised else 0)
        return (yield)

    # Ends

    def _is_a_fork(self) -> bool:
        return os.getpid() != self._process

    def _process_ends(self, reason: str) -> None:
        """Print what ends the process, and leave what the end of a run would leave."""
        self._because(reason)
        with contextlib.suppress(OSError, ValueError):
            self._config.get_terminal_writer().flush()
        self._say(f"the run does not finish: {reason}.")
        if not self._is_worker:
            self.write_reports()
            environment.remove(self._config.stash[environment.FOLDER].parent)

    def _signal_came(self, name: str) -> str:
        running = f" while it ran {self._files.running}" if self._files.running else ""
        self._because(f"{name} ended it{running}")
        # Where what is raised is lost, as in a callback of the garbage collector, the run ends after the test.
        self._pytest_session.shouldstop = name
        # Once tests are over nothing is raised: reports are written first.
        self._pytest_session.exitstatus = 128 + self._signals.came
        return f"{name}{running}"

    def _say(self, text: str) -> None:
        """Write past pytest's capture."""
        with contextlib.suppress(OSError):
            os.write(stderr_of(self._config), f"\npytest-regional: {text.rstrip()}\n".encode(errors="backslashreplace"))
