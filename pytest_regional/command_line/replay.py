"""``replay``: check the findings of a fuzzing campaign again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_regional._text import plural, printable
from pytest_regional.command_line.findings import add_paths, checked
from pytest_regional.command_line.targets import UsageError

_HELP = "check findings again: each is fixed, still fails, or is an error"


def add_command(commands: Any) -> None:
    """Add ``replay`` to the commands of a parser."""
    parser = commands.add_parser(
        "replay",
        help=_HELP,
        description=f"{_HELP.capitalize()}. Exit status 0: all are fixed; 1: one still fails; 2: one is an error. "
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
    parser.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
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
