"""The command ``pytest-regional``, also ``python -m pytest_regional``: ``pytest-regional explain-key A B``.

One module per command, which is imported when the command is chosen: ``backends``, ``bisect_version``, ``bug_report``,
``explain_key``, ``findings``, ``fuzz``, ``merge``, ``new_backend`` and ``replay``. Each has ``add_arguments(parser)``
and ``run(asked)``, which returns the exit status; the message of a ``RegionalError``, mostly a ``UsageError``, is all
that is printed of it. ``targets`` imports what a name says.
May import: ``plugin``, ``report``, ``bug_report``, ``fuzz``, ``harness``, ``backends``, ``_base``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Sequence

from pytest_regional._base.errors import RegionalError

_COMMANDS = {
    "backends": "list the backends that can be tested, where each comes from, and what it disclaims",
    "bisect-version": "find the release of PyTorch that a finding came with",
    "explain-key": "say why two programs do not share a cached result, or share one wrongly",
    "findings": "list findings: what was seen, where, and how small it became",
    "fuzz": "fuzz backends with several processes: on this machine, or on a Ray cluster",
    "replay": "check findings again: each is fixed, still fails, or is an error",
    "bug-report": "write a bug report for PyTorch's issue tracker; nothing is sent",
    "merge": "make one report of those of several machines or shards",
    "new-backend": "write a small package with a backend of your own, its tests and its CI file",
}

#: Commands of ``pytest_regional.fuzz``, which is an optional part.
_FUZZING = ("findings", "fuzz", "replay", "bug-report")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 for what fails, 2 for a usage error."""
    as_script = os.path.basename(sys.argv[0]) == "pytest-regional"
    if as_script:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: arguments name modules of the user
    parser = argparse.ArgumentParser(
        prog="pytest-regional" if as_script else "python -m pytest_regional",
        description="Look at regional compilation from the command line.",
    )
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["report"]:  # its name before 1.0
        print(f"{parser.prog}: the command is called bug-report; 'report' goes with 1.0", file=sys.stderr)
        arguments = ["bug-report", *arguments[1:]]
    for argument in arguments:
        if "\0" in argument:
            parser.error(f"{argument!r} holds a zero byte, which no path and no name can")
    chosen = next((argument for argument in arguments if not argument.startswith("-")), "")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = None
    for name, line in _COMMANDS.items():
        if name in _FUZZING and not importlib.util.find_spec("pytest_regional.fuzz"):
            continue
        of_command = commands.add_parser(name, help=line, description=f"{line.capitalize()}.")
        if name == chosen:
            try:
                command = importlib.import_module(f"pytest_regional.cli.{name.replace('-', '_')}")
            except ImportError as error:
                parser.error(f"{name} cannot run here: {error}")
            command.add_arguments(of_command)
    asked = parser.parse_args(arguments)
    assert command is not None, "parse_args ends where no command is chosen"
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of tests, and texts of failures, hold what a terminal's encoding may lack.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return int(command.run(asked))
    except BrokenPipeError:
        # The reader has seen enough (`| head`). Python flushes once more at its end, where nothing could catch it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except RegionalError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
