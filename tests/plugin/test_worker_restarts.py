"""Workers that die in tests do not use up pytest-xdist's limit; ``python -m bench.crash_run`` shows it at work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from xdist.dsession import DSession

from pytest_regional._xdist import allow_one_more


def config(given, session):
    return SimpleNamespace(
        option=SimpleNamespace(maxworkerrestart=given), pluginmanager=SimpleNamespace(getplugin=lambda name: session)
    )


def test_one_more(pytestconfig, monkeypatch):
    monkeypatch.setattr(pytestconfig.option, "maxworkerrestart", None)
    monkeypatch.setattr(pytestconfig.option, "numprocesses", 2)
    session = DSession(pytestconfig)
    assert session._max_worker_restart == 8
    allow_one_more(config(None, session))
    assert session._max_worker_restart == 9


@pytest.mark.parametrize("given", ["0", "3"])
def test_what_the_user_says_holds(given):
    session = SimpleNamespace(_max_worker_restart=int(given))
    allow_one_more(config(given, session))
    assert session._max_worker_restart == int(given)


@pytest.mark.parametrize("session", [None, SimpleNamespace(), SimpleNamespace(_max_worker_restart=None)])
def test_another_xdist_is_left_alone(session):
    allow_one_more(config(None, session))
