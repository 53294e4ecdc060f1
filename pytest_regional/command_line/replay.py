"""``replay``: judge the findings of a fuzzing campaign again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_regional.command_line.targets import UsageError

_HELP = "judge findings again: FIXED, FAILED or ERROR for each"


def add_command(commands: Any) -> None:
    """Add ``replay`` to the commands of a parser."""
    parser = commands.add_parser(
        "replay",
        help=_HELP,
        description=f"{_HELP.capitalize()}. Exit status 0: all are fixed; 1: one fails still; 2: one cannot be judged.",
    )
    parser.add_argument("paths", metavar="DIR", nargs="+", type=Path, help="folder of findings, or one finding's .json")
    parser.add_argument("--backend", metavar="NAME", help="judge on this backend, not on the one it was found on")
    parser.add_argument("--device", metavar="NAME", help="judge on this device, not on the one it was found on")
    parser.add_argument("--delete-fixed", action="store_true", help="delete what is fixed, file and script")
    parser.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Replay what was asked for; return the exit status.

    Raises:
        UsageError: a path that is not there, or a folder without findings.
    """
    from pytest_regional.fuzz.findings import FindingsFolder
    from pytest_regional.fuzz.replaying import Outcome, exit_status, replay

    for path in asked.paths:
        if not path.exists():
            raise UsageError(f"{path} is not there: give a folder of findings, or one finding's .json.")
        if path.is_dir() and not FindingsFolder(path).paths():
            raise UsageError(f"{path} holds no findings: a campaign writes them as NAME.json and NAME.py.")
    seen = []
    for one in replay(asked.paths, backend=asked.backend, device=asked.device):
        seen.append(one)
        print(f"{one.outcome.name:6} {one.path.stem}: {one.detail}", flush=True)
        if asked.delete_fixed and one.outcome is Outcome.FIXED:
            one.path.unlink()
            one.path.with_suffix(".py").unlink(missing_ok=True)
    counts = ", ".join(f"{sum(one.outcome is kind for one in seen)} {kind.name}" for kind in Outcome)
    print(f"{len(seen)} findings: {counts}")
    return exit_status(seen)
