"""The command line options and their ini twins. Imported in every pytest run: it must stay cheap."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from pytest_regional import _xdist
from pytest_regional._limits import seconds_of
from pytest_regional._text import shown
from pytest_regional.fuzz.budget import Budget, BudgetError

if TYPE_CHECKING:
    import argparse

DEFAULT_BACKEND = "reference"
OFF_REASON = "needs --regional-backend (or regional_backend in the ini file): regional compilation tests are off"


class Option(NamedTuple):
    """A command line option with its ini twin."""

    flag: str
    ini: str
    help: str
    metavar: str | None = None
    nargs: str | None = None
    switch: bool = False


OPTIONS = (
    Option(
        "--regional-backend",
        "regional_backend",
        "Run the tests marked regional_compile, once for each of the comma-separated backends: reference (the "
        "default), torch, inductor, aot_eager, an entry point of group pytest_regional.backends, a name that "
        "torch.compile takes, or package.module:attribute.",
        metavar="NAMES",
        nargs="?",
    ),
    Option(
        "--regional-device",
        "regional_device",
        "Devices to test on, comma-separated: auto (the default: cuda if usable, else cpu), cpu, cuda, cuda-emulated "
        "(an H200; cuda-emulated:a100 and others).",
        metavar="DEVICES",
    ),
    Option(
        "--regional-gpus",
        "regional_gpus",
        "What workers of pytest-xdist see of several GPUs: one (the default: a GPU a worker, in turns, of those in "
        "CUDA_VISIBLE_DEVICES if that is set) or all (for tests that need several).",
        metavar="one|all",
    ),
    Option(
        "--regional-timeout",
        "regional_timeout",
        "Seconds after which a marked test that hangs fails with the stacks of all threads; setup, call and teardown "
        "have so many each. The run goes on.",
        metavar="S",
    ),
    Option(
        "--regional-memory",
        "regional_memory",
        "How much memory setup, call and teardown of a marked test may each take (8G, 500M) beyond what its process "
        "has; allocations fail above it, and so does the test. The run goes on. Linux.",
        metavar="SIZE",
    ),
    Option(
        "--regional-kernel-store",
        "regional_kernel_store",
        "Where compiled kernels are kept between tests, workers and runs: a folder, or off (default: "
        "pytest-regional/kernels in the user's folder of caches). Graph caches are fresh for every test all the same.",
        metavar="DIR|off",
    ),
    Option(
        "--regional-fuzz",
        "regional_fuzz",
        "How much each fuzz test may do: a number of programs (500), a time (30s, 10m, 2h), or a profile: ci (a few, "
        "the same in every run; the default), nightly (half an hour).",
        metavar="BUDGET",
    ),
    Option(
        "--regional-findings",
        "regional_findings",
        "Folder of what fuzzing found: new findings are written to it, and those in it are known and fail no test "
        "(default: regional-findings).",
        metavar="DIR",
    ),
    Option(
        "--regional-examples",
        "regional_examples",
        "Where Hypothesis keeps failing examples of marked property tests, for all processes and machines: a folder, "
        "or a Redis server (redis://host:6379/0). Default: what Hypothesis is set to.",
        metavar="DIR|URL",
    ),
    Option(
        "--regional-seed",
        "regional_seed",
        "Seed from which every marked test's random generators start (default: a fixed one).",
        metavar="N",
    ),
    Option(
        "--regional-known-failures",
        "regional_known_failures",
        "File of known failures of the backends under test: one 'backend | test | reason | link' a line.",
        metavar="FILE",
    ),
    Option(
        "--regional-report",
        "regional_report",
        "Files that the results are written to, with commas between: FILE.html to look at, FILE.json for "
        "'python -m pytest_regional compare' and 'merge'.",
        metavar="FILES",
    ),
    Option(
        "--regional-audit",
        "regional_audit",
        "Also run what the backend disclaims: a test that passes although its capability is disclaimed fails.",
        switch=True,
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Register every option and its ini twin."""
    group = parser.getgroup("regional", "regional compilation (pytest-regional)")
    for option in OPTIONS:
        if option.switch:
            group.addoption(option.flag, action="store_true", default=None, help=option.help)
        elif option.nargs:
            group.addoption(
                option.flag, nargs=option.nargs, const=DEFAULT_BACKEND, metavar=option.metavar, help=option.help
            )
        else:
            group.addoption(option.flag, metavar=option.metavar, help=option.help)
        parser.addini(option.ini, option.help, type=_ini_type(option), default=None)
    group.addoption(
        "--regional-list-backends",
        action="store_true",
        help="Print the backends that can be tested, where each comes from and what it disclaims; run nothing.",
    )


def _ini_type(option: Option) -> Literal["bool", "string"]:
    return "bool" if option.switch else "string"


def list_backends_is_asked(config: pytest.Config) -> bool:
    """Say whether the run is asked for the names of backends alone."""
    return bool(config.option.regional_list_backends)


