"""Processes that are forked are new in all that a test looks at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

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
    run("")  # so that there is a server for this environment
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


def test_what_one_compiled_the_next_has_not(run):
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


def test_what_torch_reads_on_import_is_never_anothers(run, monkeypatch):
    """At the first request an interpreter of its own, at the second a server with that environment."""
    run("")  # so that there is a server for another environment
    monkeypatch.setattr(warm_process, "_SERVERS", dict(warm_process._SERVERS))
    monkeypatch.setattr(warm_process, "_MOST_SERVERS", 9)
    told = [json.loads(run(TELL, TORCHINDUCTOR_COMPILE_THREADS=number).stdout) for number in ("3", "5", "5")]
    assert [one["environment"]["TORCHINDUCTOR_COMPILE_THREADS"] for one in told] == ["3", "5", "5"]
    assert [one["torch"] for one in told] == [False, False, True]
    source = "import torch._inductor.config as config; print(config.compile_threads)"
    assert run(source, TORCHINDUCTOR_COMPILE_THREADS="5").stdout == "5\n"


def test_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(__name__, 'torch' in sys.modules)\nsys.exit(1)\n")
    run_script(script, {**os.environ, "PYTHONPATH": ""})  # so that there is a server for this environment
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


ANCESTORS = """
    import os, pathlib

    ancestor = os.getpid()
    while ancestor := int(pathlib.Path(f"/proc/{ancestor}/stat").read_text().rpartition(")")[2].split()[1]):
        print(ancestor)
"""


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="the ancestors of a process are read as Linux has them"
)
def test_it_is_no_descendant_of_the_test(run):
    """Or a test that ends what it has started would end what another worker's test waits for."""
    run("")  # so that there is a server for this environment
    found = run(ANCESTORS).stdout.split()
    assert found
    assert str(os.getpid()) not in found


# The last test waits for the worker that replaces the dead one: the other might do all the rest before it is there.
WORKERS = """
    import json, os, pathlib, sys, time, pytest

    TOLD = pathlib.Path(__file__).with_name("told")
    with TOLD.open("a") as file:
        told = os.environ["PYTEST_XDIST_WORKER"], os.getpid(), "torch" in sys.modules, __name__
        print(json.dumps(told), file=file)

    @pytest.mark.parametrize("number", range(6))
    def test_it(number):
        if number == 2:
            os.kill(os.getpid(), 11)
        deadline = time.monotonic() + 60
        while number == 5 and len(TOLD.read_text().splitlines()) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
"""


@pytest.fixture
def workers(tmp_path):
    """Run tests by two workers, one of which dies; return what was printed and what each worker told."""

    def run(*options, **environment):
        (tmp_path / "test_workers.py").write_text(textwrap.dedent(WORKERS))
        where = {**os.environ, "PYTHONPATH": "", "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        arguments = "-p", "xdist", "-n", "2", "-q", *options
        done = run_module("pytest", arguments, tmp_path, {**where, **environment})
        told = tmp_path / "told"
        lines = [json.loads(line) for line in told.read_text().splitlines()]
        told.unlink()
        return done, lines

    run()  # so that there is a server for this environment
    return run


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux forks workers")
def test_workers_are_forked_and_replaced(workers):
    done, told = workers()
    assert done.returncode == 1
    assert "1 failed, 5 passed" in done.stdout
    assert "crashed while running" in done.stdout
    assert "Segmentation fault" in done.stderr
    assert sorted(worker for worker, *_ in told) == ["gw0", "gw1", "gw2"]
    assert len({number for _, number, *_ in told} | {os.getpid()}) == 4
    assert {(torch, name) for *_, torch, name in told} == {(True, "test_workers")}


def test_workers_in_another_environment_are_new_interpreters(workers, tmp_path):
    (tmp_path / "conftest.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '7'\n")
    done, told = workers()
    assert "1 failed, 5 passed" in done.stdout
    assert [torch for *_, torch, _ in told] == [False] * 3
