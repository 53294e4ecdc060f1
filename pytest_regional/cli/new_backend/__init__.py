"""``new-backend``: a small package with a backend that works, its tests and its CI file."""

from __future__ import annotations

import argparse
import keyword
import re
from pathlib import Path
from typing import Any

from pytest_regional._base.text import plural
from pytest_regional.cli.targets import UsageError

_HELP = "write a small package with a backend of your own, its tests and its CI file"
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


def add_command(commands: Any) -> None:
    """Add ``new-backend`` to the commands of a parser."""
    parser = commands.add_parser(
        "new-backend",
        help=_HELP,
        description=f"{_HELP.capitalize()}. As written it finds annotated regions and runs them as they are; its tests "
        f"and the conformance suites pass. Put your compiler there. Nothing that exists is overwritten.",
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


__all__ = ["FILES", "add_command", "write"]
