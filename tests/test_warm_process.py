"""Processes that are forked are new in all that a test looks at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tests import warm_process
from tests.warm_process import run_module, run_script

TELL = """
    import json, os, sys
    project = ("pytest_regional", "tests", "cold")
    print(json.dumps({
        "number": os.getpid(),
        "arguments": sys.argv[1:],
        "folder": os.getcwd(),
        "first": sys.path[:2],
        "environment": dict(os.environ),
        "imported": sorted({name.partition(".")[0] for name in sys.modules} & set(project)),
        "torch": "torch" in sys.modules,
        "random": __import__("random").random(),
    }))
"""


@pytest.fixture
def run(tmp_path):
    def run(source, *arguments, timeout=None, **environment):
        (tmp_path / "cold.py").write_text(textwrap.dedent(source))
        return run_module("cold", arguments, tmp_path, {**os.environ, "PYTHONPATH": "", **environment}, timeout)

    return run


def test_what_a_process_finds(run, tmp_path):
    one = json.loads(run(TELL, "--first", "2", PYTEST_MINE="yes", PYTHONPATH="/nowhere").stdout)
    assert one["torch"]
    assert one["arguments"] == ["--first", "2"]
    assert one["folder"] == str(tmp_path)
    assert one["first"] == [str(tmp_path), "/nowhere"]
    assert one["environment"] == {**os.environ, "PYTEST_MINE": "yes", "PYTHONPATH": "/nowhere"}
    assert one["imported"] == []


def test_each_is_another(run):
    told = [json.loads(run(TELL).stdout) for _ in range(3)]
    assert len({one["number"] for one in told} | {os.getpid()}) == 4
    assert len({one["random"] for one in told}) == 3
    assert "PYTEST_MINE" not in told[0]["environment"]


def test_the_next_one_lacks_what_one_compiled(run):
    source = """
        import torch
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        torch.compile(torch.sin, backend="aot_eager")(torch.ones(2))
        print(before, torch._dynamo.utils.counters["stats"]["unique_graphs"])
    """
    assert [run(source).stdout for _ in range(2)] == ["0 1\n", "0 1\n"]


def test_status_output_and_complaints(run):
    done = run("import sys; print('said'); sys.exit(5)")
    assert (done.returncode, done.stdout, done.stderr) == (5, "said\n", "")
    done = run("import atexit; atexit.register(print, 'at the end'); 1 / 0")
    assert (done.returncode, done.stdout) == (1, "at the end\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert run("import os; os.kill(os.getpid(), 9)").returncode == -9
    assert run("print('and the server lives')").stdout == "and the server lives\n"


def test_one_that_hangs_is_killed(run):
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run("import time; print('begun', flush=True); time.sleep(60)", timeout=2)
    assert "begun" in str(caught.value.stdout)
    assert run("print('the next')").stdout == "the next\n"


def test_settings_that_torch_reads_on_import_are_not_another_tests(run):
    there = json.loads(run(TELL, TORCHINDUCTOR_COMPILE_THREADS="3").stdout)
    assert there["environment"]["TORCHINDUCTOR_COMPILE_THREADS"] == "3"
    assert not there["torch"]


def test_settings_of_a_test_do_not_reach_the_server(run, monkeypatch):
    """Whoever asks first."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    assert not json.loads(run(TELL).stdout)["torch"]
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", warm_process.ENVIRONMENT["TORCHINDUCTOR_COMPILE_THREADS"])
    assert json.loads(run(TELL).stdout)["torch"]


def test_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(__name__, 'torch' in sys.modules)\nsys.exit(1)\n")
    done = run_script(script, {**os.environ, "PYTHONPATH": ""})
    assert (done.returncode, done.stdout) == (1, "__main__ True\n")


def test_it_is_as_python_runs_a_module(run, tmp_path):
    """The same program told by a new interpreter, but for what differs between any two processes."""
    forked = json.loads(run(TELL).stdout)
    new = subprocess.run(
        [sys.executable, "-m", "cold"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    fresh = json.loads(new.stdout)
    for differs in ("number", "random", "torch", "first"):
        del forked[differs], fresh[differs]
    assert forked == fresh


MADE = """
    import multiprocessing, os

    print(multiprocessing.get_start_method(allow_none=True), multiprocessing.active_children())
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.apply(os.getpid) != os.getpid())
"""


def test_it_is_no_process_of_multiprocessings(run):
    assert run(MADE).stdout == "None []\nTrue\n"


WORKER = """
    import json, os, sys
    import numpy, pytest

    torch = sys.modules.get("torch")
    known = sorted({name.partition(".")[0] for name in sys.modules} & {"pytest_regional", "tests"})

    @pytest.mark.parametrize("number", range(2))
    def test_it(number):
        draws = [torch and float(torch.rand(1)), numpy.random.rand()]
        print("told:", json.dumps([os.getppid(), sys.argv, known, draws]))
        os.environ.get("PYTEST_DIE") and os._exit(3)
"""


def test_workers_are_forked_with_torch_and_each_draws_its_own_numbers(tmp_path):
    (tmp_path / "test_it.py").write_text(textwrap.dedent(WORKER))
    options = ["-n2", "--dist=each", "-rP", "-pno:regional", "-pno:randomly", "-pno:hypothesispytest"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = run_module("pytest", options, tmp_path, environment)
    told = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("told:")]
    assert len(told) == 4, done.stdout + done.stderr
    assert len({parent for parent, *_ in told}) == 1
    assert {(*arguments, *known) for _, arguments, known, _ in told} == {("-c",)}
    assert len({number for *_, draws in told for number in draws} - {None}) == 8
    done = run_module("pytest", [*options, "--dist=load"], tmp_path, {**environment, "PYTEST_DIE": "1"})
    assert "worker 'gw0' crashed" in done.stdout
    assert done.returncode == 1
