"""The options of the plugin: one table, and the only place that reads them. Imported in every pytest run: stays cheap.

Each option has a setting in the ini file, except one that a person has to ask for each time; those that few runs change
are there alone. Before conftest files are loaded :func:`is_requested` and :func:`text_of` read what must be known by
then; :func:`resolve` parses all of them, once, when pytest is configured.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from pytest_regional._base.errors import RegionalError, RegionalValueError
from pytest_regional._base.text import DEFAULT_SEED, MOST_SEED, nearest, shown

if TYPE_CHECKING:
    import argparse

    from pytest_regional._base.limits import Budget
    from pytest_regional.report.outputs import Outputs

DEFAULT_BACKEND = "reference"
DEFAULT_FINDINGS = "regional-findings"
OFF_REASON = "needs --regional-backend (or regional_backend in the ini file): regional compilation tests are off"

#: Each takes as much memory as a process that has imported torch.
MOST_SERVERS = 8


@dataclass(frozen=True)
class Settings:
    """The parsed options of one run.

    Attributes:
        backends: names of the backends under test.
        devices: names of the devices under test.
        gpus: which GPUs each xdist worker sees: ``"one"`` or ``"all"``.
        timeout: seconds, or ``None``.
        memory: bytes that a test may allocate, or ``None``.
        kernel_store: the directory of compiled kernels, or ``None``.
        fuzz: the budget of each fuzz test.
        findings: the directory of fuzz findings.
        fuzz_settings: names of the compiler settings that fuzz tests draw.
        seed: of the run.
        fuzz_seed: of fuzz tests; ``None`` where each run draws a new one.
        known_failures: the adopter's file, or ``None``.
        reports: what results are written to.
        audit: also run tests for unsupported capabilities.
        update: whether goldens are written.
        blame: how far a failure is followed up: ``"off"``, ``"region"`` or ``"deep:300"``; where it is ``None``, a
            failed comparison with eager to the region, and findings of fuzz tests to the step.
        verify: seconds for each kernel that is to be verified for all sizes; ``None`` where none is.
        process_servers: how many servers the processes of ``in_new_process`` are forked from; 0: each is an
            interpreter.
    """

    backends: tuple[str, ...]
    devices: tuple[str, ...]
    gpus: str
    timeout: float | None
    memory: int | None
    kernel_store: Path | None
    fuzz: Budget
    findings: Path
    fuzz_settings: tuple[str, ...]
    seed: int
    fuzz_seed: int | None
    known_failures: Path | None
    reports: Outputs
    audit: bool
    update: bool
    blame: str | None
    verify: float | None
    process_servers: int


class Option(NamedTuple):
    """A setting of the ini file, and a command line option unless it is for few runs.

    An option that a person has to ask for each time is no setting.

    Attributes:
        setting: the field of :class:`Settings`.
        ini: its name in the ini file; the command line option is spelled with dashes.
        help: for ``--help``.
        parse: returns the value for the text that was given, or for ``None``; what it raises follows the option's name.
        metavar: the placeholder in ``--help``; a switch has none.
        bare: the value of the option without one.
        is_value: of an option with ``bare``: whether the next word looks like its value.
        on_command_line: whether it is an option as well.
        in_ini_file: whether it is a setting as well.
        echo: whether the value is part of an error; the messages of others name it, or must not.
        checked_when_off: whether the value is checked even when no backend is under test: a typo is an error.
    """

    setting: str
    ini: str
    help: str
    parse: Callable[[str | None, pytest.Config], Any]
    metavar: str | None = None
    bare: str | None = None
    is_value: Callable[[str], object] = re.compile(r"\d+(\.\d+)?$").match
    on_command_line: bool = True
    in_ini_file: bool = True
    echo: bool = False
    checked_when_off: bool = False

    @property
    def flag(self) -> str:
        """How people write it: the option, or the setting where there is no option."""
        return "--" + self.ini.replace("_", "-") if self.on_command_line else self.ini


def _names_backends(word: str) -> bool:
    """Return whether ``word`` is what ``--regional-backend=`` takes, or was meant to be."""
    from pytest_regional.backends import registry

    known = registry.names()
    return all(re.fullmatch(r"[\w.]+:[\w.]+", name) or nearest(name, known) for name in word.split(","))


def _names(value: str | None, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    if not value:
        return default
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise RegionalValueError(f"{value}: an empty name in the comma-separated list")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise RegionalValueError(f"{value}: {', '.join(doubled)} is listed twice")
    return tuple(names)


def _backends(value: str | None, config: pytest.Config) -> tuple[str, ...]:
    from pytest_regional.backends import registry

    names = _names(value)
    for name in names:
        registry.resolve(name)
    return names


def _devices(value: str | None, config: pytest.Config) -> tuple[str, ...]:
    from pytest_regional.harness.devices.device import check_device_name

    names = _names(value, ("auto",))
    for name in names:
        check_device_name(name)
    return names


def _gpus(value: str | None, config: pytest.Config) -> str:
    from pytest_regional.plugin.workers import CHOICES

    if value and value not in CHOICES:
        raise RegionalValueError(f"expected {' or '.join(CHOICES)}")
    return value or CHOICES[0]


def _timeout(value: str | None, config: pytest.Config) -> float | None:
    from pytest_regional._base.limits import seconds_of

    return seconds_of(value) if value else None


def _memory(value: str | None, config: pytest.Config) -> int | None:
    from pytest_regional._base.limits import memory_of

    return memory_of(value) if value else None


def _kernel_store(value: str | None, config: pytest.Config) -> Path | None:
    """Return the store that the environment names: a setting was copied there before torch was imported."""
    from pytest_regional.harness.kernel_store.files import VARIABLE, chosen_folder

    try:
        return chosen_folder()
    except RegionalValueError as error:
        if value:
            raise
        raise pytest.UsageError(f"{VARIABLE}={os.environ[VARIABLE]}: {error}") from error


def _fuzz(value: str | None, config: pytest.Config) -> Budget:
    from pytest_regional._base.limits import Budget

    return Budget.parse(value or "ci")


def _findings(value: str | None, config: pytest.Config) -> Path:
    """Check a directory that was given now: the first finding may come late."""
    path: Path = config.rootpath / (value or DEFAULT_FINDINGS)
    if value:
        _require_writable(path, path)
    return path


def _fuzz_settings(value: str | None, config: pytest.Config) -> tuple[str, ...]:
    if not value or value == "none":
        return ()
    from pytest_regional.fuzz.settings import named_settings

    return tuple(setting.name for setting in named_settings(_names(value)))


def _seed(value: str | None, config: pytest.Config) -> int:
    if not value:
        return DEFAULT_SEED
    try:
        seed = int(value)
    except ValueError:
        seed = -1
    if not 0 <= seed <= MOST_SEED:
        raise RegionalValueError("expected a whole number from 0 to 2**63 - 1")
    return seed


def _known_failures(value: str | None, config: pytest.Config) -> Path | None:
    return config.rootpath / value if value else None


def _reports(value: str | None, config: pytest.Config) -> Outputs:
    """Check that the reports can be written, before hours are spent on them."""
    from pytest_regional.report.outputs import outputs_of

    outputs = outputs_of(value or "", config.rootpath, os.environ)
    for path in outputs.files:
        if path.is_dir():
            raise RegionalValueError(f"{path} is a directory: with a slash at its end, it gets what failed tests leave")
        _require_writable(path, path.parent)
    for path in outputs.directories:
        _require_writable(path, path)
    return outputs


def _blame(value: str | None, config: pytest.Config) -> str | None:
    from pytest_regional.harness.blame.culprit import FollowUp

    if value:
        FollowUp.of(value)
    return value or None


def _verify(value: str | None, config: pytest.Config) -> float | None:
    from pytest_regional._base.limits import seconds_of
    from pytest_regional.harness.devices.emulated import missing_solver

    if not value:
        return None
    seconds = seconds_of(value)
    if missing_solver():
        raise RegionalValueError(missing_solver())
    return seconds


def _process_servers(value: str | None, config: pytest.Config) -> int:
    if value in (None, "", "spawn"):
        return 0
    found = re.fullmatch(r"forkserver(?::(\d+))?", str(value))
    count = int(found[1] or 1) if found else 0
    if not 1 <= count <= MOST_SERVERS:
        raise RegionalValueError(f"expected spawn, forkserver, or forkserver:N with N from 1 to {MOST_SERVERS}")
    from pytest_regional.harness.fork_server import missing_for_fork_server

    if missing_for_fork_server():
        raise RegionalValueError(missing_for_fork_server())
    return count


def _audit(given: Any, config: pytest.Config) -> bool:
    return bool(given)


def _update(given: Any, config: pytest.Config) -> bool:
    """Refuse to write where no one reviews what is written, and where no test could."""
    if given and os.environ.get("CI"):
        raise RegionalValueError(
            "refused where the environment has CI set: goldens are written by people, reviewed and committed"
        )
    if given and not is_requested(config):
        raise RegionalValueError("no test runs without a backend under test: give --regional-backend as well")
    return bool(given)


def _require_writable(path: Path, folder: Path) -> None:
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise RegionalValueError(f"{path} cannot be written: {existing} is not a writable directory")


OPTIONS = (
    Option(
        "backends",
        "regional_backend",
        "Run the tests marked regional_compile, once for each of these comma-separated backends: reference (the "
        "default), torch, inductor, aot_eager, an entry point of group pytest_regional.backends, a name that "
        "torch.compile knows, or package.module:attribute. 'pytest-regional backends' lists them.",
        _backends,
        metavar="NAMES",
        bare=DEFAULT_BACKEND,
        is_value=_names_backends,
    ),
    Option(
        "devices",
        "regional_device",
        "Devices to test on, comma-separated: auto (the default: cuda if usable, else cpu), cpu, cuda, cuda-emulated "
        "(an H200; cuda-emulated:a100 and others).",
        _devices,
        metavar="DEVICES",
        checked_when_off=True,
    ),
    Option(
        "timeout",
        "regional_timeout",
        "Time limit in seconds for each of setup, call and teardown of a marked test. A test that exceeds it fails "
        "with the stacks of all threads, and the run continues.",
        _timeout,
        metavar="S",
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "fuzz",
        "regional_fuzz",
        "Budget of each fuzz test: a number of programs (500), a time (30s, 10m, 2h), or a profile: ci (a few, the "
        "same in every run; the default) or nightly (half an hour).",
        _fuzz,
        metavar="BUDGET",
        checked_when_off=True,
    ),
    Option(
        "findings",
        "regional_findings",
        "Directory of fuzz findings. New ones are saved here; ones already present do not fail a test (default: "
        f"{DEFAULT_FINDINGS}).",
        _findings,
        metavar="DIR",
    ),
    Option(
        "seed",
        "regional_seed",
        "Seed of the random generators of every marked test (default: a fixed one).",
        _seed,
        metavar="N",
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "known_failures",
        "regional_known_failures",
        "File of known failures of the backends under test, one per line: 'backend | test | reason | link'.",
        _known_failures,
        metavar="FILE",
    ),
    Option(
        "reports",
        "regional_report",
        "What to write the results to, comma-separated: FILE.html to look at, FILE.json for 'pytest-regional merge' "
        "and other programs, FILE.md, FILE.sarif (findings), FILE.codequality.json (GitLab's form), "
        "DIR/ (of each failed test its traces and generated code), github (annotations and the summary of a job), "
        "gitlab (gl-code-quality-report.json). GitHub and GitLab jobs get the last two by themselves; 'none' is "
        "neither.",
        _reports,
        metavar="FILES",
    ),
    Option(
        "audit",
        "regional_audit",
        "Also run tests for unsupported capabilities; an unexpected pass is a failure.",
        _audit,
    ),
    Option(
        "update",
        "regional_update",
        "Write goldens in place of comparing with them: new and changed ones of tests that pass; those that no test "
        "uses are removed. Refused where the environment has CI set.",
        _update,
        in_ini_file=False,
        checked_when_off=True,
    ),
    Option(
        "blame",
        "regional_blame",
        "How far a failure is followed up: 'off', 'region' (default: of a failed comparison with eager, to the "
        "region), or 'deep' (of any failed test, to the layer, pass, rewrite, lowering, fusion or stage of "
        "the backend; the default for findings of fuzz tests). A search takes up to 60 seconds of CPU time; 'deep:300' "
        "allows 300.",
        _blame,
        metavar="DEPTH",
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "verify",
        "regional_verify",
        "Verify the Triton kernels that tests generate for an emulated GPU (--regional-device=cuda-emulated), for all "
        "sizes that the guards allow: accesses in bounds, no races, every output element written. Values are not "
        "verified. A test with a kernel that is refuted fails. S is the limit for each kernel, in seconds of processor "
        "time (default: 20). Needs pytest-regional[verify].",
        _verify,
        metavar="S",
        bare="20",
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "process_servers",
        "regional_processes",
        "How processes of in_new_process start: 'spawn' (default: each is a new interpreter, which imports torch), "
        "'forkserver' (forked from a server that has imported torch, unless that would make a difference), or "
        "'forkserver:N' (from N servers in turns, each with a hash seed of its own).",
        _process_servers,
        metavar="HOW",
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "gpus",
        "regional_gpus",
        "GPUs visible to each xdist worker: 'one' (default, round-robin over CUDA_VISIBLE_DEVICES or all GPUs) or "
        "'all'.",
        _gpus,
        on_command_line=False,
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "memory",
        "regional_memory",
        "Memory that each of setup, call and teardown of a marked test may allocate (8G, 500M) beyond what the process "
        "has. Larger allocations fail, and so does the test; the run continues. Linux.",
        _memory,
        on_command_line=False,
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "kernel_store",
        "regional_kernel_store",
        "Directory that keeps compiled kernels between tests, workers and runs, or 'off' (default: "
        "pytest-regional/kernels in the user's cache directory). Graph caches are always fresh for each test.",
        _kernel_store,
        on_command_line=False,
        echo=True,
    ),
    Option(
        "fuzz_settings",
        "regional_fuzz_settings",
        "Compiler settings that fuzz tests draw, comma-separated: names of docs/fuzzing-settings.md "
        "(inductor.max_fusion_size), layers (functorch), 'all' or 'none' (default). Half of the programs are then "
        "compiled under one or several of them.",
        _fuzz_settings,
        on_command_line=False,
        echo=True,
        checked_when_off=True,
    ),
)

_BY_SETTING = {option.setting: option for option in OPTIONS}


def add_options(parser: pytest.Parser) -> None:
    """Register every option and setting."""
    group = parser.getgroup("regional", "regional compilation (pytest-regional)")
    for option in OPTIONS:
        if not option.on_command_line:
            pass
        elif option.metavar is None:
            group.addoption(option.flag, action="store_true", default=None, help=option.help)
        elif option.bare is not None:
            group.addoption(option.flag, nargs="?", const=option.bare, metavar=option.metavar, help=option.help)
        else:
            group.addoption(option.flag, metavar=option.metavar, help=option.help)
        if option.in_ini_file:
            parser.addini(option.ini, option.help, type=_ini_type(option), default=None)


def _ini_type(option: Option) -> Literal["bool", "string"]:
    return "bool" if option.on_command_line and option.metavar is None else "string"


def give_bare_options_their_values(arguments: list[str]) -> bool:
    """Rewrite a bare ``--regional-backend`` to ``--regional-backend=reference``, and others like it, in place.

    argparse cannot tell ``--regional-backend suites`` (a path) from ``--regional-backend torch`` (a value); with ``=``
    there is no doubt. A word is the value when no path has that name and it looks like one. Returns whether
    anything changed.
    """
    bare = {option.flag: option for option in OPTIONS if option.bare is not None}
    changed = False
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        option = bare.get(argument)
        if option is not None:
            word = arguments[index + 1] if index + 1 < len(arguments) else ""
            is_value = bool(word and option.is_value(word) and not os.path.lexists(word))
            arguments[index : index + 1 + is_value] = [f"{argument}={word if is_value else option.bare}"]
            changed = True
    return changed


def is_requested(config: pytest.Config, namespace: argparse.Namespace | None = None) -> bool:
    """Return whether a backend is under test; ``namespace`` holds the options before pytest is configured."""
    option = getattr(namespace or config.option, "regional_backend", None)
    return bool(option or config.getini("regional_backend"))


def text_of(config: pytest.Config, setting: str) -> Any:
    """Return what was given for ``setting``, unparsed: the option, else the ini file's value, else ``None``.

    Raises:
        pytest.UsageError: an option with an empty value.
    """
    option = _BY_SETTING[setting]
    given = getattr(config.option, option.ini, None)
    if given == "":
        # Most often a variable that a script forgot to set.
        raise pytest.UsageError(f"{option.flag}= has no value: give one, or leave the option out")
    return config.getini(option.ini) if given is None and option.in_ini_file else given


def resolve(config: pytest.Config) -> Settings:
    """Parse options, ini file and defaults.

    Raises:
        pytest.UsageError: a value that cannot be used; the message names the option and the valid values.
    """
    values = {option.setting: _parsed(config, option) for option in OPTIONS}
    if values["verify"] is not None and not _has_verified_kernels(values["devices"]):
        raise pytest.UsageError(
            "--regional-verify verifies Triton kernels of an emulated GPU: give --regional-device=cuda-emulated as well"
        )
    _require_usable(values["devices"])
    same_programs = text_of(config, "seed") or values["fuzz"].fixed or os.environ.get("CI")
    return Settings(**values, fuzz_seed=values["seed"] if same_programs else None)


def check_values(config: pytest.Config) -> None:
    """Check the given values while no backend is under test: a typo is an error even where it has no effect.

    Raises:
        pytest.UsageError: as :func:`resolve`.
    """
    for option in OPTIONS:
        if option.checked_when_off and text_of(config, option.setting) is not None:
            _parsed(config, option)


def _parsed(config: pytest.Config, option: Option) -> Any:
    text = text_of(config, option.setting)
    try:
        return option.parse(text, config)
    except (RegionalError, ValueError) as error:
        given = f"={shown(text)}" if option.echo else ""
        raise pytest.UsageError(f"{option.flag}{given}: {error}") from error


def require_torch() -> None:
    """Check that torch is installed; it is not imported.

    Raises:
        pytest.UsageError: it is not.
    """
    try:
        found = importlib.util.find_spec("torch") is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise pytest.UsageError(
            "--regional-backend needs torch, which is not installed: install torch>=2.11, or leave the option out"
        )


def _has_verified_kernels(devices: tuple[str, ...]) -> bool:
    from pytest_regional.harness.devices.device import EMULATED, kind_of_device

    return any(kind_of_device(name) == EMULATED for name in devices)


def _require_usable(devices: tuple[str, ...]) -> None:
    from pytest_regional.harness.devices.device import usable_device

    if "cuda" in devices:
        try:
            usable_device("cuda")
        except RegionalValueError as error:
            raise pytest.UsageError(f"--regional-device: {error}") from error
