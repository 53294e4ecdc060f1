"""How many workers of pytest-xdist may die before the run is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def allow_one_more(config: pytest.Config) -> None:
    """Do not count the worker that just died in a test, unless ``--max-worker-restart`` says how many may.

    By default pytest-xdist gives a run up when four times as many workers have died as there are, so that workers which
    die while they collect do not begin for ever. A worker that dies in a test takes that test along, so there is an end
    to it; and the tests behind it are the reason for the run. The number is a private attribute of pytest-xdist's
    session (3.5 to 3.8); where there is none, its own limit holds.
    """
    session = config.pluginmanager.getplugin("dsession")
    most = getattr(session, "_max_worker_restart", None)
    if config.option.maxworkerrestart is None and isinstance(most, int):
        session._max_worker_restart = most + 1


__all__ = ["allow_one_more"]
