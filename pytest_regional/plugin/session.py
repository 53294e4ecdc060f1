"""The run: its settings resolved to backends, targets and directories. One object per process, in pytest's stash."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

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
    from pytest_regional.plugin.settings import Settings


class RegionalSession:
    """Everything the hooks share.

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
        drawn = getattr(config, "workerinput", {}).get("regional_fuzz_seed", settings.fuzz_seed)
        self.fuzz_seed = random.SystemRandom().randrange(2**32) if drawn is None else int(drawn)
        self._specs: dict[str, BackendSpec] = {}
        try:
            self._project = ProjectFile.read(config.rootpath)
        except RegionalValueError as error:
            raise pytest.UsageError(str(error)) from error
        # torch's own imports raise it 14 times in every process that compiles; it would bury warnings of tests.
        config.addinivalue_line("filterwarnings", "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
        files = [settings.known_failures] if settings.known_failures else []
        files += [spec.known_failures for spec in map(self.spec, settings.backends) if spec.known_failures]
        names = {self.spec(name).name for name in settings.backends}
        self.known_failures = KnownFailures.read(files, names)

    @property
    def folder(self) -> Path:
        """The directory of this process. Its name distinguishes it from others of the run."""
        return self.config.stash[environment.FOLDER]

    @property
    def scratch_dir(self) -> Path:
        """The directory of files that the processes of a run leave for each other, also when one crashes."""
        return self.folder.parent / "fuzzing"

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

    def header(self) -> list[str]:
        """Return the lines of pytest's header."""
        lines: list[str] = []
        with self.errors.kept("writing pytest's header"):
            torch, settings = installed_version(), self.settings
            lines.append(
                f"regional: backend {', '.join(settings.backends)}; device {', '.join(settings.devices)}; "
                f"torch {torch}; seed {settings.seed}; caches fresh for every test in {self.folder.parent}; "
                f"compiled kernels {f'kept in {settings.kernel_store}' if settings.kernel_store else 'not kept'}"
            )
            if not TESTED[0] <= torch_version() <= TESTED[1]:
                lines.append(
                    f"regional: torch {torch} is untested: pytest-regional is tested with torch {tested_versions()}"
                )
            if options.text_of(self.config, "fuzz") is not None:
                lines.append(
                    f"regional: each fuzz test {settings.fuzz}, drawn from seed {self.fuzz_seed} "
                    f"(--regional-seed={self.fuzz_seed} draws the same); findings in {settings.findings}"
                )
        return lines
