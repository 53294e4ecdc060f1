import dataclasses
import json
import os
import runpy
import sys
from pathlib import Path

import pytest
import torch._inductor.config

from pytest_regional._base.documents import DocumentError
from pytest_regional.cli import main
from pytest_regional.fuzz.findings import folder
from pytest_regional.fuzz.findings.files import Signature
from pytest_regional.fuzz.findings.folder import Finding, FindingsFolder, features_of
from pytest_regional.fuzz.findings.scripts import shows
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Step
from tests.warm_process import run_script

ROOT = Path(__file__).resolve().parents[2]

A, B = (Region("a"),), (Region("b"),)

#: Two regions that wait for each other, which PyTorch's backend refuses as a cycle.
INTERLEAVED = Program(
    (TensorInput((4, 4)), TensorInput((4, 4))),
    (
        Step("neg", (0,), (), (2,), A),
        Step("neg", (1,), (), (3,), B),
        Step("mul", (2, 1), (), (4,), B),
        Step("mul", (3, 0), (), (5,), A),
    ),
    (4, 5),
    training=False,
)
HARMLESS = Program((TensorInput((4,)),), (Step("neg", (0,), (), (1,), A),), (1,), training=False)


def finding(program=INTERLEAVED, oracle="compiles", **changes):
    signature = Signature(oracle, "compile", "AssertionError at torch.fx.passes").with_features(features_of(program))
    made = Finding(signature, program, program, "does not compile", backend="torch", versions={"torch": "2.13.0"})
    return dataclasses.replace(made, **changes)


def test_a_finding_survives_its_file(tmp_path):
    folder = FindingsFolder(tmp_path / "findings")
    script = folder.save(finding())

    assert list(folder) == [finding()]
    assert script.suffix == ".py"
    assert script.with_suffix(".json") == folder.paths()[0]
    assert {path.suffix for path in folder.path.iterdir()} == {".py", ".json"}  # nothing else is left there


def test_the_smaller_program_stays(tmp_path):
    folder = FindingsFolder(tmp_path)
    smaller = finding(program=HARMLESS)
    larger = dataclasses.replace(smaller, program=INTERLEAVED)
    for one in (larger, smaller, larger):
        folder.save(one)

    assert [len(one.program.steps) for one in folder] == [1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ('{"version": 9}', "version 9"),
        ('{"version": 1}', "version 1"),
        ('{"version": 2}', "no finding"),
    ],
)
def test_a_file_that_holds_no_finding_is_named(tmp_path, text, problem):
    path = tmp_path / "odd.json"
    path.write_text(text)

    with pytest.raises(DocumentError, match=rf"odd\.json.*{problem}"):
        FindingsFolder(tmp_path).read(path)


@pytest.mark.parametrize("oracle", ["parity", "alias_probe", "further_calls", "retained_backward", "rewrites"])
def test_signatures_of_wrong_results_cover_programs_with_the_features_and_more(oracle):
    known = finding(oracle=oracle).signature
    same = Signature(known.oracle, known.stage, known.origin)

    assert known.covers(same, features_of(INTERLEAVED) | {"op:sin"})
    assert not known.covers(same, features_of(HARMLESS))
    assert not known.covers(dataclasses.replace(same, origin="another"), features_of(INTERLEAVED))
    assert known.name != dataclasses.replace(known, origin="another").name


def test_signatures_of_what_does_not_compile_cover_any_program():
    known = finding(oracle="compiles").signature

    assert known.features == frozenset()
    assert known.covers(Signature(known.oracle, known.stage, known.origin), features_of(HARMLESS))


def run(script):
    return run_script(script, os.environ, timeout=120)


def test_a_script_needs_only_torch_and_exits_with_1_while_the_defect_stands(tmp_path):
    script = FindingsFolder(tmp_path).save(finding())

    assert "pytest_regional" not in script.read_text()
    result = run(script)
    assert result.returncode == 1, result.stdout + result.stderr
    assert (
        "still fails: InductorError: AssertionError" in result.stdout
        or "still fails: BackendCompilerFailed" in result.stdout
    )


def test_a_script_exits_with_0_where_nothing_is_wrong(tmp_path):
    script = FindingsFolder(tmp_path).save(finding(program=HARMLESS, oracle="parity", backend="aot_eager"))

    result = run(script)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "fixed" in result.stdout


