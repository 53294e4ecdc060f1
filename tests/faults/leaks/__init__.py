"""What a test may leave changed in its process: ``python -m tests.faults.leaks`` counts what the next test sees.

A new kind is a function that leaks, with what to look at before and after::

    @kind("umask", look=read_umask)
    def leave_umask():
        os.umask(0o777)

``kinds`` is the table; each other module but ``trials``, which tries them, holds the kinds of one theme.
"""

from __future__ import annotations

from tests.faults.leaks import hooks, interpreter, modes, registries, replaced, torch_settings
from tests.faults.leaks.kinds import KINDS, Kind

THEMES = (modes, hooks, replaced, registries, torch_settings, interpreter)

__all__ = ["KINDS", "THEMES", "Kind"]
