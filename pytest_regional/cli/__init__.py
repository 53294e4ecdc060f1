"""The command ``pytest-regional``, also ``python -m pytest_regional``: ``pytest-regional explain-key A B``.

One module per command: ``backends``, ``bisect_version``, ``bug_report``, ``explain_key``, ``findings`` (and
``replay``), ``fuzz``, ``new_backend``, and ``reports`` for ``merge``. ``targets`` imports what a name says.
May import: every package but ``reference`` and ``emulation``.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import sys
from collections.abc import Sequence

from pytest_regional.cli import backends, bisect_version, explain_key, findings, new_backend, reports
from pytest_regional.cli.targets import UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0, 1 for what fails, 2 for a usage error."""
    as_script = os.path.basename(sys.argv[0]) == "pytest-regional"
    if as_script:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: arguments name modules of the user
    parser = argparse.ArgumentParser(
        prog="pytest-regional" if as_script else "python -m pytest_regional",
        description="Look at regional compilation from the command line.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    backends.add_command(commands)
    bisect_version.add_command(commands)
    explain_key.add_command(commands)
    if importlib.util.find_spec("pytest_regional.fuzz"):  # an optional part
        from pytest_regional.cli import bug_report, fuzz

        findings.add_command(commands)
        fuzz.add_command(commands)
        findings.add_replay(commands)
        bug_report.add_command(commands)
    reports.add_merge(commands)
    new_backend.add_command(commands)
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["report"]:  # its name before 1.0
        print(f"{parser.prog}: the command is called bug-report; 'report' goes with 1.0", file=sys.stderr)
        arguments = ["bug-report", *arguments[1:]]
    for argument in arguments:
        if "\0" in argument:
            parser.error(f"{argument!r} holds a zero byte, which no path and no name can")
    asked = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of tests, and texts of failures, hold what a terminal's encoding may lack.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return int(asked.run(asked) or 0)
    except BrokenPipeError:
        # The reader has seen enough (`| head`). Python flushes once more at its end, where nothing could catch it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
