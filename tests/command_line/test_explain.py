"""``python -m pytest_regional explain``: what it prints, and what it says of what it cannot do."""

import json
import os
from pathlib import Path

import pytest

import pytest_regional.testing
from pytest_regional.command_line import main
from tests.warm_process import run_module

HERE = "tests.command_line.factories"


@pytest.fixture
def explain(capsys):
    """Run the command in this process; returns status, output and errors."""

    def run(*arguments):
        try:
            status = main(["explain", *arguments])
        except SystemExit as ended:
            status = ended.code
        output, errors = capsys.readouterr()
        return status, output, errors

    with pytest_regional.testing.regional("reference", expects_regions=False) as harness:
        run.harness = harness
        yield run


def test_regions_partitions_and_passes(explain):
    names = "canonicalization,dead_code_elimination,regional_inductor"
    with explain.harness.expect(region_compiles=2):
        status, output, _ = explain(f"{HERE}:block", "--passes", names, "--disable", "dead_code_elimination")

    assert status == 0
    lines = output.splitlines()
    assert lines[0].startswith("Block: 2 parameters, 0 buffers; capture ")
    assert lines[1] == "passes: canonicalization -> regional_inductor  (disabled: dead_code_elimination)"
    rows = [line.split()[:2] for line in lines if line.startswith(("forward  ", "backward  "))]
    assert rows == [[graph, name] for graph in ("forward", "backward") for name in names.split(",")[::2]]
    assert sum(line == "region 'linear': 1 partition(s)" for line in lines) == 2
    assert "  compiled_region_linear_0: aten.t.default, aten.addmm.default" in lines


def test_json_is_the_same_in_data(explain):
    status, output, _ = explain(f"{HERE}:scaled", "--json", "--partitioner", "min_cut")

    found = json.loads(output)
    assert status == 0
    assert found["passes"] == ["regional_inductor"]
    assert [graph["kind"] for graph in found["graphs"]] == ["forward", "backward"]
    assert found["graphs"][0]["partitions"][0]["region"] == "linear"
    assert [(row["graph"], row["status"]) for row in found["report"]] == [
        ("forward", "compiled"),
        ("backward", "compiled"),
    ]


def test_a_dry_run_compiles_nothing(explain):
    with explain.harness.expect(region_compiles=0):
        status, output, _ = explain(f"{HERE}:block", "--dry-run", "--passes", f"{HERE}:several,regional_inductor")
    assert status == 0
    assert "passes: nothing -> other" in output
    assert "region 'linear': 1 partition(s)" in output


def test_a_function_and_dynamic_sizes(explain):
    status, output, _ = explain(f"{HERE}:one_function", "--dynamic", "--passes", "")
    assert status == 0
    assert output.startswith("sin: 0 parameters")
    assert "inference graph, 1 ops\nno regions" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "'nothing' names nothing: write package.module:attribute, or path/to/file.py:attribute."),
        (("no_such_module:x",), "'no_such_module' cannot be imported: ModuleNotFoundError"),
        (("no/such/file.py:x",), "'no/such/file.py' cannot be imported: there is no such file."),
        ((f"{HERE}:blok",), "unknown attribute 'blok'. Did you mean 'block'?"),
        ((f"{HERE}:number",), "number() returned int, not (model, args) or (model, args, kwargs)."),
        ((f"{HERE}:unpaired",), "unpaired() returned (Block, Tensor), not (model, args)"),
        ((f"{HERE}:torch",), "torch is module, not a function without arguments"),
        ((f"{HERE}:block", "--passes", "regional"), "unknown pass 'regional'. Did you mean 'regional_inductor'?"),
        ((f"{HERE}:block", "--disable", "regional"), "no pass is called 'regional', so it cannot be disabled."),
        ((f"{HERE}:block", "--passes", "full_inductor,regional_inductor"), "terminal"),
    ],
)
def test_wrong_arguments_are_an_error(explain, arguments, message):
    status, output, errors = explain(*arguments)
    assert (status, output) == (2, "")
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((f"{HERE}:raising",), "raising() raised ValueError: no data here"),
        ((f"{HERE}:breaking",), "cannot be captured as one graph"),
        ((f"{HERE}:block", "--passes", f"{HERE}:failing"), "pass 'failing', on the forward graph, raised ValueError"),
    ],
)
def test_a_model_or_pass_that_fails_is_said(explain, arguments, message):
    status, _, errors = explain(*arguments)
    assert status == 1
    assert message in errors
    assert "Traceback" not in errors
    with pytest.raises(Exception, match=r"no data|one graph|not today"):
        explain(*arguments, "--traceback")


def test_as_a_command_with_a_file(tmp_path):
    (tmp_path / "helper.py").write_text("import torch\n\ndef function(x):\n    return x.sin()\n")
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom helper import function\n\ndef make():\n    return function, (torch.randn(3),)\n"
    )
    arguments = ["explain", str(tmp_path / "mine.py") + ":make", "--dry-run"]
    found = run_module("pytest_regional", arguments, Path(__file__).parents[2], os.environ)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("function: 0 parameters, 0 buffers;")


def test_help_names_everything(explain):
    status, output, _ = explain("--help")
    assert status == 0
    for name in ("--passes", "--disable", "--partitioner", "--dynamic", "--no-strict", "--dry-run", "--json"):
        assert name in output
