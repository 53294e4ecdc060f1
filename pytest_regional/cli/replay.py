"""``replay``: check findings again."""

from __future__ import annotations

import argparse

from pytest_regional._base.text import plural, printable
from pytest_regional.cli.findings import add_paths, checked
from pytest_regional.cli.targets import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        f"{parser.description} Exit status 0: all are fixed; 1: one still fails; 2: one is an error. A backend that a "
        "finding names as module:attribute is imported only with --backend."
    )
    add_paths(parser)
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="check on this backend, not on the one it was found on; module:attribute is imported",
    )
    parser.add_argument("--device", metavar="NAME", help="check on this device, not on the one it was found on")
    parser.add_argument("--delete-fixed", action="store_true", help="delete what is fixed, file and script")


def run(asked: argparse.Namespace) -> int:
    """Replay the given findings; return the exit status."""
    try:
        from pytest_regional.fuzz.findings.replaying import Outcome, exit_status, replay
    except ImportError as error:
        raise UsageError(f"findings cannot be checked here: {error}.") from error

    seen = []
    for one in replay(checked(asked.paths), backend=asked.backend, device=asked.device):
        seen.append(one)
        print(printable(f"{one.outcome!s:11} {one.path.stem}: {one.detail}"), flush=True)
        if asked.delete_fixed and one.outcome is Outcome.FIXED:
            try:
                one.path.unlink()
                one.path.with_suffix(".py").unlink(missing_ok=True)
            except OSError as error:
                raise UsageError(f"{error.filename} is fixed and cannot be deleted: {error.strerror}.") from error
    counts = ", ".join(f"{sum(one.outcome is kind for one in seen)} {kind}" for kind in Outcome)
    print(f"{plural(len(seen), 'finding')}: {counts}")
    return exit_status(seen)
