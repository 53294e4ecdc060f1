"""The harness around each marked test, the checks at its end, and its facts; imported where tests run."""

from __future__ import annotations

import contextlib
import dis
import faulthandler
import hashlib
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._base.errors import RegionalLeakWarning, RegionalValueError
from pytest_regional._base.stash import DRAWER, FUZZ, HARNESS, TARGET
from pytest_regional._base.text import SHOWN_MISMATCHES, plural, seed_for
from pytest_regional._torch.inductor import import_compilers
from pytest_regional._torch.process_state import DYNAMO_WRAPPER, structured_trace_off, structured_trace_to
from pytest_regional.harness import vacuity as checks
from pytest_regional.harness.devices.device import device_under_test, unmet_requirement
from pytest_regional.harness.devices.emulated import KernelRefutedError, check_refuted, skipping_unsupported
from pytest_regional.harness.devices.on_device import device_limit, facts_of
from pytest_regional.harness.isolation import lost
from pytest_regional.harness.isolation.interpreter import write_faults_to
from pytest_regional.harness.options import CompileOptions
from pytest_regional.harness.process import ForkServers, NewProcesses
from pytest_regional.harness.regional import harness
from pytest_regional.plugin import property_tests
from pytest_regional.plugin.blame import blamed
from pytest_regional.plugin.collection import apply_unsupported
from pytest_regional.plugin.evidence import Evidence, add_text
from pytest_regional.plugin.goldens import goldens_of
from pytest_regional.plugin.phases import limits_of, stderr_of
from pytest_regional.plugin.session import RegionalSession
from pytest_regional.plugin.workers import ATTRIBUTE, Retirement, UnrestorableStateError
from pytest_regional.report import details, facts, junit

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

_PACKAGE = Path(__file__).parents[1]
#: The conformance suites, which a wheel has in the package: frames of tests.
_SUITES = _PACKAGE / "suites"
#: Code that compiles: where it is between the frames of others, it says how they came to be called.
_COMPILERS = tuple(_PACKAGE / name for name in ("backends", "emulation", "reference"))
_RAISES = dis.opmap["RAISE_VARARGS"]


