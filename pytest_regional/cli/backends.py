"""``backends``: which backends there are, where each comes from, and what it disclaims."""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_regional._base.text import plural, printable
from pytest_regional.backends import registry
from pytest_regional.backends.registry import ProjectFile, ProjectFileError
from pytest_regional.cli.targets import UsageError
from pytest_regional.plugin import options

_HELP = "list the backends that can be tested, where each comes from, and what it disclaims"


def add_command(commands: Any) -> None:
    """Add ``backends`` to the commands of a parser."""
    parser = commands.add_parser(
        "backends",
        help=_HELP,
        description=f"{_HELP.capitalize()}. Backends of regional_backend in the ini file of this directory are listed, "
        "too.",
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="more backends, by any name that --regional-backend takes"
    )
    parser.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """List the backends as the run of pytest in this directory would find them; return the exit status."""
    return int(pytest.main([], plugins=[_Listing(asked.names)]))


class _Listing:
    """Prints in place of a run: pytest has then found its ini file and loaded the conftest files of the directory."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int:
        """Print the list.

        Raises:
            pytest.UsageError: the section of pyproject.toml is not understood.
        """
        of_ini = [name.strip() for name in (options.text_of(config, "backends") or "").split(",") if name.strip()]
        try:
            for line in lines([*of_ini, *self._names], config.rootpath):
                print(printable(line))
        except ProjectFileError as error:
            raise pytest.UsageError(str(error)) from error
        return 0


def lines(named: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield a paragraph for each backend that is installed, and for each of ``named``.

    Args:
        named: names that ``--regional-backend`` takes.
        folder: the directory of the ``pyproject.toml`` that may disclaim capabilities.

    Raises:
        ProjectFileError: its section is not understood.
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


_NEW_BACKEND_HELP = "write a small package with a backend of your own, its tests and its CI file"
_TEMPLATES = Path(__file__).parent

#: Templates, and the files that they become.
FILES = {
    "README.md.j2": "README.md",
    "pyproject.toml.j2": "pyproject.toml",
    "known_failures.txt.j2": "known-failures.txt",
    "package.py.j2": "{name}/__init__.py",
    "compiler.py.j2": "{name}/compiler.py",
    "conformance.py.j2": "{name}/conformance.py",
    "tests.py.j2": "tests/test_{name}.py",
    "workflow.yml.j2": ".github/workflows/tests.yml",
}


def add_new_backend(commands: Any) -> None:
    """Add ``new-backend`` to the commands of a parser."""
    parser = commands.add_parser(
        "new-backend",
        help=_NEW_BACKEND_HELP,
        description=f"{_NEW_BACKEND_HELP.capitalize()}. As written it finds annotated regions and runs them as they "
        f"are; its tests and the conformance suites pass. Put your compiler there. Nothing that exists is overwritten.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new or empty folder")
    parser.add_argument("--name", help="name of the package and of the backend (default: that of the folder)")
    parser.add_argument("--whole-graph", action="store_true", help="for a compiler of graphs, not of annotated regions")
    parser.set_defaults(run=_new_backend)


def _new_backend(asked: argparse.Namespace) -> int:
    folder: Path = asked.folder
    name = asked.name or re.sub(r"[-. ]", "_", folder.resolve().name.lower())
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} cannot be the name of a package; give another with --name, such as my_backend.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there and not empty; give a new folder.")
    try:
        written = write(folder, name, whole_graph=asked.whole_graph)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}.") from error
    print(f"{folder}: {plural(len(written), 'file')}. Now: cd {folder} && python -m pytest")
    return 0


def write(folder: Path, name: str, *, whole_graph: bool = False) -> list[Path]:
    """Write the package ``name``, of a compiler of regions or of graphs, into ``folder``; return the files."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    written = []
    for template, target in FILES.items():
        path = folder / target.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(environment.get_template(template).render(name=name, whole_graph=whole_graph), encoding="utf-8")
        written.append(path)
    return written


__all__ = ["FILES", "add_command", "add_new_backend", "write"]
