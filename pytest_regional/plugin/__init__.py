"""What pytest calls: the hooks that are always there, and the list of those of a run with a backend under test.

Imports torch only in a run with a backend under test, and not in a process that starts xdist workers. Each hook is a
few lines that call the module named in its import. :func:`pytest_regional.plugin.hooks.hooks_of_a_run` lists the
classes with the other hooks; nothing imports this module.

* ``options``: all options; ``settings``: parses them; ``marks``, ``fixtures``: what tests use; ``environment``: before
  torch.
* ``session``: ``RegionalSession``, the backends under test; ``collection``: an item for each backend and device.
* ``hooks``: facts and reports of the run, also in a process that starts xdist workers.
* ``running``: a test from its start to its end, where tests run; ``phases``: its limits; ``blame``, ``goldens``,
  ``evidence``: what follows; ``property_tests``: Hypothesis's.
* ``endings``: what ends a run early; ``workers``: pytest-xdist; ``written``: files of a run.

May import: ``report``, ``fuzz``, ``harness``, ``backends``, ``_torch``, ``_base``.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from collections.abc import Generator
from typing import Any

import pytest

from pytest_regional._base.stash import PROBLEM, SESSION
from pytest_regional.plugin import fixtures, options


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register options and settings."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Set what must be set before any conftest file can import torch."""
    if options.give_bare_options_their_values(args):
        early_config.known_args_namespace = parser.parse_known_args(args, namespace=copy.copy(early_config.option))
    if options.is_requested(early_config, early_config.known_args_namespace):
        from pytest_regional.plugin import environment

        environment.prepare(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures and marks; with a backend under test, parse the options and register the other hooks."""
    # Not `pytest_plugins`: for each name there pytest looks through all packages that are installed, which takes 10 ms.
    config.pluginmanager.register(fixtures, fixtures.__name__)
    for line in fixtures.MARKER_LINES:
        config.addinivalue_line("markers", line)
    if options.is_requested(config):
        if not _is_torch_installed():
            raise pytest.UsageError(
                "--regional-backend needs torch, which is not installed: install torch>=2.11, or leave the option out"
            )
        from pytest_regional.plugin import hooks

        for name, plugin in hooks.hooks_of_a_run(config):
            config.pluginmanager.register(plugin, name)
    elif options.given_when_off(config):
        from pytest_regional.plugin import settings

        settings.check_given(config)


def _is_torch_installed() -> bool:
    """Look for torch without importing it: the process that starts the workers of pytest-xdist never imports it."""
    with contextlib.suppress(ModuleNotFoundError):  # a finder of modules may raise it
        return importlib.util.find_spec("torch") is not None
    return False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check every mark; skip marked tests when no backend is under test."""
    if any(item.get_closest_marker("regional_compile") for item in items):
        from pytest_regional.plugin import collection

        collection.prepare(items, config.stash.get(SESSION, None))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Report a usage error that was found on an xdist worker."""
    if PROBLEM in item.stash:
        pytest.fail(item.stash[PROBLEM], pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a marked test once for each backend and device."""
    if SESSION in metafunc.config.stash and metafunc.definition.get_closest_marker("regional_compile"):
        from pytest_regional.plugin import collection

        collection.parametrize(metafunc, metafunc.config.stash[SESSION])


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Print what is under test."""
    return config.stash[SESSION].header() if SESSION in config.stash else []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Have the line of a test that an error of this package ended begin with the name of the error's class."""
    report = yield
    module = f"{type(call.excinfo.value).__module__}." if call.excinfo is not None else ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if module.startswith("pytest_regional.") and crash is not None:
        crash.message = crash.message.removeprefix(module)
    return report
