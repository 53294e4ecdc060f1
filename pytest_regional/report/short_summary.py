"""What pytest's line for a failed test begins with: the error's name, not the module that it was written in.

The line has the width of the terminal, with the test's id before it: of 80 columns a module's path left nothing.
"""

from __future__ import annotations

from typing import Any


def without_module(report: Any, error: BaseException) -> None:
    """Have the line for ``report``, of a test that ``error`` ended, begin with the name of the error's class."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = crash.message.removeprefix(f"{type(error).__module__}.")


__all__ = ["without_module"]
