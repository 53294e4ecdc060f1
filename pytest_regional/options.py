"""The command line options and their ini twins. Imported in every pytest run: it must stay cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import argparse

    import pytest

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
