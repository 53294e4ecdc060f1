"""One frozen dataclass of resolved options; the only reader of pytest's options, ini file and environment.

Precedence, weakest first: default, ini file, command line, marker (the marker's part is in ``marks``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

DEFAULT_BACKEND = "reference"
OFF_REASON = "needs --regional-backend (or regional_backend in the ini file): regional compilation tests are off"


@dataclass(frozen=True)
class Option:
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
        "default), torch, inductor, aot_eager, an entry point of group pytest_regional.backends, or "
        "package.module:attribute.",
        metavar="NAMES",
        nargs="?",
    ),
    Option(
        "--regional-device",
        "regional_device",
        "Devices to test on, comma-separated: auto (the default: cuda if usable, else cpu), cpu, cuda.",
        metavar="DEVICES",
    ),
    Option(
        "--regional-timeout",
        "regional_timeout",
        "Seconds after which a marked test that hangs fails with the stacks of all threads. The run goes on.",
        metavar="S",
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


def _ini_type(option: Option) -> Literal["bool", "string"]:
    return "bool" if option.switch else "string"


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


@dataclass(frozen=True)
class Settings:
    """The resolved options of one run.

    Attributes:
        backends: names of the backends under test; empty when the plugin is off.
        devices: names of the devices under test.
        timeout: seconds, or ``None``.
        seed: of the run.
        known_failures: the adopter's file, or ``None``.
        audit: also run what is disclaimed.
    """

    backends: tuple[str, ...]
    devices: tuple[str, ...]
    timeout: float | None
    seed: int
    known_failures: Path | None
    audit: bool

    @property
    def active(self) -> bool:
        """Whether marked tests run at all."""
        return bool(self.backends)


def is_requested(config: pytest.Config, namespace: argparse.Namespace | None = None) -> bool:
    """Say, before options are resolved, whether a backend was asked for."""
    option = getattr(namespace or config.option, "regional_backend", None)
    return bool(option or config.getini("regional_backend"))


def resolve(config: pytest.Config) -> Settings:
    """Read options, ini file and defaults.

    Raises:
        pytest.UsageError: a value that cannot be used; the message names the option and the valid values.
    """
    from pytest_regional.harness.regional import DEFAULT_SEED

    known = _value(config, "regional_known_failures")
    return Settings(
        backends=_backends(config),
        devices=_devices(config),
        timeout=_timeout(_value(config, "regional_timeout")),
        seed=_seed(_value(config, "regional_seed"), DEFAULT_SEED),
        known_failures=(config.rootpath / known) if known else None,
        audit=bool(_value(config, "regional_audit")),
    )


def _value(config: pytest.Config, name: str) -> Any:
    option = config.getoption(name)
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


def _devices(config: pytest.Config) -> tuple[str, ...]:
    from pytest_regional.harness.device import DeviceError, check_device_name

    names = _names(config, "regional_device", ("auto",))
    for name in names:
        try:
            check_device_name(name)
        except DeviceError as error:
            raise pytest.UsageError(f"--regional-device: {error}") from error
    return names


def _timeout(value: Any) -> float | None:
    if value in (None, ""):
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise pytest.UsageError(f"--regional-timeout={value}: expected a number of seconds above 0, such as 120 or 2.5")
    return seconds


def _seed(value: Any, default: int) -> int:
    if value in (None, ""):
        return default
    try:
        return int(value)
    except ValueError:
        raise pytest.UsageError(f"--regional-seed={value}: expected a whole number") from None