#: What keeps a script from checking: the oracle, the backend, and what is put in place of what in the script.
NOT_CHECKED = {
    "a package that is not there": ("compiles", "torch", "import torch\n", "import no_such_package\nimport torch\n"),
    "a torch without the backend": ("parity", "torch", "import regional_inductor", "import no_such_backend"),
    "no backend of that name": ("compiles", "no_such_backend", "", ""),
    "no module of the backend": ("parity", "no_such_module:own", "", ""),
    "a module that fails": ("compiles", "failing_backend:own", "", ""),
    "a backend that lacks a package": ("compiles", "lacking_backend:own", "", ""),
    "the same where values are compared": ("parity", "lacking_backend:own", "", ""),
    "eager refuses the program": ("compiles", "aot_eager", "torch.neg", "torch.no_such_function"),
    "eager refuses to compare": ("parity", "aot_eager", "torch.neg", "torch.no_such_function"),
    "this package is not there": ("plan", "torch", "from pytest_regional", "from no_such_package"),
    "the harness knows no such backend": ("plan", "no_such_backend", "", ""),
    "no finding beside the script": ("plan", "aot_eager", "beside(__file__)", "beside('/no/such/file')"),
}
BACKENDS = {
    "failing_backend.py": "raise RuntimeError('at import')\n",
    "lacking_backend.py": "def own(gm, example_inputs):\n    import no_such_package\n",
}


@pytest.mark.parametrize("why", NOT_CHECKED)
def test_a_script_that_cannot_check_exits_with_2(tmp_path, why):
    oracle, backend, old, new = NOT_CHECKED[why]
    for name, source in BACKENDS.items():
        (tmp_path / name).write_text(source)
    script = FindingsFolder(tmp_path).save(finding(program=HARMLESS, oracle=oracle, backend=backend))
    assert old in script.read_text()
    script.write_text(script.read_text().replace(old, new, 1) if old else script.read_text())

    result = run_script(script, {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}, timeout=120)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "cannot be" in result.stdout
    assert "still fails" not in result.stdout
    assert "fixed" not in result.stdout


def test_a_compile_that_fails_where_values_were_wrong_still_fails(tmp_path):
    (tmp_path / "refusing_backend.py").write_text(
        "def own(gm, example_inputs):\n    raise KeyError('of the backend')\n"
    )
    script = FindingsFolder(tmp_path).save(finding(program=HARMLESS, oracle="parity", backend="refusing_backend:own"))

    result = run_script(script, {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}, timeout=120)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "call 1: compiled raises BackendCompilerFailed" in result.stdout
    assert "still fails" in result.stdout


def test_replay_goes_on_behind_a_finding_that_raises(tmp_path, capsys, monkeypatch):
    folder = FindingsFolder(tmp_path)
    folder.save(finding(program=HARMLESS, oracle="parity", backend="aot_eager"))
    folder.save(finding(program=HARMLESS, oracle="compiles", backend="aot_eager"))

    def fails(self, harness):
        raise ModuleNotFoundError(f"No module named 'wanted by {self.signature.oracle}'")

    monkeypatch.setattr(Finding, "check", fails)
    assert main(["replay", str(tmp_path)]) == 2
    assert "ModuleNotFoundError: No module named 'wanted by parity'" in capsys.readouterr().out


@pytest.mark.parametrize(("shown", "package"), [(True, False), (False, True)])
def test_a_script_that_shows_nothing_checks_with_the_harness(tmp_path, monkeypatch, shown, package):
    monkeypatch.setattr(folder, "shows", lambda script, text: shown and text == "AssertionError")

    script = FindingsFolder(tmp_path).save_shown(finding()).read_text()

    assert ("from pytest_regional.fuzz.oracles import" in script) == package


def test_where_there_is_no_time_to_run_a_script_it_checks_with_the_harness(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "shows", lambda script, text: pytest.fail("it is not to be run"))
    script = FindingsFolder(tmp_path).save_shown(finding(), run=False).read_text()
    assert "from pytest_regional.fuzz.oracles import" in script


