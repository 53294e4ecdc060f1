"""What pytest calls: the hooks that are always there, and the list of those of a run with a backend under test.

Imports torch in a run with a backend under test alone. Each hook is a few lines that call the module named in its
import. :func:`_hooks_of_a_run` lists the classes with the other hooks; nothing imports this module.

* ``options``: all options, as ``Settings``; ``marks``, ``fixtures``: what tests use; ``environment``: before torch.
* ``session``: ``RegionalSession``, the backends under test; ``collection``: an item for each backend and device.
* ``hooks``: a test from its start to its end; ``phases``: its limits; ``blame``, ``goldens``, ``evidence``: what
  follows; ``property_tests``: Hypothesis's.
* ``endings``: what ends a run early; ``workers``: pytest-xdist; ``written``: files of a run.

May import: ``report``, ``fuzz``, ``harness``, ``backends``, ``_torch``, ``_base``.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._base.stash import PROBLEM, SESSION
from pytest_regional.plugin import fixtures, marks
from pytest_regional.plugin import options as options

if TYPE_CHECKING:
    from pytest_regional.plugin.session import RegionalSession


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register options and settings."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Set what must be set before any conftest file can import torch."""
    if options.give_bare_options_their_values(args):
        import copy

        early_config.known_args_namespace = parser.parse_known_args(args, namespace=copy.copy(early_config.option))
    if options.is_requested(early_config, early_config.known_args_namespace):
        from pytest_regional.plugin import environment

        environment.prepare(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures and marks; with a backend under test, parse the options and register the other hooks."""
    # Not `pytest_plugins`: for each name there pytest looks through all packages that are installed, which takes 10 ms.
    config.pluginmanager.register(fixtures, fixtures.__name__)
    for line in marks.MARKER_LINES:
        config.addinivalue_line("markers", line)
    if not options.is_requested(config):
        options.check_values(config)
        return
    from pytest_regional.plugin.session import RegionalSession
    from pytest_regional.plugin.workers import starts_workers

    options.require_torch()
    if not starts_workers(config):
        importlib.import_module("torch")
    session = RegionalSession(config, options.resolve(config))
    config.stash[SESSION] = session
    for name, hooks in _hooks_of_a_run(session):
        config.pluginmanager.register(hooks, name)


def _hooks_of_a_run(session: RegionalSession) -> Iterator[tuple[str, object]]:
    """Yield names and objects of the hooks of a run with a backend under test.

    pytest calls those that are registered later first: a wrapper is around all that stand above it.
    """
    from pytest_regional.plugin.endings import EndingHooks
    from pytest_regional.plugin.goldens import GoldenHooks
    from pytest_regional.plugin.hooks import RunHooks
    from pytest_regional.plugin.phases import PhaseHooks
    from pytest_regional.plugin.workers import WorkerHooks

    endings, workers = EndingHooks(session), WorkerHooks(session)
    goldens = GoldenHooks(session, endings, workers)
    # The harness of each marked test, checks at its end, facts, reports.
    yield "regional-session", RunHooks(session, endings, workers, goldens)
    # Goldens: which are used, and writing them.
    yield "regional-goldens", goldens
    # Workers of pytest-xdist: seeds, GPUs, replacements, reports that cannot be sent.
    yield "regional-workers", workers
    # Limits on setup, call and teardown, and the heartbeat file that a crash leaves.
    yield "regional-phases", PhaseHooks(session)
    # Ends of the run before its time: signals, os._exit, forks.
    yield "regional-endings", endings


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
    """Shorten the line of a test that an error of this package ended."""
    report = yield
    if call.excinfo is not None and str(type(call.excinfo.value).__module__).startswith("pytest_regional."):
        from pytest_regional.report import terminal

        terminal.without_module(report, call.excinfo.value)
    return report
