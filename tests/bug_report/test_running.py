"""Scripts in processes: outcomes, backends, seeds, measures, and what ends a process."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from pytest_regional.bug_report import running
from pytest_regional.bug_report.running import Changes, ScriptRunner
from tests.warm_process import server

pytestmark = pytest.mark.usefixtures("warm_process")

HEAD = "import os, sys\nimport torch\n"
COMPILED = """\
import torch

def program(x):
    return x.sin()

torch.manual_seed(0)
x = torch.rand(3)
print(x[0].item())
print(type(torch.compile(program, backend="aot_eager")(x)).__name__)
torch.testing.assert_close(program(x), program(x))
"""


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return ScriptRunner(tmp_path_factory.mktemp("scripts"), seconds=1000)


OUTCOMES = """\
import os, sys
import torch

torch.manual_seed(0)
match torch.initial_seed():
    case 0:
        print("fine")
    case 1:
        sys.exit(2)
    case 2:
        print("still fails")
        sys.exit(1)
    case 3:
        raise ValueError(f"{__file__} {torch.__file__}")
    case 4:
        os.kill(os.getpid(), 11)
    case 5:
        os._exit(0)
"""


def test_outcomes(runner):
    """One process runs them all, until one ends it; the next one is run in another."""
    right, unknown, wrong, raises, died, ended, after = runner.run_each(
        OUTCOMES, [*(Changes(seed=seed) for seed in range(6)), Changes()]
    )

    assert (right.outcome, right.printed, after.outcome) == ("right", "fine\n", "right")
    assert unknown.outcome == "not checked"
    assert (wrong.outcome, wrong.printed) == ("wrong", "still fails\n")
    # Directories of this machine are left out.
    assert "ValueError: script.py torch/__init__.py" in raises.said
    assert "exit status -11" in died.said
    assert ended.outcome == "not checked"
    assert [one.shows for one in (right, unknown, wrong, raises, died)] == [False, False, True, True, True]


def test_the_first_that_shows_it_is_the_last_that_runs(runner):
    runs = runner.run_until_one_shows([HEAD, HEAD + "raise ValueError\n", HEAD + "raise KeyError\n", HEAD], "KeyError")

    # In eager each is the same: none of them is about a compiler.
    assert [run.outcome for run in runs] == ["right", "raises", "not checked", "right"]
    assert "in eager it is raises: KeyError" in runs[2].said


def test_a_script_that_is_right_in_eager_alone_shows_it(runner):
    script = COMPILED.replace("program(x))", "torch.compile(program, backend=lambda gm, i: lambda *x: (x[0],))(x))")

    runs = runner.run_until_one_shows([COMPILED, script, COMPILED])

    assert [run.outcome for run in runs] == ["right", "wrong"]
    assert "not close" in runs[1].said
    assert runs[1].shows


def test_a_defect_of_dynamo_shows_with_the_backend_eager(runner):
    script = COMPILED.replace("x.sin()", "x.sin() + torch.compiler.is_compiling()").replace(
        "program(x))", 'torch.compile(program, backend="eager")(x))'
    )

    (run,) = runner.run_until_one_shows([script])

    assert run.outcome == "wrong"


def test_what_pytorch_compiles_itself_is_left_to_it(runner):
    """In eager ``torch.cond`` compiles its branches; with a gradient it fails where that is left out."""
    script = """\
import torch

