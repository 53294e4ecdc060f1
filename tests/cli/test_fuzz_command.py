"""``pytest-regional fuzz``: what it says of options, and and one campaign whose processes are killed."""

import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_regional import cli
from pytest_regional.cli import main
from pytest_regional.fuzz import processes
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step

#: A backend of one fault: its results are doubled, whatever the graph.
BACKEND = """
from torch._dynamo.backends.debugging import aot_eager

def faulty(gm, inputs):
    compiled = aot_eager(gm, inputs)
    return lambda *args: tuple(value * 2 if value.is_floating_point() else value for value in compiled(*args))
"""


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def start(*arguments):
    """Start the command in a new interpreter."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "pytest_regional", "fuzz", *arguments],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": os.getcwd() + "/tmp"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )


def fuzzed(*arguments):
    """Run the command in a new interpreter; return status and output."""
    command = start(*arguments)
    output, _ = command.communicate(timeout=500)
    return command.returncode, output


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--budget=soon", "--budget: 'soon' is no budget: give a number of programs (500), a time (30s, 10m, 2h)"),
        ("--workers=0", "--workers=0: give a number from 1 to 10000."),
        ("--memory=lots", "--memory=lots: expected a size from"),
        ("--seed=-1", "--seed=-1: give a number from 0 to"),
        (
            "--mode=nativ",
            "--mode=nativ: unknown mode 'nativ'. Did you mean 'native'? Known: aten, emulated, graph, int",
        ),
        ("--settings=fredom", "--settings=fredom: unknown setting 'fredom'. Known: all, "),
        ("--timeout=0", "--timeout=0: give seconds from 1 to 86400."),
        ("--backend=", "--backend= has no value: leave it out, or give one."),
        ("--findings=taken/findings", "--findings=taken/findings: it cannot be written: Not a directory."),
    ],
)
def test_an_option_that_makes_no_sense(capsys, argument, says):
    Path("taken").write_text("")

    assert main(["fuzz", argument]) == 2
    assert says in capsys.readouterr().err


def test_ray_that_is_not_installed(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)

    assert main(["fuzz", "--cluster=local"]) == 2
    assert "pip install 'pytest-regional[cluster]'" in capsys.readouterr().err


def test_no_command_imports_torch_before_it_is_needed():
    names = ", ".join(f"pytest_regional.cli.{module.name}" for module in pkgutil.iter_modules(cli.__path__))
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


@pytest.fixture
def lives(monkeypatch, tmp_path):
    """Return what says how the processes of a campaign live, none of which checks anything; see ``fake_process``."""
    root = str(Path(__file__).parents[2])
    files.save(Program((TensorInput((4,)),), (Step("sin", (0,), (), (1,)),), (1,)), tmp_path / "program.json")
    monkeypatch.setattr(processes, "CHILD", "tests.fuzz.fake_process")
    monkeypatch.setenv("PYTHONPATH", root, prepend=os.pathsep)
    monkeypatch.setenv("FAKE_LIVES", str(tmp_path / "lives"))
    monkeypatch.setenv("FAKE_PROGRAM", str(tmp_path / "program.json"))
    return (tmp_path / "lives").write_text


def test_what_is_new_is_said_once_and_is_the_exit_status(lives, capsys):
    asked = ["fuzz", "--backend=aot_eager", "--budget=20", "--workers=1", "--seed=5", "--no-blame"]

    lives("SIGSEGV works")
    assert main(asked) == 1
    said = capsys.readouterr().out
    assert said.startswith("aot_eager, native, cpu; --seed=5; campaign regional-findings/campaigns/")
    assert said.count("new finding: compiles (compile): the process ended by SIGSEGV\n") == 1
    assert said.endswith("20 programs, 1 new finding; 1 new in regional-findings\n")

    lives("works")
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "new finding:" not in said
    assert said.endswith("20 programs, 0 new findings\nnothing new\n")


def test_processes_that_cannot_work(lives, capsys):
    lives("cannot")

    assert main(["fuzz", "--backend=no_such_module:it", "--budget=20", "--workers=1"]) == 2
    assert capsys.readouterr().err.endswith("RegionalError: there is no such backend.\n")


def wait(condition):
    until = time.monotonic() + 240
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)
    assert condition()


@pytest.mark.slow(
    "kills and restarts a campaign of two processes",
    fast="test_what_is_new_is_said_once_and_is_the_exit_status",
)
def test_a_campaign_that_is_killed_goes_on_and_finds_each_thing_once(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "own_backend.py").write_text(BACKEND)
    options = ["--backend=own_backend:faulty", "--budget=1", "--workers=1", "--seed=5", "--no-blame"]
    folder = tmp_path / "regional-findings"

    def markers():
        return list(folder.glob("campaigns/*/checking/*.json"))

    command = start(*options)
    wait(markers)
    os.kill(int(markers()[0].stem.rpartition("-")[2]), signal.SIGKILL)  # the process; the command starts another one
    wait(lambda: any(json.loads(path.read_text())["deaths"] for path in folder.glob("campaigns/*/shard-*.json")))
    command.kill()
    command.wait()
    wait(lambda: not list((tmp_path / "tmp").iterdir()))  # its processes end, and remove what they wrote

    status, output = fuzzed(*options)

    assert status == 1, output
    assert output.splitlines()[0].startswith("own_backend:faulty, native, cpu; --seed=5; campaign regional-findings/")
    scripts = list(folder.glob("faulty-*.py"))
    assert scripts
    assert all(output.count(f"{script.name}\n") == 1 for script in scripts)
    (shard,) = folder.glob("campaigns/*/shard-*.json")
    assert json.loads(shard.read_text())["done"] == 1
    assert not (folder / "crashes").exists()

    status, output = fuzzed(*options)

    assert (status, output.splitlines()[-1]) == (0, "nothing new")

    # Another campaign: findings that are in the directory are known.
    assert main(["findings", "regional-findings", "--merge=merged"]) == 0
    assert {path.name for path in Path("merged").iterdir()} == {
        path.name for path in folder.iterdir() if path.is_file()
    }


@pytest.mark.slow(
    "starts processes that import torch",
    fast="tests/fuzz/test_processes.py::test_a_process_that_cannot_work_says_why_and_no_more",
)
def test_a_backend_that_does_not_exist(tmp_path):
    (tmp_path / "tmp").mkdir()
    status, output = fuzzed("--backend=no_such_module:it", "--budget=1", "--workers=1")

    assert status == 2
    assert "no_such_module" in output
    assert "Traceback" not in output
