"""The harness around each marked test, the checks at its end, its facts, and the reports of the run."""

from __future__ import annotations

import contextlib
import dis
import faulthandler
import hashlib
import shlex
import sys
import time
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
from pytest_regional._torch.process_state import DYNAMO_WRAPPER
from pytest_regional.harness import vacuity as checks
from pytest_regional.harness.devices.device import device_under_test, lost
from pytest_regional.harness.devices.emulated import KernelRefutedError, check_refuted, skipping_unsupported
from pytest_regional.harness.devices.on_device import device_limit, missing_on
from pytest_regional.harness.isolation.interpreter import write_faults_to
from pytest_regional.harness.kernel_store.files import KernelFiles
from pytest_regional.harness.options import CompileOptions
from pytest_regional.harness.process import ForkServers, NewProcesses
from pytest_regional.harness.regional import harness
from pytest_regional.plugin import environment, property_tests
from pytest_regional.plugin.blame import SECTION, blamed, section_of
from pytest_regional.plugin.collection import apply_unsupported, module_of
from pytest_regional.plugin.endings import interrupt_deferred
from pytest_regional.plugin.evidence import Evidence, add_section
from pytest_regional.plugin.goldens import goldens_of
from pytest_regional.plugin.phases import limits_of, stderr_of
from pytest_regional.plugin.workers import ATTRIBUTE, Retirement, UnrestorableStateError
from pytest_regional.plugin.written import RunOutputs
from pytest_regional.report import details, facts, terminal
from pytest_regional.report.this_run import CollectedFacts

if TYPE_CHECKING:
    from pytest_regional.harness.process import ForkServers
    from pytest_regional.harness.regional import Regional
    from pytest_regional.plugin.endings import EndingHooks
    from pytest_regional.plugin.goldens import GoldenHooks
    from pytest_regional.plugin.session import RegionalSession
    from pytest_regional.plugin.workers import WorkerHooks


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
    if frames and _is_hidden(frames[-1]):
        if not _was_raised(frames[-1]):
            return
        while frames and (_is_hidden(frames[-1]) or _is_library(frames[-1])):
            frames.pop()
    kept = [one for one in frames if not _is_hidden(one) or any(map(_file(one).is_relative_to, _COMPILERS))]
    for one, following in pairwise(kept):
        one.tb_next = following
    if kept:
        kept[-1].tb_next = None
    error.__traceback__ = kept[0] if kept else None


def _is_library(entry: TracebackType) -> bool:
    """Say whether a frame is in PyTorch's own files, which generated code is not, or in contextlib."""
    torch = getattr(sys.modules.get("torch"), "__file__", None) or _PACKAGE
    return _file(entry).name == "contextlib.py" or _file(entry).is_relative_to(Path(torch).parent)


def _file(entry: TracebackType) -> Path:
    return Path(entry.tb_frame.f_code.co_filename)


def _is_hidden(entry: TracebackType) -> bool:
    ours = _file(entry).is_relative_to(_PACKAGE) and not _file(entry).is_relative_to(_SUITES)
    return ours or entry.tb_frame.f_globals.get("__name__") == DYNAMO_WRAPPER


