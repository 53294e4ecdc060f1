"""What findings are about: which of them get short scripts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pytest_regional.bug_report.scripts import of_script, subject_of
from pytest_regional.fuzz.findings.folder import FindingsFolder
from pytest_regional.fuzz.oracles import ORACLES

FINDING = Path(__file__).parents[1] / "cli" / "data" / "floor_of_quotient.json"


#: Oracles of what one or two calls leave.
SCRIPTED = {"compiles", "parity", "further_calls", "rewrites", "integer_twin"}


@pytest.mark.parametrize("oracle", ORACLES)
def test_their_findings_have_short_scripts(oracle, tmp_path):
    finding = FindingsFolder(FINDING.parent).read(FINDING)
    signature = dataclasses.replace(finding.signature, oracle=oracle)
    script = FindingsFolder(tmp_path).save(dataclasses.replace(finding, signature=signature))

    scripts = subject_of(script.with_suffix(".json")).scripts

    # The last one is the finding's own script.
    assert (len(scripts["inductor"]) > 1) == (oracle in SCRIPTED)


def test_operators_that_are_given_a_program_are_named_by_the_script():
    script = """\
from torch.utils.checkpoint import checkpoint
values = list(map(float, checkpoint(torch.cond, scanned)))
"""
    assert of_script("a.py", script).operators == ("cond", "checkpoint")
    assert of_script("a.py", "import torch\ntorch.sin(torch.ones(3))\n").operators == ()
