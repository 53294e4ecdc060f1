"""``findings``: what folders of findings hold."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_regional._base.documents import DocumentError
from pytest_regional._base.text import plural, printable
from pytest_regional.cli.targets import UsageError

if TYPE_CHECKING:
    from pytest_regional.fuzz.findings.folder import AnyFinding


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names findings."""
    parser.add_argument(
        "paths", metavar="DIR", nargs="+", type=Path, help="directory of findings, or one finding's .json"
    )


def checked(paths: Sequence[Path]) -> Sequence[Path]:
    """Return ``paths``, each of which is there; a folder holds findings."""
    from pytest_regional.fuzz.findings.folder import FindingsFolder  # it imports torch

    for path in paths:
        try:
            path.stat()
        except OSError as error:
            what = "is not there" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise UsageError(f"{path} {what}: give a directory of findings, or one finding's .json.") from error
        if path.is_dir() and not FindingsFolder(path).paths():
            raise UsageError(f"{path} holds no findings: a campaign writes them as NAME.json and NAME.py.")
    return paths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        f"{parser.description} A finding's own file is shown in full, with its program or sequence. Nothing that it "
        "holds is imported. Exit status 2: a file cannot be read; the others are listed."
    )
    add_paths(parser)
    parser.add_argument(
        "--merge",
        metavar="INTO",
        type=Path,
        help="copy the findings and crashes of all these directories into INTO, which keeps the smallest of each name",
    )


def run(asked: argparse.Namespace) -> int:
    """List the given findings; return the exit status."""
    from pytest_regional.fuzz.findings.folder import FindingsFolder

    if asked.merge is not None:
        return _merge(asked.paths, asked.merge)
    listed = unreadable = 0
    for path in checked(asked.paths):
        for file in FindingsFolder(path).paths() if path.is_dir() else [path]:
            try:
                finding = FindingsFolder(file.parent).read(file)
            except DocumentError as error:
                unreadable += 1
                print(printable(str(error)), file=sys.stderr)
                continue
            listed += 1
            _print(file.stem, finding, in_full=not path.is_dir())
    failed = f", {plural(unreadable, 'file')} that cannot be read" if unreadable else ""
    print(f"{plural(listed, 'finding')}{failed}")
    return 2 if unreadable else 0


def _merge(folders: Sequence[Path], into: Path) -> int:
    """Merge folders of findings; return the exit status."""
    from pytest_regional.fuzz.findings.folder import merge

    unreadable: list[DocumentError] = []
    new = 0
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no directory: --merge copies directories of findings.")
        try:
            new += len(merge(folder, into, unreadable.append))
        except OSError as error:
            raise UsageError(f"--merge={into}: it cannot be written: {error.strerror}.") from error
    for one in unreadable:
        print(printable(str(one)), file=sys.stderr)
    print(f"{plural(new, 'new finding')} in {into}")
    return 2 if unreadable else 0


def _print(name: str, finding: AnyFinding, *, in_full: bool) -> None:
    versions = ", ".join(f"{package} {version}" for package, version in finding.versions.items())
    size = plural(finding.size, finding.unit)
    seen = f"{finding.backend}, {finding.device}, mode {finding.mode}, {versions or 'no versions'}, {size}"
    print(printable(f"{name} ({seen})"))
    detail = finding.detail if in_full else next(iter(finding.detail.splitlines()), "")
    parts = [finding.title, detail, *([finding.text] if in_full else [])]
    print(textwrap.indent(printable("\n".join(part for part in parts if part)), "    "))
