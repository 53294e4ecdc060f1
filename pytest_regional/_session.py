"""The run: which backends, what each marked test gets, what it did. One object per process, in pytest's stash."""

from __future__ import annotations

import contextlib
import importlib.metadata
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional import _environment, _marks
from pytest_regional._config import Settings
from pytest_regional._known_failures import KnownFailures
from pytest_regional._marks import KNOWN_FAILURE_MARK, CompileMark, KnownFailure
from pytest_regional._phases import limits_of
from pytest_regional._reporting import ATTRIBUTE, ReportingErrors
from pytest_regional._stash import CHOICE, DRAWER, FUZZ, HARNESS, TARGET
from pytest_regional._text import plural
from pytest_regional.backends import registry
from pytest_regional.backends.project_file import ProjectFile, ProjectFileError
from pytest_regional.harness.devices.device import DEVICES
from pytest_regional.report import details, facts, junit
from pytest_regional.report.facts import plan_of

if TYPE_CHECKING:
    from pytest_regional.backends.spec import BackendSpec
    from pytest_regional.harness.regional import Regional


class RegionalLeakWarning(pytest.PytestWarning):
    """A test left process-wide state changed; it was put back."""


@dataclass(frozen=True)
class Target:
    """What one marked test is to run on, settled at collection."""

    spec: BackendSpec
    device: str
    mark: CompileMark
    backend: str


