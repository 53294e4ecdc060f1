"""What people ask at a terminal: ``python -m pytest_regional explain module:factory``, for example.

``targets`` imports what a name says, ``passes`` makes passes of names, ``finding_paths`` names findings; ``explain``,
``findings``, ``replay``, ``new_backend`` and, of ``reports``, ``compare`` and ``merge`` are the commands.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from pytest_regional.command_line import explain, findings, new_backend, replay, reports
from pytest_regional.command_line.targets import UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 for what fails, 2 for what was asked wrongly."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_regional", description="Look at regional compilation from the command line."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    explain.add_command(commands)
    findings.add_command(commands)
    replay.add_command(commands)
    reports.add_compare(commands)
    reports.add_merge(commands)
    new_backend.add_command(commands)
    asked = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of tests, and texts of failures, hold what a terminal's encoding may lack.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return int(asked.run(asked) or 0)
    except UsageError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except explain.ModelError as error:
        if asked.traceback:
            raise
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
