"""What a user sees when the backend under test misbehaves: a row of docs/faults.md for each.

All faults are in one run, so that what one leaves behind would be seen by the next; those that end the process are in
another, under pytest-xdist.
"""

from __future__ import annotations

import fnmatch
import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.fenced import table
from tests.warm_process import run_module

BACKENDS = """
import itertools, os, signal, subprocess, sys, threading, time
import torch

def nothing_wrong(gm, inputs):  # imports what the others need, so that no limit is spent on that
    return gm.forward

def hangs(gm, inputs):
    time.sleep(60)

def compiler_hangs(gm, inputs):
    subprocess.run([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '71'])"])

def exits(gm, inputs):
    sys.exit(3)

def greedy(gm, inputs):
    return torch.empty(5 * 2**30, dtype=torch.uint8)

def leaves_settings(gm, inputs):
    torch._inductor.config.max_autotune = True
    torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)
    os.environ["LEFT"] = "1"
    os.chdir("/")
    return gm.forward

def leaves_a_thread(gm, inputs):
    threading.Thread(target=time.sleep, args=(20,), name="watcher", daemon=True).start()
    return gm.forward

def prints(gm, inputs):
    print("x" * 2**20)
    return gm.forward

def too_few(gm, inputs):
    return lambda *args: gm.forward(*args)[:1]

def too_many(gm, inputs):
    return lambda *args: (*gm.forward(*args), *gm.forward(*args))

def no_callable(gm, inputs):
    return gm.graph

def unboxed(gm, inputs):
    return lambda *args: gm.forward(*args)[0]

def mutates(gm, inputs):
    for node in gm.graph.nodes:
        if node.target is torch.sin or node.target == "sin":
            node.target = torch.cos if node.op == "call_function" else "cos"
    gm.recompile()
    return gm.forward

def writes_to_inputs(gm, inputs):
    return lambda *args: gm.forward(*[arg.mul_(2) for arg in args])

def raises(gm, inputs):
    raise ZeroDivisionError("in the compiler")

def segfault(gm, inputs):
    os.kill(os.getpid(), signal.SIGSEGV)

def ends_the_process(gm, inputs):
    os._exit(0)

def stuck(gm, inputs):
    all(itertools.repeat(True))  # a loop in C that looks at no signal
"""
TEST = """
@pytest.mark.regional_compile(backend="faulty:{name}", expects_regions=False)
def test_{name}(regional):
    regional.assert_parity(lambda x: (x.sin() + 1, x.exp()), regional.randn(3, 4))

@pytest.mark.regional_compile(expects_regions=False)
def test_after_{name}(regional):
    assert "LEFT" not in os.environ
    regional.assert_parity(torch.sin, regional.randn(4))
"""


SHORT_GRACE = """
from pytest_regional._base import limits

limits.GRACE = 1
"""


class Row(NamedTuple):
    """A backend's fault: how its test ends, and what is said of it, in the test's failure or on the terminal."""

    fault: str
    backend: str
    ending: str
    said: str


ROWS = (
    Row("a compile hangs", "hangs", "failed", "*still running after --regional-timeout=2 seconds*in hangs*"),
    Row(
        "a compiler that it started hangs",
        "compiler_hangs",
        "failed",
        "*--regional-timeout=2 seconds; processes that it had started were ended: 2*",
    ),
    Row("it calls `sys.exit`", "exits", "failed", "*SystemExit: 3*"),
    Row("it takes too much memory", "greedy", "failed", "*regional_memory lets a test take 4 GiB*"),
    Row("it raises", "raises", "failed", "*ZeroDivisionError: in the compiler*"),
    Row(
        "it leaves settings changed",
        "leaves_settings",
        "failed",
        "*BackendLeakError: the backend 'leaves_settings' left 4 settings changed *max_autotune: False -> True*"
        "environment variable LEFT: set\n*working directory*compiler stance*",
    ),
    Row(
        "it leaves a thread running",
        "leaves_a_thread",
        "passed",
        "*test_leaves_a_thread* left running: thread watcher*",
    ),
    Row("it prints a megabyte", "prints", "passed", ""),
    Row("it returns too few results", "too_few", "failed", "*tuple index out of range*"),
    Row("it returns too many results", "too_many", "passed", ""),
    Row("it returns no callable", "no_callable", "failed", "*did not return callable*"),
    Row("it returns a result for a tuple of one", "unboxed", "failed", "*"),
    Row("it changes the graph", "mutates", "failed", "*ParityError*output*value*"),
    Row("it writes to inputs", "writes_to_inputs", "failed", "*ParityError*input*"),
)
ENDING_ROWS = (
    Row("a segmentation fault", "segfault", "crashed", "*worker 'gw*' crashed while running '*test_segfault*"),
    Row(
        "it calls `os._exit`",
        "ends_the_process",
        "crashed",
        "*worker 'gw*' crashed while running '*test_ends_the_process*",
    ),
    Row("it loops in C and cannot be interrupted", "stuck", "crashed", "*Timeout (0:00:03)!*in stuck*"),
)


class Run(NamedTuple):
    """A run that has ended."""

    printed: str
    ending: dict[str, str]
    failure: dict[str, str]


def run_of(rows, folder: Path, *options: str) -> Run:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(SHORT_GRACE)
    (folder / "faulty.py").write_text(BACKENDS)
    tests = [TEST.format(name=name) for name in ("nothing_wrong", *(row.backend for row in rows))]
    (folder / "test_it.py").write_text("\n".join(["import os, pytest, torch", *tests]))
    limits = ("--regional-timeout=2", "-oregional_memory=4G", "--regional-report=report.json")
    arguments = ("--regional-backend=aot_eager", "--regional-device=cpu", *limits, "-p", "no:randomly", *options)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = run_module("pytest", arguments, folder, environment, timeout=400)
    facts = json.loads((folder / "report.json").read_text())["tests"]
    name = {fact["test"]: fact["test"].partition("::test_")[2].partition("[")[0] for fact in facts}
    return Run(
        done.stdout + done.stderr,
        {name[fact["test"]]: fact["outcome"] for fact in facts},
        {name[fact["test"]]: fact["failure"] for fact in facts},
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of(ROWS, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def run_with_workers(tmp_path_factory):
    return run_of(ENDING_ROWS, tmp_path_factory.mktemp("workers"), "-n2")


def check(found: Run, row: Row) -> None:
    assert found.ending[row.backend] == row.ending, found.failure[row.backend]
    texts = (found.failure[row.backend], found.printed)
    assert not row.said or any(fnmatch.fnmatchcase(text, row.said) for text in texts), "\n".join(texts)
    assert found.ending[f"after_{row.backend}"] == "passed"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.backend)
def test_a_fault_and_the_test_after_it(run, row):
    check(run, row)


@pytest.mark.parametrize("row", ENDING_ROWS, ids=lambda row: row.backend)
def test_a_fault_that_ends_the_process(run_with_workers, row):
    check(run_with_workers, row)


def test_all_are_in_the_documentation():
    shown = [(row[0], row[1]) for row in table("docs/faults.md", "What one sees")]
    assert shown == [(row.fault.replace("`", ""), row.ending) for row in (*ROWS, *ENDING_ROWS)]


def test_output_stays_with_the_test(run):
    assert "x" * 1000 not in run.printed
