"""What people ask at a terminal: ``python -m pytest_regional explain module:factory``.

``targets`` imports what a name says, ``passes`` makes passes of names, ``explain`` is the one command that there is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pytest_regional.command_line import explain
from pytest_regional.command_line.targets import UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 for a model or pass that fails, 2 for what was asked wrongly."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_regional", description="Look at regional compilation from the command line."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    explain.add_command(commands)
    asked = parser.parse_args(arguments)
    try:
        asked.run(asked)
    except UsageError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except explain.ModelError as error:
        if asked.traceback:
            raise
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0
