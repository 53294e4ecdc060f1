"""``backends``: which backends there are, where each comes from, and what it disclaims."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import printable
from pytest_regional.backends import registry
from pytest_regional.backends.registry import ProjectFile
from pytest_regional.plugin import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        f"{parser.description} Backends of regional_backend in the ini file of this directory are listed, too."
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="more backends, by any name that --regional-backend takes"
    )


def run(asked: argparse.Namespace) -> int:
    """List the backends as the run of pytest in this directory would find them; return the exit status."""
    return int(pytest.main([], plugins=[_Listing(asked.names)]))


class _Listing:
    """Prints in place of a run: pytest has then found its ini file and loaded the conftest files of the directory."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        """Print the list."""
        of_ini = [name.strip() for name in (options.text_of(config, "backends") or "").split(",") if name.strip()]
        try:
            for line in _lines([*of_ini, *self._names], config.rootpath):
                print(printable(line))
        except RegionalValueError as error:
            raise pytest.UsageError(str(error)) from error
        return 0


def _lines(named: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield a paragraph for each backend that is installed, and for each of ``named``.

    The ``pyproject.toml`` in ``folder`` may disclaim capabilities.
    """
    project = ProjectFile.read(folder)
    for name in dict.fromkeys((*registry.names(), *named)):
        yield f"{name}  ({registry.origin(name)})"
        try:
            spec = project.applied_to(registry.resolve(name))
        except (registry.UnknownBackendError, registry.BackendImportError) as error:
            yield f"    cannot be used: {error}"
            continue
        support = {capability: spec.capabilities.get(capability) for capability in spec.capabilities.names()}
        absent = {capability: found.reason for capability, found in support.items() if not found}
        yield f"    claims {len(support) - len(absent)} of {len(support)} capabilities"
        yield from (f"    - {capability}: {reason}" for capability, reason in absent.items())
