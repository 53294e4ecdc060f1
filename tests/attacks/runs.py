"""Whole runs of pytest in processes of their own, and what they leave."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_regional.cli import main
from tests.warm_process import run_module

HEADER = """
import ctypes, itertools, os, shutil, signal, sys, tempfile, threading, time, warnings
import pytest, torch

marked = pytest.mark.regional_compile(expects_regions=False)
"""
REPORTS = ("report.json", "report.html")
OPTIONS = ("--regional-backend=aot_eager", "--regional-device=cpu", "-p", "no:randomly", "-p", "no:cacheprovider")
OPTIONS += (f"--regional-report={','.join(REPORTS)}", "--junitxml=junit.xml", "-rsxfE")


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
        folder: in which it ran; a folder ``temporary`` in it is what it had for temporary files.
        status: its exit status.
        printed: what it wrote, to standard error too.
    """

    folder: Path
    status: int
    printed: str

    @property
    def lines(self) -> pytest.LineMatcher:
        return pytest.LineMatcher(self.printed.splitlines())

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text())

    @property
    def page(self) -> str:
        return (self.folder / "report.html").read_text()

    @property
    def ended(self) -> dict[str, str]:
        """How each test ended, by its name, as the report has it."""
        return {fact["test"].partition("::")[2]: fact["outcome"] for fact in self.report["tests"]}

    @property
    def in_junit(self) -> set[str]:
        return {case.get("name") for case in ElementTree.parse(self.folder / "junit.xml").iter("testcase")}

    @property
    def left(self) -> list[str]:
        """The folders of temporary files of runs that are still there."""
        return [path.name for path in self.temporary.glob("pytest-regional-*")]

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary"

    def merge(self) -> tuple[int, str]:
        """Read the report as ``merge`` does, which refuses that of a run that did not finish: status and complaint."""
        with contextlib.redirect_stderr(io.StringIO()) as said:
            status = main(["merge", str(self.folder / "report.json"), f"--output={self.folder / 'merged.json'}"])
        return status, said.getvalue()


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a run in ``folder``, which is no worker of the run that this is."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**outer, "TMPDIR": str(folder / "temporary"), "PYTHONPATH": str(Path(__file__).parents[2])}


def write(folder: Path, source: str) -> None:
    """Write a test file and an empty ini file, and make the folder of temporary files."""
    (folder / "temporary").mkdir(exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(HEADER + source)


def run(folder: Path, source: str, *options: str) -> Run:
    """Run the tests of ``source`` in ``folder``."""
    write(folder, source)
    done = run_module("pytest", [*OPTIONS, *options], folder, environment(folder), together=True)
    print(done.stdout)
    return Run(folder, done.returncode, done.stdout)


def started(folder: Path, source: str, *options: str) -> subprocess.Popen[str]:
    """Start such a run in a new interpreter and a session of its own, and go on."""
    write(folder, source)
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *OPTIONS, *options],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
