"""A damaged file in a cache folder costs a compile and a warning, never a wrong result."""

import json
import os
from pathlib import Path

from tests.warm_process import run_module

ROOT = Path(__file__).resolve().parents[3]


def test_a_damaged_file_costs_a_compile_and_a_warning_at_most():
    """One test: the trials take half a minute, and a fixture would run them on every worker."""
    done = run_module("tests.faults.reference.corruption", ["--json", "--kinds"], ROOT, os.environ)
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    # Every kind of file was damaged.
    assert {Path(trial["file"]).parts[0] for trial in trials} >= {"regional", "aotautograd"}
    assert {Path(trial["file"]).suffix for trial in trials} >= {".so", ".py", ".cpp", ".artifact"}
    # Whatever is damaged, results are right.
    assert [trial for trial in trials if not trial["right"]] == []
    # A damaged entry is compiled again, with one warning; damaged code is replaced from the entry.
    entries = [trial for trial in trials if trial["file"].startswith("regional")]
    others = [trial for trial in trials if not trial["file"].startswith("regional")]
    assert {(trial["hit"], trial["warnings"]) for trial in entries} == {(False, 1)}
    assert {(trial["hit"], trial["warnings"]) for trial in others} == {(True, 0)}
