"""The command ``pytest-regional``, also ``python -m pytest_regional``: ``pytest-regional explain module:factory``.

One module per command: ``backends``, ``explain``, ``findings``, ``replay``, ``new_backend``, and ``reports`` for
``compare`` and ``merge``. ``targets`` imports what a name says.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from pytest_regional.command_line import backends, explain, findings, new_backend, replay, reports
from pytest_regional.command_line.targets import UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 for what fails, 2 for a usage error."""
    parser = argparse.ArgumentParser(prog=_program(), description="Look at regional compilation from the command line.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    backends.add_command(commands)
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


def _program() -> str:
    """Return how the command was called: by its name, or as a module."""
    return "pytest-regional" if os.path.basename(sys.argv[0]) == "pytest-regional" else "python -m pytest_regional"