def hide_own_frames(error: BaseException) -> None:
    """Cut the harness's frames out of the tracebacks of an error, of its cause, and of what it was raised in place of.

    The frames in which Dynamo calls a compiled function go too. An error that the package raised ends at the last frame
    of other code than PyTorch's. One that it did not raise on purpose, such as a missing attribute, is a defect of the
    package and keeps all frames.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        _cut(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _cut(error: BaseException) -> None:
    frames: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        frames.append(entry)
        entry = entry.tb_next
    # PyTorch's own files, which generated code is in none of.
    torch = Path(getattr(sys.modules.get("torch"), "__file__", None) or _PACKAGE).parent
    if frames and _is_hidden(frames[-1]):
        if frames[-1].tb_frame.f_code.co_code[frames[-1].tb_lasti] != _RAISES:
            return  # no ``raise`` statement is where the frame ended
        while frames and (
            _is_hidden(frames[-1])
            or _file(frames[-1]).name == "contextlib.py"
            or _file(frames[-1]).is_relative_to(torch)
        ):
            frames.pop()
    kept = [one for one in frames if not _is_hidden(one) or any(map(_file(one).is_relative_to, _COMPILERS))]
    for one, following in pairwise(kept):
        one.tb_next = following
    if kept:
        kept[-1].tb_next = None
    error.__traceback__ = kept[0] if kept else None


def _file(entry: TracebackType) -> Path:
    return Path(entry.tb_frame.f_code.co_filename)


def _is_hidden(entry: TracebackType) -> bool:
    ours = _file(entry).is_relative_to(_PACKAGE) and not _file(entry).is_relative_to(_SUITES)
    return ours or entry.tb_frame.f_globals.get("__name__") == DYNAMO_WRAPPER


class MarkedTestHooks:
    """Hooks around each marked test; not registered in the process that starts the workers of pytest-xdist."""

    def __init__(self, session: RegionalSession, evidence: Evidence) -> None:
        self._session = session
        self._errors = session.errors
        self._evidence = evidence
        self._retirement = Retirement(session.config, session.scratch_dir)
        self._servers: ForkServers | None = None
        #: How often each test was set up: more than once where a plugin runs tests again.
        self._setups: Counter[str] = Counter()

    @pytest.fixture(autouse=True)
    def _regional_isolation(self, request: pytest.FixtureRequest) -> Iterator[Any]:
        """Isolate and observe a marked test, whether or not it uses ``regional``."""
        item = request.node
        if TARGET not in item.stash:
            yield None
            return
        write_faults_to(stderr_of(request.config))
        with self._harness(item) as regional:
            yield regional
        changed = [str(leak) for leak in regional.leaks if leak.restored]
        running = [leak.name for leak in regional.leaks if not leak.restored and not leak.unrestorable]
        parts = [f"left {plural(len(changed), 'setting')} changed (put back): {'; '.join(changed)}"] if changed else []
        parts += [f"left running: {', '.join(running)}"] if running else []
        if parts:
            warnings.warn(RegionalLeakWarning(f"{item.nodeid} {', and '.join(parts)}"), stacklevel=1)
        for_good = [leak for leak in regional.leaks if leak.unrestorable]
        if for_good:
            with _failing(UnrestorableStateError):
                text = self._retirement.retire(item.nodeid, for_good)
                warnings.warn(RegionalLeakWarning(f"{item.nodeid} {text}"), stacklevel=1)

    @contextlib.contextmanager
    def _harness(self, item: pytest.Item) -> Iterator[Regional]:
        """Give a marked test its harness: isolated and observed until its teardown."""
        # What all tests need is on no test's clock, and never half imported where time or memory ends.
        with limits_of(item).suspended():
            import_compilers()
            self._make_servers()

        target, settings = item.stash[TARGET], self._session.settings
        mark = target.mark
        digest = hashlib.sha256(item.nodeid.encode()).hexdigest()[:16]
        with harness(
            target.spec,
            target.device,
            # Another one each time: what an earlier run compiled would be found, and nothing be compiled.
            folder=self._session.folder / "tests" / f"{digest}-{self._setups[item.nodeid]}",
            seed=seed_for(item.nodeid, settings.seed),
            options=CompileOptions(
                mark.dynamic, mark.fullgraph, mark.inductor_configs, None, mark.pre_grad_pass_timing
            ),
            isolate=mark.isolate,
            settings=settings,
        ) as regional:
            item.stash[HARNESS] = regional
            if settings.process_servers:
                device = regional.device_under_test.name
                regional._new_processes = NewProcesses(self._servers, device, lambda: limits_of(item).suspended())
            regional.goldens = goldens_of(item, update=settings.update)
            # An audit checks the backward that is disclaimed, the results that do not last, and their strides.
            regional._forward_only &= "backward" not in mark.requires
            regional._looks_again |= "results_kept" in mark.requires
            regional._looks_at_strides |= "strides" in mark.requires
            if settings.reports.holds_details:
                item.stash[DRAWER] = details.new_drawer()
                regional.observer.listeners.append(item.stash[DRAWER])
            yield regional

    def _make_servers(self) -> None:
        """Make, before the first marked test and what that sets, the servers that processes are forked from."""
        count = self._session.settings.process_servers
        if not count or self._servers is not None:
            return
        devices = set()
        for name in self._session.settings.devices:
            with contextlib.suppress(RegionalValueError):
                devices.add(device_under_test(name).name)
        self._servers = ForkServers(count, "cpu" if devices == {"cpu"} else "")
        self._session.config.add_cleanup(self._servers.end)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Keep PyTorch's structured trace, or keep it out of pytest's log capture, while a marked test runs.

        A process that is retired exits before its next test.
        """
        self._retirement.exit_before(item)
        if TARGET not in item.stash:
            return (yield)
        folder = self._evidence.trace_folder(item.nodeid)
        with self._errors.around(
            "keeping PyTorch's structured trace",
            lambda: structured_trace_off() if folder is None else structured_trace_to(folder),
        ):
            result = yield
        # No limit is on between tests, and one that a test left would end the process in another.
        faulthandler.cancel_dump_traceback_later()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Add the skips that depend on the device, before pytest looks at the test's skips.

        What an earlier run of the test left is dropped, where a plugin runs it again.
        """
        if TARGET in item.stash:
            self._setups[item.nodeid] += 1
            keys: tuple[pytest.StashKey[Any], ...] = (HARNESS, DRAWER, FUZZ)
            for key in keys:
                if key in item.stash:
                    del item.stash[key]
            item.user_properties[:] = junit.without_properties_of_test(item.user_properties)
            self._apply_device_skips(item)
        return (yield)

    def _apply_device_skips(self, item: pytest.Item) -> None:
        target = item.stash[TARGET]
        try:
            device = device_under_test(target.device)
        except RegionalValueError as error:
            # Named by the mark: those of the command line are checked when pytest is configured.
            item.add_marker(pytest.mark.skip(reason=str(error)))
            return
        if device.kind == "cuda" and lost():
            pytest.fail(f"{lost()}; the GPU is lost to this process, and to this test", pytrace=False)
        for name in target.mark.requires:
            limit = device_limit(device, name)
            if not limit:
                reason = f"device {device.name!r} has no {name}: {limit.reason}"
                audit = self._session.settings.audit
                apply_unsupported(item, reason, "it works, so the device's limit is no more", audit=audit)
        requires = target.mark.device_requires
        reason = unmet_requirement(requires, facts_of(device)) if requires else ""
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Fail a marked test that tested nothing."""
        target = item.stash.get(TARGET, None)
        regional = item.stash.get(HARNESS, None)
        if target is None or regional is None:
            return (yield)

        def check_end() -> None:
            if FUZZ in item.stash and item.stash[FUZZ].result is None:  # it would always pass
                message = "the test uses regional_fuzz and runs no campaign: call regional_fuzz.run(mode)"
                pytest.fail(message, pytrace=False)
            with _failing(checks.BackendLeakError, checks.FallbackError, checks.VacuousTestError):
                checks.check_fallbacks(regional)
                checks.check_backend_leaks(regional)
                # unittest keeps a failure of the test, which an error about vacuity must not hide.
                if target.mark.expects_regions and not getattr(item, "_excinfo", None):
                    checks.check_not_vacuous(regional)
            # Each kernel has a time limit, whatever the test's.
            with limits_of(item).suspended(), _failing(KernelRefutedError):
                check_refuted(regional.verified_kernels())

        follow_up = regional.blame_depth == "deep"
        with (
            _located_skips(),
            skipping_unsupported(regional, _skip),
            property_tests.adapted(item, regional, limits_of(item).time),
            blamed(item, regional, check_end) if follow_up else contextlib.nullcontext(),
        ):
            result = yield
        if not follow_up:
            check_end()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
        """Put the facts of a marked test on its report; on an xdist worker also what went wrong with reporting."""
        if call.excinfo is not None and not item.config.option.fulltrace:
            with self._errors.kept(f"shortening the traceback of {item.nodeid}"):
                hide_own_frames(call.excinfo.value)
        report = yield
        with self._errors.kept(f"collecting the facts of {item.nodeid} ({report.when})"):
            if TARGET in item.stash:
                self._attach_facts(item, report, call)
                self._evidence.keep(report)
        if self._errors and hasattr(self._session.config, "workerinput"):
            setattr(report, ATTRIBUTE, self._errors.taken())
        return report

    def _attach_facts(self, item: pytest.Item, report: Any, call: pytest.CallInfo[Any]) -> None:
        regional = item.stash.get(HARNESS, None)
        known = facts.of(item, item.stash[TARGET], regional)
        known["runs"] = self._setups[item.nodeid]
        if report.failed and call.excinfo is not None:
            known |= facts.failed_at(item, call.excinfo)
            lines = self._evidence.code_at_fault(known, call.excinfo.value, regional) if regional else []
            if lines:
                text = "\n".join(f"{one['path']}:{one['line']}: {one['what']}" for one in lines)
                add_text(report, "generated code", text, "generated code:\n")
                known["generated_code"] = lines
        if DRAWER in item.stash and regional is not None and (report.when == "call" or report.failed):
            known["details"] = details.details_of(regional, item.stash[DRAWER])
        setattr(report, facts.ATTRIBUTE, facts.plain(known))
        if report.when == "call":
            # The JUnit file takes them from the report of the teardown, which comes next.
            item.user_properties.extend(junit.properties_of_test(known["counters"], known["worst_parity"]))
            if known.get("proofs"):
                report.sections.append(("regional: verified kernels", facts.proof_table(known["proofs"])))
        if report.failed and regional is not None:
            # What is to blame, with the experiments, as far as the text of the failure lacks it.
            culprits = [one for one in regional.culprits if one.sentence not in report.longreprtext]
            if culprits:
                blame = "\n".join(f"{one.sentence}\n{one.evidence}" for one in culprits)
                report.sections.append(("regional: what is to blame", blame))
            if self._session.config.get_verbosity() > 0:
                plan = facts.plan_of(regional.observer.graph_records())
                report.sections.append(("regional: what was compiled", plan or "no graph was compiled"))
                mismatches = getattr(getattr(call.excinfo and call.excinfo.value, "report", None), "mismatches", ())
                if len(mismatches) > SHOWN_MISMATCHES:
                    report.sections.append(("regional: all differences", "\n".join(map(str, mismatches))))


@contextlib.contextmanager
def _failing(*errors: type[Exception]) -> Iterator[None]:
    """Fail the test for one of ``errors`` that the block raises; no frame of the test is at fault, so none is shown."""
    problem = ""
    try:
        yield
    except errors as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise pytest.fail.Exception(problem, pytrace=False) from None  # pytest would show what it came from as well


def _skip(reason: str) -> None:
    """Skip a test; pytest shows it at the test, not at this line."""
    raise pytest.skip.Exception(reason, _use_item_location=True)


@contextlib.contextmanager
def _located_skips() -> Iterator[None]:
    """Have pytest show the skips of ``regional.require_device`` at the test."""
    reason = None
    try:
        yield
    except unittest.SkipTest as skip:
        reason = str(skip)
    if reason is not None:
        _skip(reason)
