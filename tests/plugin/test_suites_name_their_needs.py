"""Each suite test passes on a backend that has nothing but what the test names in ``requires=``, or is skipped."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.warm_process import run_module

ROOT = Path(__file__).resolve().parents[2]
#: Fuzzing draws from what is claimed, and has tests of its own; models of ``transformers`` take minutes.
FOLDERS = sorted(
    folder.name
    for folder in (ROOT / "suites").iterdir()
    if (folder / "__init__.py").exists() and folder.name not in ("fuzz", "transformers")
)


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own."""
    options = ["-q", "-p", "no:cacheprovider", "--regional-device=cpu", *arguments]
    return run_module("pytest", options, ROOT, {**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.slow("all suites", fast="test_on_a_backend_without_capabilities_that_splits_graphs")
@pytest.mark.parametrize("folder", FOLDERS)
def test_on_a_backend_that_gives_what_is_named(folder):
    result = ran("-p", "tests.needs_named", "--regional-backend=tests.needs_named:NAMED", f"suites/{folder}")

    assert result.returncode == 0, result.stdout[-6000:]


def test_on_a_backend_without_capabilities_that_splits_graphs():
    """In one process, of those suites that have tests which need nothing; ``staleness`` would take half of the time."""
    folders = ("control_deps", "history", "models", "regions")
    result = ran("--regional-backend=tests.splitting_backend:BARE", *(f"suites/{folder}" for folder in folders))

    assert result.returncode == 0, result.stdout[-6000:]
    for folder in folders:
        assert re.search(rf"^{folder}/\w+ +\d+ passed", result.stdout, re.MULTILINE), folder


#: Each fails for want of what it does not name; the twin behind it names it.
SOURCE = """
import pytest
import torch
from torch.utils.checkpoint import checkpoint

def check(regional, program, *inputs):
    regional.assert_parity(program, *inputs)

def written(x):
    return x.add_(1).sin()

PROGRAMS = {
    "backward": lambda regional: regional.assert_parity(
        torch.sin, regional.randn(4, requires_grad=True), backward=lambda result: result.sum()
    ),
    "mutation": lambda regional: check(regional, written, regional.randn(4)),
    "rng": lambda regional: check(regional, lambda x: x + torch.rand_like(x), regional.randn(4)),
    "aliasing": lambda regional: check(regional, lambda x: x[1:], regional.randn(4)),
    "higher_order_operators": lambda regional: check(
        regional, lambda x: checkpoint(torch.sin, x, use_reentrant=False) * 2, regional.randn(4)
    ),
}

def named(name):
    mark = pytest.mark.regional_compile(
        requires=(name,), expects_regions=False, inductor_configs={"fallback_random": True}
    )
    return pytest.param(name, marks=mark, id=f"named-{name}")

@pytest.mark.regional_compile(expects_regions=False, inductor_configs={"fallback_random": True})
@pytest.mark.parametrize("name", [*PROGRAMS, *map(named, PROGRAMS)])
def test_it(regional, name):
    PROGRAMS[name](regional)
"""


def test_a_need_that_is_not_named_is_found(tmp_path):
    source = tmp_path / "test_needs.py"
    source.write_text(SOURCE)
    result = ran("-p", "tests.needs_named", "--regional-backend=tests.needs_named:NAMED", "-rf", str(source))

    assert "5 failed, 5 passed" in result.stdout, result.stdout[-6000:]
    for name in ("backward", "mutation", "rng", "aliasing", "higher_order_operators"):
        assert f"this backend disclaims {name}: " in result.stdout