def give_bare_option_its_value(arguments: list[str]) -> bool:
    """Rewrite a bare ``--regional-backend`` to ``--regional-backend=reference``, in place.

    argparse cannot tell ``--regional-backend suites`` (a path) from a value; written with ``=`` there is no doubt.
    Returns whether anything changed.
    """
    changed = False
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument == "--regional-backend":
            arguments[index] = f"--regional-backend={DEFAULT_BACKEND}"
            changed = True
    return changed


def is_requested(config: pytest.Config, namespace: argparse.Namespace | None = None) -> bool:
    """Say, before options are resolved, whether a backend was asked for."""
    option = getattr(namespace or config.option, "regional_backend", None)
    return bool(option or config.getini("regional_backend"))


def all_gpus_are_asked(config: pytest.Config) -> bool:
    """Say, before options are resolved, whether each worker is to see all GPUs."""
    option = getattr(config.known_args_namespace, "regional_gpus", None)
    return str(option or config.getini("regional_gpus")) == "all"


def kernel_store_named(config: pytest.Config) -> str:
    """Return, before options are resolved, where compiled kernels are to be kept; empty where nothing says so."""
    named = getattr(config.known_args_namespace, "regional_kernel_store", None) or config.getini(
        "regional_kernel_store"
    )
    return named if not named or named == "off" else str(config.rootpath / named)


def any_given(config: pytest.Config) -> bool:
    """Say whether any option but the backend was given."""
    names = [option.ini for option in OPTIONS if option.ini != "regional_backend"]
    return any(config.getoption(name) is not None or config.getini(name) for name in names)


DEFAULT_FINDINGS = "regional-findings"
#: What crosses to workers of pytest-xdist, and every generator takes.
MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Settings:
    """The resolved options of one run.

    Attributes:
        backends: names of the backends under test; empty when the plugin is off.
        devices: names of the devices under test.
        timeout: seconds, or ``None``.
        memory: bytes that a test may take, or ``None``.
        kernel_store: the folder of compiled kernels, or ``None``.
        seed: of the run.
        fuzz: what each fuzz test may spend.
        fuzz_seed: what fuzz tests draw from; None where a new one is to be drawn for each run.
        findings: the folder of what fuzzing found.
        examples: where property tests keep failing examples, or ``None`` for what Hypothesis is set to.
        known_failures: the adopter's file, or ``None``.
        reports: the files that results are written to.
        audit: also run what is disclaimed.
    """

    backends: tuple[str, ...]
    devices: tuple[str, ...]
    timeout: float | None
    memory: int | None
    kernel_store: Path | None
    seed: int
    fuzz: Budget
    fuzz_seed: int | None
    findings: Path
    examples: str | None
    known_failures: Path | None
    reports: tuple[Path, ...]
    audit: bool

    @property
    def active(self) -> bool:
        """Whether marked tests run at all."""
        return bool(self.backends)


def resolve(config: pytest.Config) -> Settings:
    """Read options, ini file and defaults.

    Raises:
        pytest.UsageError: a value that cannot be used; the message names the option and the valid values.
    """
    _require_torch()
    from pytest_regional.harness.regional import DEFAULT_SEED

    _check_gpus(_value(config, "regional_gpus"))
    known = _value(config, "regional_known_failures")
    seed, fuzz = _value(config, "regional_seed"), _fuzz(_value(config, "regional_fuzz"))
    return Settings(
        backends=_backends(config),
        devices=_devices(config),
        timeout=_timeout(_value(config, "regional_timeout")),
        memory=_memory(_value(config, "regional_memory")),
        kernel_store=_kernel_store(_value(config, "regional_kernel_store")),
        seed=_seed(seed, DEFAULT_SEED),
        fuzz=fuzz,
        fuzz_seed=_seed(seed, DEFAULT_SEED) if seed or fuzz.fixed or os.environ.get("CI") else None,
        findings=_findings(config),
        examples=_examples(_value(config, "regional_examples"), config),
        known_failures=(config.rootpath / known) if known else None,
        reports=_reports(_value(config, "regional_report"), config),
        audit=bool(_value(config, "regional_audit")),
    )


def check_values(config: pytest.Config) -> None:
    """Check the values of options that have no effect while the plugin is off: a typing error stays one."""
    _device_names(config)
    _check_gpus(_value(config, "regional_gpus"))
    _timeout(_value(config, "regional_timeout"))
    _memory(_value(config, "regional_memory"))
    _seed(_value(config, "regional_seed"), 0)
    _fuzz(_value(config, "regional_fuzz"))


def _require_torch() -> None:
    try:
        found = importlib.util.find_spec("torch") is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise pytest.UsageError(
            "--regional-backend needs torch, which is not installed: install torch>=2.11,<2.16, or leave the option out"
        )


def _value(config: pytest.Config, name: str) -> Any:
    option = config.getoption(name)
    if option == "":
        # Most often a variable that a script forgot to set.
        flag = "--" + name.replace("_", "-")
        raise pytest.UsageError(f"{flag}= has no value: give one, or leave the option out")
    return config.getini(name) if option is None else option