def _was_raised(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_code[entry.tb_lasti] == _RAISES


class RunHooks:
    """Registered only while a backend is under test: without one, the plugin costs no fixture and no hook."""

    def __init__(
        self, session: RegionalSession, endings: EndingHooks, workers: WorkerHooks, goldens: GoldenHooks
    ) -> None:
        self._session = session
        self._endings = endings
        self._workers = workers
        self._errors = session.errors
        self._collected = CollectedFacts()
        self._evidence = Evidence(session)
        self._goldens = goldens
        self._outputs = RunOutputs(session, self._collected, endings, workers, self._evidence, goldens)
        endings.write_reports = self._leave_reports
        self._began = time.time()
        self._retirement = Retirement(session.config, session.scratch_dir)
        self._servers: ForkServers | None = None
        #: How often each test was set up: more than once where a plugin runs tests again.
        self._setups: Counter[str] = Counter()

    @pytest.fixture(autouse=True)
    def _regional_isolation(self, request: pytest.FixtureRequest) -> Iterator[Any]:
        """Isolate and observe a marked test, whether or not it uses ``regional``."""
        if TARGET not in request.node.stash:
            yield None
            return
        write_faults_to(stderr_of(request.config))
        with self._harness(request.node) as regional:
            yield regional
        _warn_of_leaks(request.node, regional)
        self._retire(request.node, regional)

    @contextlib.contextmanager
    def _harness(self, item: pytest.Item) -> Iterator[Regional]:
        """Give a marked test its harness: isolated and observed until its teardown."""
        # What all tests need is on no test's clock, and never half imported where time or memory ends.
        with limits_of(item).suspended():
            import_compilers()
            self._make_servers()

        target, settings = item.stash[TARGET], self._session.settings
        mark = target.mark
        options = CompileOptions(mark.dynamic, mark.fullgraph, mark.inductor_configs, None, mark.pre_grad_pass_timing)
        with harness(
            target.spec,
            target.device,
            folder=self._test_dir(item),
            seed=seed_for(item.nodeid, settings.seed),
            options=options,
            isolate=mark.isolate,
            blame_depth=settings.blame or "region",
            verify_seconds=settings.verify,
        ) as regional:
            item.stash[HARNESS] = regional
            self._start_processes(item, regional)
            regional.goldens = goldens_of(item, target, update=settings.update)
            # An audit checks the backward that is disclaimed, the results that do not last, and their strides.
            regional._forward_only &= "backward" not in mark.requires
            regional._looks_again |= "results_kept" in mark.requires
            regional._looks_at_strides |= "strides" in mark.requires
            if settings.reports.holds_details:
                item.stash[DRAWER] = details.new_drawer()
                regional.observer.listeners.append(item.stash[DRAWER])
            yield regional

    def _start_processes(self, item: pytest.Item, regional: Regional) -> None:
        """Say how the test's new processes start."""
        if self._session.settings.process_servers:
            device = regional.device_under_test.name
            regional._new_processes = NewProcesses(self._servers, device, lambda: limits_of(item).suspended())

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

    def _test_dir(self, item: pytest.Item) -> Path:
        digest = hashlib.sha256(item.nodeid.encode()).hexdigest()[:16]
        # Another one each time: what an earlier run compiled would be found, and nothing be compiled.
        return self._session.config.stash[environment.FOLDER] / "tests" / f"{digest}-{self._setups[item.nodeid]}"

    def _retire(self, item: pytest.Item, regional: Regional) -> None:
        """Retire the process, or fail the test, that left state which cannot be restored."""
        for_good = [leak for leak in regional.leaks if leak.unrestorable]
        problem = ""
        if for_good:
            try:
                text = self._retirement.retire(item.nodeid, for_good)
                warnings.warn(RegionalLeakWarning(f"{item.nodeid} {text}"), stacklevel=1)
            except UnrestorableStateError as error:
                problem = f"{type(error).__name__}: {error}"
        if problem:
            pytest.fail(problem, pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Keep PyTorch's structured trace, or keep it out of pytest's log capture, while a marked test runs.

        A process that is retired exits before its next test.
        """
        self._retirement.exit_before(item)
        if TARGET not in item.stash:
            return (yield)
        with self._errors.around("keeping PyTorch's structured trace", lambda: self._evidence.traced(item.nodeid)):
            result = yield
        # No limit is on between tests, and one that a test left would end the process in another.
        faulthandler.cancel_dump_traceback_later()
        return result

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        """Give the tests of an installed package ids of their own."""
        return module_of(module_path, parent)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Add the skips that depend on the device, before pytest looks at the test's skips."""
        if TARGET in item.stash:
            self._begin(item)
            self._apply_device_skips(item)
        return (yield)

    def _begin(self, item: pytest.Item) -> None:
        """Note that ``item`` is set up; drop what its earlier run left, where a plugin runs it again."""
        self._setups[item.nodeid] += 1
        keys: tuple[pytest.StashKey[Any], ...] = (HARNESS, DRAWER, FUZZ)
        for key in keys:
            if key in item.stash:
                del item.stash[key]
        item.user_properties[:] = details.without_properties_of_test(item.user_properties)

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
        reason = missing_on(device, target.mark.device_requires)
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
            _check_fuzzed(item)
            _check_end(regional, vacuity=target.mark.expects_regions and not _failed_inside_unittest(item))
            with limits_of(item).suspended():
                _check_verified(regional)

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
        target = item.stash[TARGET]
        regional = item.stash.get(HARNESS, None)
        known = facts.of(item, target, regional)
        known["runs"] = self._setups[item.nodeid]
        if report.failed and call.excinfo is not None:
            known |= facts.failed_at(item, call.excinfo)
            known |= self._generated_code(report, known, call.excinfo.value, regional)
        if DRAWER in item.stash and regional is not None and (report.when == "call" or report.failed):
            known["details"] = details.details_of(regional, item.stash[DRAWER])
        setattr(report, facts.ATTRIBUTE, facts.plain(known))
        if report.when == "call":
            # The JUnit file takes them from the report of the teardown, which comes next.
            item.user_properties.extend(details.properties_of_test(known["counters"], known["worst_parity"]))
        if known.get("proofs") and report.when == "call":
            report.sections.append(("regional: verified kernels", facts.proof_table(known["proofs"])))
        if report.failed and regional is not None:
            blame = section_of(regional, report.longreprtext)
            report.sections.extend([(SECTION, blame)] if blame else [])
        if report.failed and regional is not None and self._session.config.get_verbosity() > 0:
            plan = facts.plan_of(regional.graphs)
            report.sections.append(("regional: what was compiled", plan or "no graph was compiled"))
            mismatches = getattr(getattr(call.excinfo and call.excinfo.value, "report", None), "mismatches", ())
            if len(mismatches) > SHOWN_MISMATCHES:
                report.sections.append(("regional: all differences", "\n".join(map(str, mismatches))))

    def _generated_code(
        self, report: pytest.TestReport, known: Any, error: BaseException, regional: Regional | None
    ) -> dict[str, Any]:
        """Return the lines of generated code that ``error`` concerns, and add them to ``report``."""
        lines = self._evidence.code_at_fault(known, error, regional) if regional else []
        add_section(report, lines)
        return {"generated_code": lines} if lines else {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect facts, and errors of workers, on the process that writes the summary; say how to run a test again.

        First, so that whatever shows the report shows that as well.
        """
        with self._errors.kept(f"reading the facts of {report.nodeid} ({report.when})"):
            self._errors.add(getattr(report, ATTRIBUTE, ()), _process_of(report))
            self._collected.note(report)
            if not hasattr(self._session.config, "workerinput"):
                self._outputs.add_rerun(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what a run leaves; Ctrl-C takes effect when it is written."""
        with interrupt_deferred() as interrupted:
            self._finish(session)
        if interrupted:
            session.exitstatus = pytest.ExitCode.INTERRUPTED

    def _finish(self, session: pytest.Session) -> None:
        """Write goldens, the report, and totals to the JUnit file, in the process that has the facts of all workers.

        It also brings the store of compiled kernels back to its size.
        """
        self._pytest_session = session
        with self._errors.kept("settling whether the run is at its end"):
            self._endings.run_is_over(session)
        with self._errors.kept("adding totals to the JUnit file"):
            details.add_to_run(session.config, self._collected.facts)
        if hasattr(session.config, "workerinput"):
            session.config.workeroutput[ATTRIBUTE] = self._errors.taken()  # type: ignore[attr-defined]
            return
        with self._errors.kept("bringing the store of compiled kernels back to its size"):
            if self._session.settings.kernel_store:
                KernelFiles(self._session.settings.kernel_store).prune()
        self._goldens.finish()
        self._outputs.write()
        if self._outputs:
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _leave_reports(self) -> None:
        """Write the reports in a process that ends in a test."""
        self._collected.process_ends()
        self._outputs.write()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the conformance table, and what went wrong with reporting, for which the run fails."""
        found = self._collected.facts
        with self._errors.kept("writing the table"):
            terminal.write(terminalreporter, found, self._workers.lost, _chosen(terminalreporter.config))
        with self._errors.kept("writing the table of fuzzing"):
            terminal.write_fuzzing(terminalreporter, found, self._session.settings.findings, self._began)
        with self._errors.kept("writing annotations"):
            self._outputs.print(terminalreporter)
        if self._errors:
            self._errors.write(terminalreporter)
            session = self._pytest_session
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def _chosen(config: pytest.Config) -> str:
    """Return the options that chose tests by mark or name, as one writes them."""
    given = (("-m", config.option.markexpr), ("-k", config.option.keyword))
    return " ".join(f"{option} {shlex.quote(value)}" for option, value in given if value)


def _warn_of_leaks(item: pytest.Item, regional: Regional) -> None:
    changed = [str(leak) for leak in regional.leaks if leak.restored]
    running = [leak.name for leak in regional.leaks if not leak.restored and not leak.unrestorable]
    parts = [f"left {plural(len(changed), 'setting')} changed (put back): {'; '.join(changed)}"] if changed else []
    parts += [f"left running: {', '.join(running)}"] if running else []
    if parts:
        warnings.warn(RegionalLeakWarning(f"{item.nodeid} {', and '.join(parts)}"), stacklevel=1)


def _process_of(report: pytest.TestReport) -> str:
    """Return the xdist worker that a report came from; empty where there are none."""
    node = getattr(report, "node", None)
    return "" if node is None else str(node.gateway.id)


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


def _check_fuzzed(item: pytest.Item) -> None:
    """Fail a fuzz test that drew nothing: it would always pass."""
    if FUZZ in item.stash and item.stash[FUZZ].result is None:
        pytest.fail("the test uses regional_fuzz and runs no campaign: call regional_fuzz.run(mode)", pytrace=False)


def _check_end(regional: Regional, *, vacuity: bool) -> None:
    """Fail a test whose body passed without testing anything; no frame of the test is at fault, so none is shown."""
    problem = ""
    try:
        checks.check_fallbacks(regional)
        checks.check_backend_leaks(regional)
        if vacuity:
            checks.check_not_vacuous(regional)
    except (checks.BackendLeakError, checks.FallbackError, checks.VacuousTestError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        pytest.fail(problem, pytrace=False)


def _check_verified(regional: Regional) -> None:
    """Fail a test with a kernel that was refuted; each kernel has a time limit, whatever the test's."""
    problem = ""
    try:
        check_refuted(regional.verified_kernels())
    except KernelRefutedError as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        pytest.fail(problem, pytrace=False)


def _failed_inside_unittest(item: pytest.Item) -> bool:
    """Return whether the test failed: unittest keeps its failure, and an error about vacuity must not hide it."""
    return bool(getattr(item, "_excinfo", None))
