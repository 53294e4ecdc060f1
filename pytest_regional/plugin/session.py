"""The run: its settings resolved to backends, targets and directories. One object per process, in pytest's stash."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.stash import CHOICE, Target
from pytest_regional._torch import TESTED, installed_version, tested_versions, torch_version
from pytest_regional.backends import registry
from pytest_regional.backends.registry import ProjectFile
from pytest_regional.harness.devices.device import DEVICES
from pytest_regional.plugin import environment, options
from pytest_regional.plugin.marks import KnownFailures
from pytest_regional.plugin.workers import ReportingErrors

if TYPE_CHECKING:
    from pytest_regional.backends.spec import BackendSpec
    from pytest_regional.plugin.marks import CompileMark
    from pytest_regional.plugin.options import Settings


class RegionalSession:
    """Everything the hooks share.

    Args:
        config: pytest's.
        settings: of the run.

    Attributes:
        config: pytest's.
        settings: of the run.
        errors: what went wrong where the plugin reports.
        fuzz_seed: what fuzz tests draw from: the same on every xdist worker.
        known_failures: of the backends under test.
    """

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.errors = ReportingErrors()
        self.fuzz_seed = _fuzz_seed(config, settings)
        self._specs: dict[str, BackendSpec] = {}
        self._project = _project_file(config)
        # torch's own imports raise it 14 times in every process that compiles; it would bury warnings of tests.
        config.addinivalue_line("filterwarnings", "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
        files = [settings.known_failures] if settings.known_failures else []
        files += [spec.known_failures for spec in map(self.spec, settings.backends) if spec.known_failures]
        names = {self.spec(name).name for name in settings.backends}
        self.known_failures = KnownFailures.read(files, names)

    @property
    def process(self) -> str:
        """What distinguishes this process from others of the run: the worker's name, or ``main``."""
        return self.config.stash[environment.FOLDER].name

    @property
    def scratch_dir(self) -> Path:
        """The directory of files that the processes of a run leave for each other, also when one crashes."""
        return self.config.stash[environment.FOLDER].parent / "fuzzing"

    def spec(self, name: str) -> BackendSpec:
        """Return the backend called ``name`` on the command line, loaded once."""
        if name not in self._specs:
            try:
                self._specs[name] = self._project.applied_to(registry.resolve(name))
            except RegionalValueError as error:
                raise pytest.UsageError(str(error)) from error
        return self._specs[name]

    @staticmethod
    def short_name(name: str) -> str:
        """Return the name of the backend or device ``name`` as test ids show it."""
        return name if name in DEVICES else name.rpartition(":")[2]

    def target_of(self, item: pytest.Item, mark: CompileMark) -> Target:
        """Return what ``item``, whose mark is ``mark``, runs on."""
        backend, device = item.stash.get(CHOICE, (None, None))
        params = item.callspec.params if hasattr(item, "callspec") else {}
        backend = backend or params.get("regional_backend") or (mark.backend or self.settings.backends)[0]
        device = device or params.get("regional_device") or (mark.device or self.settings.devices)[0]
        return Target(self.spec(backend), device, mark, backend)

    def backend_names(self) -> set[str]:
        """Return the names of all backends that are installed or under test."""
        return {*registry.names(), *(self.short_name(name) for name in self.settings.backends)}

    def header(self) -> list[str]:
        """Return the lines of pytest's header."""
        lines: list[str] = []
        with self.errors.kept("writing pytest's header"):
            lines += self._header()
        return lines

    def _header(self) -> list[str]:
        torch = installed_version()
        backends, devices = ", ".join(self.settings.backends), ", ".join(self.settings.devices)
        return [
            f"regional: backend {backends}; device {devices}; torch {torch}; seed {self.settings.seed}; "
            f"caches fresh for every test in {self.config.stash[environment.FOLDER].parent}; "
            f"compiled kernels {f'kept in {self.settings.kernel_store}' if self.settings.kernel_store else 'not kept'}",
            *_untested_torch(),
            *self._fuzz_header(),
        ]

    def _fuzz_header(self) -> list[str]:
        if options.text_of(self.config, "fuzz") is None:
            return []
        return [
            f"regional: each fuzz test {self.settings.fuzz}, drawn from seed {self.fuzz_seed} "
            f"(--regional-seed={self.fuzz_seed} draws the same); findings in {self.settings.findings}"
        ]


def _untested_torch() -> list[str]:
    if TESTED[0] <= torch_version() <= TESTED[1]:
        return []
    return [
        f"regional: torch {installed_version()} is untested: pytest-regional is tested with torch {tested_versions()}"
    ]


def _project_file(config: pytest.Config) -> ProjectFile:
    try:
        return ProjectFile.read(config.rootpath)
    except RegionalValueError as error:
        raise pytest.UsageError(str(error)) from error


def _fuzz_seed(config: pytest.Config, settings: Settings) -> int:
    drawn: dict[str, Any] = getattr(config, "workerinput", {})
    if "regional_fuzz_seed" in drawn:
        return int(drawn["regional_fuzz_seed"])
    if settings.fuzz_seed is not None:
        return settings.fuzz_seed
    return random.SystemRandom().randrange(2**32)