def _names(config: pytest.Config, option: str, default: Sequence[str] = ()) -> tuple[str, ...]:
    value = _value(config, option)
    if value is None or value == "":
        return tuple(default)
    names = [name.strip() for name in str(value).split(",")]
    flag = "--" + option.replace("_", "-")
    if not all(names):
        raise pytest.UsageError(f"{flag}={value}: an empty name in the comma-separated list")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise pytest.UsageError(f"{flag}={value}: {', '.join(doubled)} is listed twice")
    return tuple(names)


def _backends(config: pytest.Config) -> tuple[str, ...]:
    from pytest_regional.backends import registry

    names = _names(config, "regional_backend")
    for name in names:
        try:
            registry.resolve(name)
        except (registry.UnknownBackendError, registry.BackendImportError) as error:
            raise pytest.UsageError(f"--regional-backend: {error}") from error
    return names


def _device_names(config: pytest.Config) -> tuple[str, ...]:
    from pytest_regional.harness.devices.device import DeviceError, check_device_name

    names = _names(config, "regional_device", ("auto",))
    for name in names:
        try:
            check_device_name(name)
        except DeviceError as error:
            raise pytest.UsageError(f"--regional-device: {error}") from error
    return names


def _devices(config: pytest.Config) -> tuple[str, ...]:
    from pytest_regional.harness.devices.device import DeviceError, usable_device

    names = _device_names(config)
    for name in names:
        try:
            if name == "cuda":
                usable_device(name)
        except DeviceError as error:
            raise pytest.UsageError(f"--regional-device: {error}") from error
    return names


def _check_gpus(value: Any) -> None:
    if value not in (None, "", *_xdist.CHOICES):
        raise pytest.UsageError(f"--regional-gpus={value}: expected {' or '.join(_xdist.CHOICES)}")


def _memory(value: Any) -> int | None:
    if value in (None, ""):
        return None
    from pytest_regional._limits import LEAST_BYTES, MOST_BYTES, bytes_of

    try:
        size = bytes_of(str(value))
    except ValueError:
        size = 0
    if not LEAST_BYTES <= size <= MOST_BYTES:
        raise pytest.UsageError(
            f"--regional-memory={shown(value)}: expected a size from {LEAST_BYTES // 2**20}M, which the smallest test "
            f"takes, to {MOST_BYTES // 2**40}T, such as 8G or 500M"
        )
    return size


def _kernel_store(value: Any) -> Path | None:
    """Return the store that the environment names: the option, if given, was put there before torch was imported."""
    from pytest_regional.harness.kernel_store.files import VARIABLE, StoreError, chosen_folder

    try:
        return chosen_folder()
    except StoreError as error:
        named = f"--regional-kernel-store={value}" if value else f"{VARIABLE}={os.environ[VARIABLE]}"
        raise pytest.UsageError(f"{named}: {error}") from error


def _timeout(value: Any) -> float | None:
    if value in (None, ""):
        return None
    try:
        return seconds_of(value)
    except ValueError as error:
        raise pytest.UsageError(f"--regional-timeout={shown(value)}: {error}") from error


def _seed(value: Any, default: int) -> int:
    if value in (None, ""):
        return default
    try:
        seed = int(value)
    except ValueError:
        seed = -1
    if not 0 <= seed <= MOST_SEED:
        raise pytest.UsageError(f"--regional-seed={shown(value)}: expected a whole number from 0 to 2**63 - 1")
    return seed


def _examples(value: Any, config: pytest.Config) -> str | None:
    if value in (None, ""):
        return None
    from pytest_regional._hypothesis import ExamplesError, check_place, database_at
    from pytest_regional._secrets import SecretUrl

    # Tracebacks and dataclasses show it: by its representation, which is masked.
    place = SecretUrl(value) if "://" in value else str(value)
    try:
        database_at(place, config.rootpath)
        check_place(place)
    except ExamplesError as error:
        raise pytest.UsageError(f"--regional-examples: {error}") from error
    return place


def _findings(config: pytest.Config) -> Path:
    """Check that findings can be written where that was asked for: the first one comes late.

    Where nobody asked, a fuzz test says it, and runs that find nothing do without.
    """
    named = _value(config, "regional_findings")
    path: Path = config.rootpath / (named or DEFAULT_FINDINGS)
    if named:
        _check_folder("--regional-findings", path, path)
    return path


def _reports(value: Any, config: pytest.Config) -> tuple[Path, ...]:
    """Check that the reports can be written, before hours are spent on them."""
    from pytest_regional.report.this_run import wrong_name

    paths = tuple(config.rootpath / name.strip() for name in str(value or "").split(",") if name.strip())
    for path in paths:
        if wrong := wrong_name(path):
            raise pytest.UsageError(f"--regional-report={value}: {wrong}")
        if path.is_dir():
            raise pytest.UsageError(f"--regional-report={value}: that is a folder")
        _check_folder("--regional-report", path, path.parent)
    return paths


def _check_folder(flag: str, path: Path, folder: Path) -> None:
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise pytest.UsageError(f"{flag}: {path} cannot be written: {existing} is no folder for that")


def _fuzz(value: Any) -> Budget:
    try:
        return Budget.parse(str(value or "ci"))
    except BudgetError as error:
        raise pytest.UsageError(f"--regional-fuzz: {error}") from error