def test_a_script_has_to_say_what_was_found(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('still fails: KeyError: 1')\nraise SystemExit(1)\n")

    assert shows(script, "KeyError")
    assert not shows(script, "IndexError")
    assert not shows(script, seconds=0.001)


def test_a_parity_script_tells_what_differs(tmp_path):
    """The compiled program of this one really is another: its source is edited between eager and compiled."""
    script = FindingsFolder(tmp_path).save(finding(program=HARMLESS, oracle="parity", backend="aot_eager"))
    text = script.read_text().replace(
        "compiled = torch.compile(program,", "compiled = torch.compile(lambda x: (x * -2,),"
    )
    assert text != script.read_text()
    script.write_text(text)

    result = run(script)
    assert result.returncode == 1
    assert "call 1: output 0: [" in result.stdout
    assert "still fails" in result.stdout


def test_replay_says_what_became_of_each(tmp_path, capsys):
    folder = FindingsFolder(tmp_path)
    folder.save(finding(program=HARMLESS, oracle="parity", backend="aot_eager"))
    (tmp_path / "broken.json").write_text(json.dumps({"version": 1}))

    assert main(["replay", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("fixed       aot_eager-parity-compile-")
    assert lines[1].startswith("error       broken: ")
    assert lines[2] == "2 findings: 1 fixed, 0 still fails, 1 error"


def test_replay_of_what_still_fails(tmp_path, capsys):
    FindingsFolder(tmp_path).save(finding())

    assert main(["replay", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("still fails torch-compiles-compile-")


def test_replay_on_another_backend_and_deletion_of_what_is_fixed(tmp_path, capsys):
    FindingsFolder(tmp_path).save(finding())

    assert main(["replay", str(tmp_path), "--backend", "aot_eager", "--delete-fixed"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert "1 fixed" in capsys.readouterr().out


def edited(tmp_path, **changes):
    path = FindingsFolder(tmp_path).save(finding(program=HARMLESS, oracle="parity", backend="aot_eager"))
    data = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**data, **changes}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"oracle": "colour"}, "RegionalValueError: unknown oracle 'colour'"),
        ({"mode": "slow"}, "no finding: mode: Invalid enum value 'slow'"),
        (
            {"program": {"version": 1, "arguments": [{"shape": [2], "dtype": "float3"}]}},
            "no finding: program.arguments[0].dtype: Invalid enum value 'float3'",
        ),
    ],
)
def test_replay_of_nonsense_is_an_error_and_goes_on(tmp_path, capsys, changes, problem):
    edited(tmp_path, **changes)
    FindingsFolder(tmp_path).save(finding(program=HARMLESS, oracle="compiles", backend="aot_eager"))

    assert main(["replay", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("fixed       aot_eager-compiles")
    assert lines[1].startswith("error       aot_eager-parity")
    assert problem in lines[1]


def test_replay_elsewhere_takes_the_mode_that_is_there(tmp_path, capsys):
    FindingsFolder(tmp_path).save(finding(mode="interpret", backend="reference"))

    assert main(["replay", str(tmp_path), "--backend", "aot_eager"]) == 0


@pytest.mark.parametrize(("place", "code", "said"), [("", None, "fixed"), ("found", 2, "cannot be imported")])
def test_a_script_finds_a_backend_where_it_is_run(tmp_path, monkeypatch, capsys, place, code, said):
    (tmp_path / "own_backend.py").write_text("from torch._dynamo.backends.debugging import aot_eager as own\n")
    script = FindingsFolder(tmp_path / "found").save(finding(program=HARMLESS, backend="own_backend:own"))
    monkeypatch.chdir(tmp_path / place)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "put back")
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "own_backend", raising=False)

    ended = None
    with torch._inductor.config.patch(fallback_random=False):
        try:
            runpy.run_path(str(script))
        except SystemExit as end:
            ended = end.code
    monkeypatch.delitem(sys.modules, "own_backend", raising=False)
    assert (ended, said in capsys.readouterr().out) == (code, True)


@pytest.mark.parametrize(("name", "problem"), [("nowhere", "is not there"), ("", "holds no findings")])
def test_replay_of_nothing_is_a_usage_error(tmp_path, capsys, name, problem):
    assert main(["replay", str(tmp_path / name)]) == 2
    assert problem in capsys.readouterr().err
