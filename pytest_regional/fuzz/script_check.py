"""Run a finding's script, to see that it shows the finding to somebody who has nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pytest_regional._secrets import SecretVariables
from pytest_regional.harness.kernel_store import environment_of_scripts

#: Seconds that a script gets: an import of torch, a compile or two, on a machine that does other things as well.
SECONDS = 120.0


def shows(script: Path, text: str = "", *, seconds: float = SECONDS) -> bool:
    """Tell whether ``script`` exits with 1 and prints ``text``; one that takes longer shows nothing.

    It runs in a process of its own, with the import path of this one, for backends of the tests' own.
    """
    environment = SecretVariables(
        {**os.environ, **environment_of_scripts(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    )
    try:
        run = run_script(script, environment, seconds)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 1 and text in run.stdout


def run_script(script: Path, environment: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run ``script`` in an interpreter of its own.

    Raises:
        subprocess.TimeoutExpired: it did not end in ``seconds``.
    """
    command = [sys.executable, str(script)]
    return subprocess.run(
        command,
        env={**environment, "PYTHONIOENCODING": "utf-8:backslashreplace"},
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=seconds,
        check=False,
    )