def program(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

torch.compile(program)(torch.ones(3, requires_grad=True)).sum().backward()
"""
    uncompiled, eager = runner.run_each(script, [Changes(uncompiled=True), Changes("eager", measure=True)])

    assert (uncompiled.outcome, eager.outcome) == ("right", "right"), uncompiled.said
    assert eager.facts["parity"] == "holds"


def test_changes(runner):
    usual, again, seeded, random = runner.run_each(
        COMPILED,
        [Changes(), Changes("eager"), Changes(seed=1), Changes(fallback_random=True, measure=True, blame_seconds=5)],
    )

    assert usual.printed == again.printed == random.printed != seeded.printed
    assert random.facts["same"] == "holds"
    assert random.facts["parity"] == "holds"
    assert "culprit" not in random.facts


CALLED_TWICE = """\
import torch

def program(x):
    return x.sin()

def forgets(gm, inputs):
    calls = []
    return lambda *args: gm(*args) if not calls and not calls.append(1) else (torch.zeros(3),)

compiled = torch.compile(program, backend=forgets)
first, second = compiled(torch.ones(3)), compiled(torch.ones(3))
torch.testing.assert_close(second, first)
"""


def test_what_is_observed_of_a_script(runner):
    wrong = COMPILED.replace("program(x))", "torch.compile(program, backend=lambda gm, i: lambda *x: (x[0],))(x))")

    first, second = (runner.run(script, Changes(measure=True)).facts for script in (wrong, CALLED_TWICE))

    # The first program of the script is right.
    assert first["parity"] == "holds"
    assert first["fails"] == "parity run alias of output, value of output"
    assert first["features"] == "dtype:float32"
    assert first["operators"] == "sin aten_sin_default"
    assert second["parity"] != "holds"
    assert second["fails"] == "further_calls run value of output (second call)"


def test_where_an_exception_comes_is_observed(runner):
    script = """\
import torch

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("no gradient")

def program(x):
    return x * 2

def fails(gm, inputs):
    return lambda *inputs: tuple(map(Fails.apply, gm(*inputs)))

torch.compile(program, backend=fails)(torch.ones(3, requires_grad=True)).sum().backward()
"""
    run = runner.run(script, Changes(measure=True))

    assert run.outcome == "raises"
    assert run.facts["fails"].startswith("compiles backward ValueError at ")


def test_pytorchs_rule_is_asked_of_inputs_as_well(runner):
    script = """\
import torch

def program(x, factor):
    x.add_(factor)
    return x.sin()

def loses_writes(gm, inputs):
    return lambda *inputs: gm(*[one.clone() for one in inputs])

torch.compile(program, backend=loses_writes)(torch.ones(3), 2)
"""
    run = runner.run(script, Changes(measure=True))

    assert run.outcome == "right"
    assert run.facts["same"] == "fails"
    assert runner.run(script.replace("one.clone()", "one"), Changes(measure=True)).facts["same"] == "holds"


def test_the_culprit_is_searched_with_the_script_as_the_check(runner):
    wrong = COMPILED.replace("program(x), program(x)", "torch.compile(program, backend='aot_eager')(x), x")

    run = runner.run(wrong, Changes(measure=True, blame_seconds=20))

    assert run.outcome == "wrong"
    assert "no compiler" in run.facts["culprit"]
    assert "nothing compiled" in run.facts["evidence"]


HANGS = """\
import time
import torch

torch.manual_seed(0)
while torch.initial_seed() == 1:
    time.sleep(1)
"""


def test_a_run_that_hangs_is_the_last_of_its_script(tmp_path, monkeypatch):
    def until_the_second_hangs(module, arguments, environment, seconds, python):
        process = server().fork(module, arguments, environment, str(Path.cwd()), (1, 2))
        answer = Path(arguments[1])
        while not (answer.exists() and answer.read_text()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                break
        process.kill()
        process.wait()
        raise subprocess.TimeoutExpired(module, seconds)

    monkeypatch.setattr(running, "run_interpreter", until_the_second_hangs)
    runner = ScriptRunner(tmp_path, seconds=30)

    runs = runner.run_each(HANGS, [Changes(seed=seed) for seed in range(4)])

    assert [run.outcome for run in runs] == ["right", "too slow", "not checked", "not checked"]
    assert runs[2].said == "an earlier run of the script took too long"
    assert len(list(tmp_path.iterdir())) == 1  # one process


def test_the_search_for_a_culprit_has_its_own_time(tmp_path):
    (run,) = ScriptRunner(tmp_path, seconds=0.5).run_each(HANGS, [Changes(blame_seconds=600)])

    assert run.outcome == "right"


def test_a_script_that_takes_too_long(tmp_path):
    (run,) = ScriptRunner(tmp_path, seconds=0.5).run_each("while True:\n    pass\n", [Changes()])

    assert run.outcome == "too slow"
    assert "0.5 s" in run.said
