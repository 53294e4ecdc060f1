"""A damaged file in a cache folder costs a compile and a warning, never a wrong result."""

import json
import os
from pathlib import Path

import pytest

from tests.warm_process import run_module

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def trials():
    done = run_module("tests.reference.corruption", ["--json", "--kinds"], ROOT, os.environ)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_every_kind_of_file_was_damaged(trials):
    places = {Path(trial["file"]).parts[0] for trial in trials}
    assert places >= {"regional", "aotautograd"}
    assert {Path(trial["file"]).suffix for trial in trials} >= {".so", ".py", ".cpp", ".artifact"}


def test_results_are_right_whatever_is_damaged(trials):
    assert [trial for trial in trials if not trial["right"]] == []


def test_a_damaged_entry_is_compiled_anew_with_one_warning(trials):
    ours = [trial for trial in trials if trial["file"].startswith("regional")]
    assert ours
    assert {(trial["hit"], trial["warnings"]) for trial in ours} == {(False, 1)}


def test_damaged_code_is_replaced_from_the_entry(trials):
    others = [trial for trial in trials if not trial["file"].startswith("regional")]
    assert {(trial["hit"], trial["warnings"]) for trial in others} == {(True, 0)}
