"""The parsed options of a run. Each function here returns the value for the text that was given, or for ``None``."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._base.errors import RegionalError, RegionalValueError
from pytest_regional._base.limits import memory_of, seconds_of
from pytest_regional._base.text import DEFAULT_SEED, MOST_SEED, shown
from pytest_regional.harness.blame.culprit import FollowUp
from pytest_regional.harness.devices.device import EMULATED, check_device_name, device_under_test, kind_of_device
from pytest_regional.harness.fork_server import missing_for_fork_server
from pytest_regional.harness.options import HarnessOptions
from pytest_regional.plugin import options
from pytest_regional.plugin.options import Option

if TYPE_CHECKING:
    from pytest_regional.fuzz.budget import Budget
    from pytest_regional.report.outputs import Outputs

#: Each takes as much memory as a process that has imported torch.
MOST_SERVERS = 8


@dataclass(frozen=True, kw_only=True)
class Settings(HarnessOptions):
    """The parsed options of one run.

    Attributes:
        backends: names of the backends under test.
        devices: names of the devices under test.
        gpus: which GPUs each xdist worker sees: ``"one"`` or ``"all"``.
        timeout: seconds, or ``None``.
        memory: bytes that a test may allocate, or ``None``.
        kernel_store: the directory of compiled kernels, or ``None``.
        fuzz: the budget of each fuzz test; ``None`` without the package ``fuzz``.
        findings: the directory of fuzz findings.
        fuzz_settings: names of the compiler settings that fuzz tests draw.
        seed: of the run.
        fuzz_seed: of fuzz tests; ``None`` where each run draws a new one.
        known_failures: the adopter's file, or ``None``.
        reports: what results are written to.
        audit: also run tests for unsupported capabilities.
        update: whether goldens are written.
        process_servers: how many servers the processes of ``in_new_process`` are forked from; 0: each is an
            interpreter.
    """

    backends: tuple[str, ...]
    devices: tuple[str, ...]
    gpus: str
    timeout: float | None
    memory: int | None
    kernel_store: Path | None
    fuzz: Budget | None
    findings: Path
    fuzz_settings: tuple[str, ...]
    seed: int
    fuzz_seed: int | None
    known_failures: Path | None
    reports: Outputs
    audit: bool
    update: bool
    process_servers: int


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
    names = _names(value, ("auto",))
    for name in names:
        check_device_name(name)
    return names


def _gpus(value: str | None, config: pytest.Config) -> str:
    if value not in (None, "", "one", "all"):
        raise RegionalValueError("expected one or all")
    return value or "one"


def _kernel_store(value: str | None, config: pytest.Config) -> Path | None:
    """Return the store that the environment names: a setting was copied there before torch was imported."""
    from pytest_regional.harness.kernel_store.files import VARIABLE, chosen_folder

    try:
        return chosen_folder()
    except RegionalValueError as error:
        if value:
            raise
        raise pytest.UsageError(f"{VARIABLE}={os.environ[VARIABLE]}: {error}") from error


def _findings(value: str | None, config: pytest.Config) -> Path:
    """Check a directory that was given now: the first finding may come late."""
    path: Path = config.rootpath / (value or options.DEFAULT_FINDINGS)
    if value:
        _require_writable(path, path)
    return path


def _fuzz(value: str | None, config: pytest.Config) -> Budget | None:
    if not importlib.util.find_spec("pytest_regional.fuzz"):
        if value:
            raise RegionalValueError("needs the package pytest_regional.fuzz, which is not here")
        return None
    from pytest_regional.fuzz.budget import Budget  # an optional part

    return Budget.parse(value or "ci")


def _fuzz_settings(value: str | None, config: pytest.Config) -> tuple[str, ...]:
    if not value or value == "none":
        return ()
    from pytest_regional.fuzz.settings import named_settings  # an optional part

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
    if value:
        FollowUp.of(value)
    return value or None


def _verify(value: str | None, config: pytest.Config) -> float | None:
    if not value:
        return None
    seconds = seconds_of(value)
    from pytest_regional.harness.devices.emulated import missing_solver  # imports torch

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
    if missing_for_fork_server():
        raise RegionalValueError(missing_for_fork_server())
    return count


def _update(given: Any, config: pytest.Config) -> bool:
    """Refuse to write where no one reviews what is written, and where no test could."""
    if given and os.environ.get("CI"):
        raise RegionalValueError(
            "refused where the environment has CI set: goldens are written by people, reviewed and committed"
        )
    if given and not options.is_requested(config):
        raise RegionalValueError("no test runs without a backend under test: give --regional-backend as well")
    return bool(given)


def _require_writable(path: Path, folder: Path) -> None:
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise RegionalValueError(f"{path} cannot be written: {existing} is not a writable directory")


_PARSERS: dict[str, Callable[[Any, pytest.Config], Any]] = {
    "backends": _backends,
    "devices": _devices,
    "timeout": lambda value, config: seconds_of(value) if value else None,
    "fuzz": _fuzz,
    "findings": _findings,
    "seed": _seed,
    "known_failures": lambda value, config: config.rootpath / value if value else None,
    "reports": _reports,
    "audit": lambda given, config: bool(given),
    "update": _update,
    "blame": _blame,
    "verify": _verify,
    "process_servers": _process_servers,
    "gpus": _gpus,
    "memory": lambda value, config: memory_of(value) if value else None,
    "kernel_store": _kernel_store,
    "fuzz_settings": _fuzz_settings,
}


def resolve(config: pytest.Config) -> Settings:
    """Parse options, ini file and defaults.

    Raises:
        pytest.UsageError: a value that cannot be used; the message names the option and the valid values.
    """
    values = {option.setting: _parsed(config, option) for option in options.OPTIONS}
    if values["verify"] is not None and not any(kind_of_device(name) == EMULATED for name in values["devices"]):
        raise pytest.UsageError(
            "--regional-verify verifies Triton kernels of an emulated GPU: give --regional-device=cuda-emulated as well"
        )
    if "cuda" in values["devices"]:
        try:
            device_under_test("cuda")
        except RegionalValueError as error:
            raise pytest.UsageError(f"--regional-device: {error}") from error
    same_programs = options.text_of(config, "seed") or (values["fuzz"] and values["fuzz"].fixed) or os.environ.get("CI")
    return Settings(**values, fuzz_seed=values["seed"] if same_programs else None)


def check_given(config: pytest.Config) -> None:
    """Check the given values while no backend is under test: a typo is an error even where it has no effect."""
    for option in options.given_when_off(config):
        _parsed(config, option)


def _parsed(config: pytest.Config, option: Option) -> Any:
    text = options.text_of(config, option.setting)
    try:
        return _PARSERS[option.setting](text, config)
    except (RegionalError, ValueError) as error:
        given = f"={shown(text)}" if option.echo else ""
        raise pytest.UsageError(f"{option.flag}{given}: {error}") from error