class RegionalSession:
    """Everything the hooks share. ``hooks()`` returns the part that pytest calls."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        #: What went wrong where the plugin reports.
        self.errors = ReportingErrors()
        self._specs: dict[str, BackendSpec] = {}
        #: How often each test was set up: more than once where a plugin runs tests again.
        self._setups: Counter[str] = Counter()
        self._project = _project_file(config)
        #: What fuzz tests draw from: the same on every xdist worker.
        self.fuzz_seed = _fuzz_seed(config, settings)
        # torch's own imports raise it 14 times in every process that compiles; it would bury warnings of tests.
        config.addinivalue_line("filterwarnings", "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
        files = [settings.known_failures] if settings.known_failures else []
        files += [spec.known_failures for spec in map(self.spec, settings.backends) if spec.known_failures]
        names = {self.spec(name).name for name in settings.backends}
        self.known_failures = KnownFailures.read(files, names, self._project)

    def hooks(self) -> Iterator[tuple[str, object]]:
        """Yield the plugin objects with the hooks of an active run, and their names."""
        from pytest_regional._endings import EndingHooks
        from pytest_regional._hooks import RunHooks
        from pytest_regional._kept_folders import FolderHooks
        from pytest_regional._phases import PhaseHooks
        from pytest_regional._reporting import PlainReportHooks

        endings = EndingHooks(self)
        yield "regional-session", RunHooks(self, endings)
        # Behind it, so that the limits are around all that it does.
        yield "regional-phases", PhaseHooks(self)
        yield "regional-endings", endings
        yield "regional-folders", FolderHooks(self)
        yield "regional-plain-reports", PlainReportHooks(self)

    @property
    def process(self) -> str:
        """What tells this process from others of the run: the worker's name, or ``main``."""
        return self.config.stash[_environment.FOLDER].name

    @property
    def folder_of_notes(self) -> Path:
        """Where fuzz tests note what they check, so that a crash does not take it along."""
        return self.config.stash[_environment.FOLDER].parent / "fuzzing"

    def spec(self, name: str) -> BackendSpec:
        """Return the backend called ``name`` on the command line, loaded once."""
        if name not in self._specs:
            spec = registry.resolve(name)
            try:
                self._specs[name] = self._project.applied_to(spec)
            except ProjectFileError as error:
                raise pytest.UsageError(str(error)) from error
        return self._specs[name]

    def short_name(self, name: str) -> str:
        """Return the name of the backend or device ``name`` as test ids show it."""
        return name if name in DEVICES else name.rpartition(":")[2]

    def header(self) -> list[str]:
        """Return the lines of pytest's header."""
        lines: list[str] = []
        with self.errors.kept("writing pytest's header"):
            lines += self._header()
        return lines

    def _header(self) -> list[str]:
        torch = importlib.metadata.version("torch")
        backends, devices = ", ".join(self.settings.backends), ", ".join(self.settings.devices)
        return [
            f"regional: backend {backends}; device {devices}; torch {torch}; seed {self.settings.seed}; "
            f"caches fresh for every test in {self.config.stash[_environment.FOLDER].parent}; "
            f"compiled kernels {f'kept in {self.settings.kernel_store}' if self.settings.kernel_store else 'not kept'}",
            *self._fuzz_header(),
        ]

    def _fuzz_header(self) -> list[str]:
        if self.config.getoption("regional_fuzz") is None:
            return []
        return [
            f"regional: each fuzz test {self.settings.fuzz}, drawn from seed {self.fuzz_seed} "
            f"(--regional-seed={self.fuzz_seed} draws the same); findings in {self.settings.findings}"
        ]

    # Collection

    def prepare(self, item: pytest.Item, mark: CompileMark, failures: list[KnownFailure]) -> None:
        """Settle the target of ``item``; add its skips and expected failures."""
        chosen = item.stash.get(CHOICE, (None, None))
        params = item.callspec.params if hasattr(item, "callspec") else {}
        backend = chosen[0] or params.get("regional_backend") or (mark.backend or self.settings.backends)[0]
        device = chosen[1] or params.get("regional_device") or (mark.device or self.settings.devices)[0]
        target = Target(self.spec(backend), device, mark, backend)
        _require_settings(mark)
        item.stash[TARGET] = target
        item.user_properties.append(("regional_backend", target.spec.name))
        self._apply_requirements(item, target)
        self._apply_known_failures(item, target, failures)

    def _apply_requirements(self, item: pytest.Item, target: Target) -> None:
        for name in target.mark.requires:
            support = target.spec.supports(name)
            if support:
                continue
            reason = f"backend {target.spec.name!r} disclaims {name}: {support.reason}"
            self._disclaimed(item, reason, "it works, so claim the capability")

    def _disclaimed(self, item: pytest.Item, reason: str, advice: str) -> None:
        if self.settings.audit:
            item.add_marker(pytest.mark.xfail(reason=f"audit: {reason}; {advice}", strict=True))
        else:
            item.add_marker(pytest.mark.skip(reason=reason))

    def _apply_known_failures(self, item: pytest.Item, target: Target, failures: list[KnownFailure]) -> None:
        from pytest_regional.backends.capabilities import torch_matches

        for failure in failures:
            if failure.backend not in self._known_names(target):
                self._check_backend_exists(failure.backend)
            elif torch_matches(failure.torch):
                item.add_marker(pytest.mark.xfail(reason=failure.reason, strict=failure.strict))
        for line in self.known_failures.matching(item.nodeid, target.spec.name, target.mark.requires):
            item.add_marker(pytest.mark.xfail(reason=line.text, strict=True))

    @staticmethod
    def _known_names(target: Target) -> tuple[str, ...]:
        return (target.spec.name,)

    def _check_backend_exists(self, name: str) -> None:
        known = {*registry.names(), *(self.short_name(n) for n in self.settings.backends)}
        if name not in known and ":" not in name:
            from pytest_regional._text import unknown_name

            raise _marks.MarkError(f"{KNOWN_FAILURE_MARK}: {unknown_name('backend', name, known)}")

    # Running

    def begin(self, item: pytest.Item) -> None:
        """Note that ``item`` is set up; forget what its earlier run left, where a plugin runs it again."""
        self._setups[item.nodeid] += 1
        keys: tuple[pytest.StashKey[Any], ...] = (HARNESS, DRAWER, FUZZ)
        for key in keys:
            if key in item.stash:
                del item.stash[key]
        item.user_properties[:] = junit.without_properties_of_test(item.user_properties)

    def ask_the_device(self, item: pytest.Item) -> None:
        """Add the skips that depend on the device: asked now that the test is about to run, never at import."""
        from pytest_regional.harness.devices.device import DeviceError, device_under_test, lost
        from pytest_regional.harness.devices.on_device import device_limit, missing_on

        target = item.stash[TARGET]
        try:
            device = device_under_test(target.device)
        except DeviceError as error:
            # Asked for by the mark: of the command line's devices it is known that they are there.
            item.add_marker(pytest.mark.skip(reason=str(error)))
            return
        if device.kind == "cuda" and lost():
            pytest.fail(f"{lost()}; the GPU is lost to this process, and to this test", pytrace=False)
        for name in target.mark.requires:
            limit = device_limit(device, name)
            if not limit:
                reason = f"device {device.name!r} has no {name}: {limit.reason}"
                self._disclaimed(item, reason, "it works, so the device's limit is no more")
        reason = missing_on(device, target.mark.device_requires)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))

    @contextlib.contextmanager
    def running(self, item: pytest.Item) -> Iterator[Regional]:
        """Give a marked test its harness: isolated and observed until its teardown."""
        # What all tests need is on nobody's clock, and never half imported where time or memory ends.
        with limits_of(item).suspended():
            from pytest_regional._torch.inductor import import_compilers
            from pytest_regional.harness.options import CompileOptions
            from pytest_regional.harness.regional import harness, seed_for

            import_compilers()

        target = item.stash[TARGET]
        mark = target.mark
        options = CompileOptions(mark.dynamic, mark.fullgraph, mark.inductor_configs, None, mark.pre_grad_pass_timing)
        with harness(
            target.spec,
            target.device,
            folder=self._folder(item),
            seed=seed_for(item.nodeid, self.settings.seed),
            options=options,
            isolate=mark.isolate,
        ) as regional:
            item.stash[HARNESS] = regional
            # An audit wants to see the backward that is disclaimed, and the results that do not last.
            regional.forward_only &= "backward" not in mark.requires
            regional.looks_again |= "results_kept" in mark.requires
            if self.settings.reports:
                item.stash[DRAWER] = details.new_drawer()
                regional._observer.spies.append(item.stash[DRAWER])
            yield regional
        text = _leak_text(regional)
        if text:
            self.warn_of_leak(f"{item.nodeid} {text}")

    def warn_of_leak(self, text: str) -> None:
        """Warn of what a test left."""
        warnings.warn(RegionalLeakWarning(text), stacklevel=1)

    def _folder(self, item: pytest.Item) -> Path:
        import hashlib

        digest = hashlib.sha256(item.nodeid.encode()).hexdigest()[:16]
        # Another one each time: what an earlier run compiled would be found, and nothing be compiled.
        return self.config.stash[_environment.FOLDER] / "tests" / f"{digest}-{self._setups[item.nodeid]}"

    def attach_facts(self, item: pytest.Item, report: Any) -> None:
        """Put what is known of a marked test on its report, and what went wrong with that, on an xdist worker."""
        with self.errors.kept(f"collecting the facts of {item.nodeid} ({report.when})"):
            if TARGET in item.stash:
                self._attach_facts(item, report)
        if self.errors and hasattr(self.config, "workerinput"):
            setattr(report, ATTRIBUTE, self.errors.taken())

    def _attach_facts(self, item: pytest.Item, report: Any) -> None:
        target = item.stash[TARGET]
        regional = item.stash.get(HARNESS, None)
        known = facts.of(item, target, regional)
        known["runs"] = self._setups[item.nodeid]
        if DRAWER in item.stash and regional is not None and (report.when == "call" or report.failed):
            known["details"] = details.details_of(regional, item.stash[DRAWER])
        setattr(report, facts.ATTRIBUTE, facts.plain(known))
        if report.when == "call":
            # The JUnit file takes them from the report of the teardown, which comes next.
            item.user_properties.extend(junit.properties_of_test(known["counters"], known["worst_parity"]))
        if report.failed and regional is not None and self.config.get_verbosity() > 0:
            plan = plan_of(regional.graphs)
            report.sections.append(("regional: what was compiled", plan or "no graph was compiled"))


def _require_settings(mark: CompileMark) -> None:
    if mark.inductor_configs:  # asking for their names imports torch
        from pytest_regional.harness.options import CompileOptions

        CompileOptions(inductor_configs=mark.inductor_configs).require_settings()


def _project_file(config: pytest.Config) -> ProjectFile:
    try:
        return ProjectFile.read(config.rootpath)
    except ProjectFileError as error:
        raise pytest.UsageError(str(error)) from error


def _fuzz_seed(config: pytest.Config, settings: Settings) -> int:
    drawn: dict[str, Any] = getattr(config, "workerinput", {})
    if "regional_fuzz_seed" in drawn:
        return int(drawn["regional_fuzz_seed"])
    if settings.fuzz_seed is not None:
        return settings.fuzz_seed
    return random.SystemRandom().randrange(2**32)


def _leak_text(regional: Regional) -> str:
    changed = [str(leak) for leak in regional.leaks if leak.put_back]
    running = [leak.name for leak in regional.leaks if not leak.put_back and not leak.poisons]
    parts = [f"left {plural(len(changed), 'setting')} changed (put back): {'; '.join(changed)}"] if changed else []
    parts += [f"left running: {', '.join(running)}"] if running else []
    return ", and ".join(parts)
