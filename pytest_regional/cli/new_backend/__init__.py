"""``new-backend``: a small package with a backend that works, its tests and its CI file."""

from __future__ import annotations

import argparse
import keyword
import re
from pathlib import Path

import jinja2

from pytest_regional._base.text import plural
from pytest_regional.cli.targets import UsageError

#: Templates, and the files that they become.
_FILES = {
    "README.md.j2": "README.md",
    "pyproject.toml.j2": "pyproject.toml",
    "known_failures.txt.j2": "known-failures.txt",
    "package.py.j2": "{name}/__init__.py",
    "compiler.py.j2": "{name}/compiler.py",
    "conformance.py.j2": "{name}/conformance.py",
    "tests.py.j2": "tests/test_{name}.py",
    "workflow.yml.j2": ".github/workflows/tests.yml",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        f"{parser.description} As written it finds annotated regions and runs them as they are; its tests and the "
        "conformance suites pass. Put your compiler there. Nothing that exists is overwritten."
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new or empty folder")
    parser.add_argument("--name", help="name of the package and of the backend (default: that of the folder)")
    parser.add_argument("--whole-graph", action="store_true", help="for a compiler of graphs, not of annotated regions")


def run(asked: argparse.Namespace) -> int:
    """Write the package; return the exit status."""
    folder: Path = asked.folder
    name = asked.name or re.sub(r"[-. ]", "_", folder.resolve().name.lower())
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{name!r} cannot be the name of a package; give another with --name, such as my_backend.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there and not empty; give a new folder.")
    templates = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=templates, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    try:
        for template, target in _FILES.items():
            path = folder / target.format(name=name)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = environment.get_template(template).render(name=name, whole_graph=asked.whole_graph)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}.") from error
    print(f"{folder}: {plural(len(_FILES), 'file')}. Now: cd {folder} && python -m pytest")
    return 0
