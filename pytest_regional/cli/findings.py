"""``findings``: what folders of findings hold; ``replay``: check them again."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Return ``paths``, each of which is there; a folder holds findings.

    Raises:
        UsageError: a path that is not there, or a folder without findings.
    """
    from pytest_regional.fuzz.findings.folder import FindingsFolder

    for path in paths:
        try:
            path.stat()
        except OSError as error:
            what = "is not there" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise UsageError(f"{path} {what}: give a directory of findings, or one finding's .json.") from error
        if path.is_dir() and not FindingsFolder(path).paths():
            raise UsageError(f"{path} holds no findings: a campaign writes them as NAME.json and NAME.py.")
    return paths


_HELP = "list findings: what was seen, where, and how small it became"


def add_command(commands: Any) -> None:
    """Add ``findings`` to the commands of a parser."""
    parser = commands.add_parser(
        "findings",
        help=_HELP,
        description=f"{_HELP.capitalize()}. A finding's own file is shown in full, with its program or sequence. "
        "Nothing that it holds is imported. Exit status 2: a file cannot be read; the others are listed.",
    )
    add_paths(parser)
    parser.add_argument(
        "--merge",
        metavar="INTO",
        type=Path,
        help="copy the findings and crashes of all these directories into INTO, which keeps the smallest of each name",
    )
    parser.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """List the given findings; return the exit status.

    Raises:
        UsageError: a path that is not there, or a folder without findings.
    """
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
    """Merge folders of findings; return the exit status.

    Raises:
        UsageError: a path is no directory, or nothing can be written.
    """
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
    print(
        printable(
            f"{name} ({finding.backend}, {finding.device}, mode {finding.mode}, {versions or 'no versions'}, {size})"
        )
    )
    detail = finding.detail if in_full else next(iter(finding.detail.splitlines()), "")
    parts = [finding.title, detail, *([finding.text] if in_full else [])]
    print(textwrap.indent(printable("\n".join(part for part in parts if part)), "    "))


_AGAIN = "check findings again: each is fixed, still fails, or is an error"


def add_replay(commands: Any) -> None:
    """Add ``replay`` to the commands of a parser."""
    parser = commands.add_parser(
        "replay",
        help=_AGAIN,
        description=f"{_AGAIN.capitalize()}. Exit status 0: all are fixed; 1: one still fails; 2: one is an error. "
        "A backend that a finding names as module:attribute is imported only with --backend.",
    )
    add_paths(parser)
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="check on this backend, not on the one it was found on; module:attribute is imported",
    )
    parser.add_argument("--device", metavar="NAME", help="check on this device, not on the one it was found on")
    parser.add_argument("--delete-fixed", action="store_true", help="delete what is fixed, file and script")
    parser.set_defaults(run=run_replay)


def run_replay(asked: argparse.Namespace) -> int:
    """Replay the given findings; return the exit status.

    Raises:
        UsageError: a path that is not there, a folder without findings, or no torch.
    """
    try:
        from pytest_regional.fuzz.findings.replaying import Outcome, exit_status, replay
    except ImportError as error:
        raise UsageError(f"findings cannot be checked here: {error}.") from error

    seen = []
    for one in replay(checked(asked.paths), backend=asked.backend, device=asked.device):
        seen.append(one)
        print(printable(f"{one.outcome!s:11} {one.path.stem}: {one.detail}"), flush=True)
        if asked.delete_fixed and one.outcome is Outcome.FIXED:
            _delete(one.path)
    counts = ", ".join(f"{sum(one.outcome is kind for one in seen)} {kind}" for kind in Outcome)
    print(f"{plural(len(seen), 'finding')}: {counts}")
    return exit_status(seen)


def _delete(finding: Path) -> None:
    """Delete the files of a finding.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        finding.unlink()
        finding.with_suffix(".py").unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{error.filename} is fixed and cannot be deleted: {error.strerror}.") from error
