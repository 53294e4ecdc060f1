"""pytest hooks only: options, ini, markers, collection, xdist, summary. Imports no torch.

Each hook is a few lines that call a session object or a module named in the import; read those for the how.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

from pytest_regional import _config, _fixtures, _marks
from pytest_regional._stash import PROBLEM, SESSION


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register options and ini twins."""
    _config.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Settle what must be settled before any conftest can import torch."""
    if _config.give_bare_option_its_value(args):
        import copy

        early_config.known_args_namespace = parser.parse_known_args(args, namespace=copy.copy(early_config.option))
    if _config.is_requested(early_config, early_config.known_args_namespace):
        from pytest_regional import _environment

        _environment.prepare(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Bring the fixtures, describe the marks; resolve the options when the plugin is on."""
    # Not `pytest_plugins`: for each name there pytest looks through all packages that are installed, which takes 10 ms.
    config.pluginmanager.register(_fixtures, _fixtures.__name__)
    for line in _marks.MARKER_LINES:
        config.addinivalue_line("markers", line)
    if _config.is_requested(config):
        from pytest_regional._session import RegionalSession

        session = RegionalSession(config, _config.resolve(config))
        config.stash[SESSION] = session
        for name, hooks in session.hooks():
            config.pluginmanager.register(hooks, name)
    elif _config.any_given(config):
        _config.check_values(config)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Print the names of backends where that is asked for; nothing is collected then."""
    if not _config.list_backends_is_asked(config):
        return None
    from pytest_regional._text import encodable
    from pytest_regional.backends.project_file import ProjectFileError
    from pytest_regional.listing import lines

    named = (config.getoption("regional_backend") or config.getini("regional_backend") or "").split(",")
    try:
        for line in lines([name.strip() for name in named if name.strip()], config.rootpath):
            print(encodable(line, sys.stdout.encoding))
    except ProjectFileError as error:
        raise pytest.UsageError(str(error)) from error
    return 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check every mark; skip marked tests when the plugin is off."""
    if any(item.get_closest_marker("regional_compile") for item in items):
        from pytest_regional import _collection

        _collection.prepare(items, config.stash.get(SESSION, None))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tell a usage error that was found on an xdist worker."""
    if PROBLEM in item.stash:
        pytest.fail(item.stash[PROBLEM], pytrace=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a marked test once for each backend and device."""
    if SESSION in metafunc.config.stash and metafunc.definition.get_closest_marker("regional_compile"):
        from pytest_regional import _collection

        _collection.parametrize(metafunc, metafunc.config.stash[SESSION])


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is under test."""
    return config.stash[SESSION].header() if SESSION in config.stash else []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Let the facts of a marked test ride on its report."""
    report = yield
    if call.excinfo is not None and str(type(call.excinfo.value).__module__).startswith("pytest_regional."):
        from pytest_regional.report import terminal

        terminal.without_module(report, call.excinfo.value)
    if SESSION in item.config.stash:
        item.config.stash[SESSION].attach_facts(item, report)
    return report
