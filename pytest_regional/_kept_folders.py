"""Directories that a run needs until its end: they are made again when a test removes them, and the run continues.

Their contents are lost to that test, and to those that ran at the same time on other workers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional import _environment
from pytest_regional._errors import RegionalLeakWarning
from pytest_regional._private_folders import make_own_folder
from pytest_regional._stash import TARGET

if TYPE_CHECKING:
    from pytest_regional._session import RegionalSession


class FolderHooks:
    """Checks the directories after each phase of a marked test."""

    def __init__(self, session: RegionalSession) -> None:
        self._config = session.config
        self._errors = session.errors
        self._working = _working_folder()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Make sure that the directory in which pytest began is there at the end of the run."""
        try:
            return (yield)
        finally:
            with self._errors.kept("making the working folder again"):
                session.startpath.mkdir(parents=True, exist_ok=True)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Make again what a replacement worker needs: it begins in this process's directory."""
        with self._errors.kept(f"making the directories again that the worker after {node.gateway.id} needs"):
            list(self._made_again())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Make again what is missing when a marked test begins."""
        self._make_missing(item, "before")
        self._working = _working_folder()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Name the test that removed a folder."""
        try:
            return (yield)
        finally:
            self._make_missing(item, "while")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Name it also where it did so in its teardown."""
        try:
            return (yield)
        finally:
            self._make_missing(item, "while the teardown of")

    def _make_missing(self, item: pytest.Item, when: str) -> None:
        made: list[Path] = []
        if TARGET in item.stash:
            with self._errors.kept(f"making the directories again that {item.nodeid} needs"):
                made += self._made_again()
        if made:
            names = ", ".join(str(folder) for folder in made if folder.parent not in made)
            text = (
                f"a directory that other tests need was removed {when} {item.nodeid} ran: {names} (made again, empty)"
            )
            warnings.warn(RegionalLeakWarning(text), stacklevel=1)

    def _made_again(self) -> Iterator[Path]:
        for folder in self._needed():
            if folder.is_symlink() or not folder.is_dir():
                make_own_folder(folder)
                yield folder
        if self._working is not None and _working_folder() is None:
            if not self._working.is_dir():
                self._working.mkdir(parents=True, exist_ok=True)
                yield self._working
            os.chdir(self._working)

    def _needed(self) -> Iterator[Path]:
        own = self._config.stash[_environment.FOLDER]
        yield own.parent
        yield own
        # What pytest makes folders of tests in: private attributes of its factory (8.0 to 9.2); where there are none,
        # a test that removes it costs the tests after it their `tmp_path`.
        factory = getattr(self._config, "_tmp_path_factory", None)
        made, asked = getattr(factory, "_basetemp", None), getattr(factory, "_given_basetemp", None)
        if made is not None:
            yield made
        elif asked is not None:
            yield asked.parent


def _working_folder() -> Path | None:
    """Return the working directory of this process; ``None`` where it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None
