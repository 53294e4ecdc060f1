"""The options of the plugin: one table, and the only place that reads them. Imported in every pytest run: stays cheap.

Each option has a setting in the ini file, except one that a person has to ask for each time; those that few runs change
are there alone. Before conftest files are loaded :func:`is_requested` and :func:`text_of` read what must be known by
then; ``settings`` parses all of them, once, when pytest is configured.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from pytest_regional._base.text import nearest

if TYPE_CHECKING:
    import argparse

DEFAULT_FINDINGS = "regional-findings"
OFF_REASON = "needs --regional-backend (or regional_backend in the ini file): regional compilation tests are off"


class Option(NamedTuple):
    """A setting of the ini file, and a command line option unless it is for few runs.

    An option that a person has to ask for each time is no setting.

    Attributes:
        setting: the field of :class:`Settings`.
        ini: its name in the ini file; the command line option is spelled with dashes.
        help: for ``--help``.
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


OPTIONS = (
    Option(
        "backends",
        "regional_backend",
        "Run the tests marked regional_compile, once for each of these comma-separated backends: reference (the "
        "default), torch, inductor, aot_eager, an entry point of group pytest_regional.backends, a name that "
        "torch.compile knows, or package.module:attribute. 'pytest-regional backends' lists them.",
        metavar="NAMES",
        bare="reference",
        is_value=_names_backends,
    ),
    Option(
        "devices",
        "regional_device",
        "Devices to test on, comma-separated: auto (the default: cuda if usable, else cpu), cpu, cuda, cuda-emulated "
        "(an H200; cuda-emulated:a100 and others).",
        metavar="DEVICES",
        checked_when_off=True,
    ),
    Option(
        "timeout",
        "regional_timeout",
        "Time limit in seconds for each of setup, call and teardown of a marked test. A test that exceeds it fails "
        "with the stacks of all threads, and the run continues.",
        metavar="S",
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "fuzz",
        "regional_fuzz",
        "Budget of each fuzz test: a number of programs (500), a time (30s, 10m, 2h), or a profile: ci (a few, the "
        "same in every run; the default) or nightly (half an hour).",
        metavar="BUDGET",
        checked_when_off=True,
    ),
    Option(
        "findings",
        "regional_findings",
        "Directory of fuzz findings. New ones are saved here; ones already present do not fail a test (default: "
        f"{DEFAULT_FINDINGS}).",
        metavar="DIR",
    ),
    Option(
        "seed",
        "regional_seed",
        "Seed of the random generators of every marked test (default: a fixed one).",
        metavar="N",
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "known_failures",
        "regional_known_failures",
        "File of known failures of the backends under test, one per line: 'backend | test | reason | link'.",
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
        metavar="FILES",
    ),
    Option(
        "audit",
        "regional_audit",
        "Also run tests for unsupported capabilities; an unexpected pass is a failure.",
    ),
    Option(
        "update",
        "regional_update",
        "Write goldens in place of comparing with them: new and changed ones of tests that pass; those that no test "
        "uses are removed. Refused where the environment has CI set.",
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
        metavar="HOW",
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "gpus",
        "regional_gpus",
        "GPUs visible to each xdist worker: 'one' (default, round-robin over CUDA_VISIBLE_DEVICES or all GPUs) or "
        "'all'.",
        on_command_line=False,
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "memory",
        "regional_memory",
        "Memory that each of setup, call and teardown of a marked test may allocate (8G, 500M) beyond what the process "
        "has. Larger allocations fail, and so does the test; the run continues. Linux.",
        on_command_line=False,
        echo=True,
        checked_when_off=True,
    ),
    Option(
        "kernel_store",
        "regional_kernel_store",
        "Directory that keeps compiled kernels between tests, workers and runs, or 'off' (default: "
        "pytest-regional/kernels in the user's cache directory). Graph caches are always fresh for each test.",
        on_command_line=False,
        echo=True,
    ),
    Option(
        "fuzz_settings",
        "regional_fuzz_settings",
        "Compiler settings that fuzz tests draw, comma-separated: names of docs/fuzzing-settings.md "
        "(inductor.max_fusion_size), layers (functorch), 'all' or 'none' (default). Half of the programs are then "
        "compiled under one or several of them.",
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
        switch = option.on_command_line and option.metavar is None
        if switch:
            group.addoption(option.flag, action="store_true", default=None, help=option.help)
        elif option.bare is not None:
            group.addoption(option.flag, nargs="?", const=option.bare, metavar=option.metavar, help=option.help)
        elif option.on_command_line:
            group.addoption(option.flag, metavar=option.metavar, help=option.help)
        if option.in_ini_file:
            kind: Literal["bool", "string"] = "bool" if switch else "string"
            parser.addini(option.ini, option.help, type=kind, default=None)


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


def given_when_off(config: pytest.Config) -> list[Option]:
    """Return the options that were given, and are checked even when no backend is under test."""
    return [one for one in OPTIONS if one.checked_when_off and text_of(config, one.setting) is not None]


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
