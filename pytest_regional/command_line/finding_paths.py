"""The arguments that name findings: folders of them, or the file of one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_regional.command_line.targets import UsageError


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names findings."""
    parser.add_argument("paths", metavar="DIR", nargs="+", type=Path, help="folder of findings, or one finding's .json")


def checked(paths: Sequence[Path]) -> Sequence[Path]:
    """Return ``paths``, each of which is there; a folder holds findings.

    Raises:
        UsageError: a path that is not there, or a folder without findings.
    """
    from pytest_regional.fuzz.findings import FindingsFolder

    for path in paths:
        try:
            path.stat()
        except OSError as error:
            what = "is not there" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            raise UsageError(f"{path} {what}: give a folder of findings, or one finding's .json.") from error
        if path.is_dir() and not FindingsFolder(path).paths():
            raise UsageError(f"{path} holds no findings: a campaign writes them as NAME.json and NAME.py.")
    return paths
