"""``pytest-regional fuzz``: what it says of options, and one campaign on processes, one on a Ray cluster."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_regional._text import plural
from pytest_regional.command_line import fuzz, main
from pytest_regional.fuzz.store import open_store
from pytest_regional.fuzz.workers.plan import Part, Plan, joined

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


def fuzzed(*arguments, **options):
    """Run the command in a new interpreter; return status and output."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest_regional", "fuzz", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        **options,
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget=soon"], "--budget: 'soon' is no budget: give a number of programs (500), a time (30s, 10m, 2h)"),
        (["--workers=0"], "--workers=0: give a number from 1 to 10000."),
        (["--memory=lots"], "--memory=lots: expected a size from"),
        (["--seed=-1"], "--seed=-1: give a number from 0 to"),
        (
            ["--mode=nativ"],
            "--mode=nativ: unknown mode 'nativ'. Did you mean 'native'? Known: aten, emulated, graph, interpret, nat",
        ),
        (["--settings=fredom"], "--settings=fredom: unknown setting 'fredom'. Known: all, "),
        (["--timeout=0"], "--timeout=0: give seconds from 1 to 86400."),
        (["--environment=new"], "--environment=new: write NAME=PYTHON, such as 2.11=.venv-2.11/bin/python."),
        (["--environment=new=there"], "--environment=new=there: there is no program that can be run."),
        (["--environment=a=/bin/sh", "--environment=a=/bin/sh"], "there are two environments of that name."),
        (["--ci", "--prune"], "--ci and --prune exclude each other: give one of them."),
        (["--watch"], "--watch goes with --status."),
        (["--backend="], "--backend= has no value: leave it out, or give one."),
        (["--page=no/page.html"], "--page=no/page.html: it cannot be written: No such file or directory."),
        (["--store=http://host/"], "http"),
        (["--store=empty"], "empty holds no campaign: say what to fuzz with --backend and --mode."),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_option_that_makes_no_sense(capsys, arguments, says):
    assert main(["fuzz", *arguments]) == 2

    assert says in capsys.readouterr().err


def test_a_directory_of_findings_that_cannot_be_made(capsys):
    Path("taken").write_text("")

    assert main(["fuzz", "--findings=taken/findings"]) == 2
    assert "--findings=taken/findings: it cannot be made: Not a directory." in capsys.readouterr().err


def test_another_campaign_is_in_the_store(capsys):
    joined(open_store("store"), Plan((Part("reference", "cpu", "native"),), 1))

    assert main(["fuzz", "--store=store", "--backend=torch"]) == 2
    assert "holds another campaign: parts: reference, native, not torch, native" in capsys.readouterr().err


def test_a_backend_that_the_store_alone_names_is_not_imported(capsys):
    joined(open_store("store"), Plan((Part("os:system", "cpu", "native"),), 1))

    assert main(["fuzz", "--store=store"]) == 2
    assert "which is imported only if you name it: add --backend=os:system." in capsys.readouterr().err


def test_ray_that_is_not_installed(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)

    assert main(["fuzz", "--cluster=local"]) == 2
    assert "pip install 'pytest-regional[cluster]'" in capsys.readouterr().err


def test_who_joins_may_ask_for_more_programs(monkeypatch):
    with contextlib.closing(open_store("store")) as store:
        joined(store, Plan((Part("eager", "cpu", "native"),), 7, programs=4))

    class Stopped(Exception):
        """Raised where the campaign would begin."""

    def begins(store, url, plan, *_, **options):
        raise Stopped(plan.programs)

    monkeypatch.setattr("pytest_regional.fuzz.workers.head.Head", begins)

    for budget, programs in (("6", 6), ("10m", 6), ("9", 9)):
        with pytest.raises(Stopped, match=f"^{programs}$"):
            main(["fuzz", "--store=store", f"--budget={budget}"])


def test_plans_that_differ_have_stores_of_their_own(tmp_path):
    plan = Plan((Part("reference", "cpu", "native"),), 1)
    other = Plan((Part("torch", "cpu", "native"),), 1)

    stores = {fuzz._default_store(tmp_path, one) for one in (plan, other, Plan(plan.parts, 2, programs=5))}

    assert len(stores) == 2


def test_the_command_imports_no_torch_before_it_is_needed():
    code = "import sys; from pytest_regional.command_line import fuzz; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def test_a_campaign_finds_writes_and_goes_on(tmp_path):
    (tmp_path / "own_backend.py").write_text(BACKEND)
    options = ["--backend=own_backend:faulty", "--budget=2", "--workers=1", "--seed=5", "--no-blame", "--guidance=off"]

    status, output = fuzzed(*options)

    assert status == 1, output
    assert "own_backend:faulty, native; --seed=5; 1 worker; store " in output
    scripts = list((tmp_path / "regional-findings").glob("faulty-*.py"))
    assert scripts
    assert all(f"{script.with_suffix('').name}" in output for script in scripts)
    assert {script.with_suffix(".json").is_file() for script in scripts} == {True}

    status, output = fuzzed(*options)  # its two programs are checked

    assert (status, output.splitlines()[-1]) == (0, "nothing new")

    # A campaign of its own, elsewhere: what is in the directory is known.
    status, output = fuzzed(*options, f"--store={tmp_path / 'other'}")

    assert (status, output.splitlines()[-1]) == (0, "nothing new")

    # What is known is checked again, fails, is not new, and its files stay as they are.
    texts = {script: script.read_text() for script in scripts}

    status, output = fuzzed("--ci", "--backend=own_backend:faulty", "--workers=1", "--no-blame")

    assert (status, output.splitlines()[-1]) == (0, "nothing new")
    assert f"to be checked again: {plural(len(scripts), 'known finding')}, 0 kept programs; 0 fixed" in output
    assert {script: script.read_text() for script in scripts} == texts


def test_a_killed_command_leaves_no_directories_of_workers(tmp_path):
    (tmp_path / "tmp").mkdir()
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    command = [sys.executable, "-m", "pytest_regional", "fuzz", "--backend=eager", "--workers=2", "--guidance=off"]
    started = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def wait(condition):
        until = time.monotonic() + 120
        while not condition() and time.monotonic() < until:
            time.sleep(0.1)
        assert condition()

    try:
        wait(lambda: len(list((tmp_path / "tmp").glob("*/*/running.json"))) == 2)
    finally:
        started.kill()
        started.wait()

    wait(lambda: not list((tmp_path / "tmp").iterdir()))


def test_a_backend_that_is_not_there():
    status, output = fuzzed("--backend=no_such_module:it", "--budget=1", "--workers=1")

    assert status == 2
    assert "a worker in environment 'python': " in output
    assert "no_such_module" in output
    assert "Traceback" not in output


def test_a_campaign_on_a_local_ray_cluster():
    if importlib.util.find_spec("ray") is None:  # not imported here: that sets a variable of this process
        pytest.skip("ray is not installed; pip install 'pytest-regional[cluster]'")

    status, output = fuzzed(
        "--backend=eager", "--budget=2", "--workers=1", "--seed=5", "--guidance=off", "--cluster=local"
    )

    assert (status, output.splitlines()[-1]) == (0, "nothing new")
    assert "2 programs" in output
