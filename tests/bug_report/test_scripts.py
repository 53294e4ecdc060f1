"""Short scripts of findings: each check is silent where a compiler does as eager does, and fails where it does not."""

from __future__ import annotations

import sys

import pytest
import torch

from pytest_regional.bug_report.scripts import checks_of, scripts_of, short_script, without_scaffold
from pytest_regional.fuzz.findings.scripts import backend_source
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Step

PROGRAM = """\
import torch


def program(x, y):
    y.add_(1)
    return torch.sin(x) * y, x.t()
"""
INPUTS = """\
def inputs():
    return [torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)]
"""


def returned(change):
    """Return a compiler that changes what a program returns."""
    return lambda program: lambda *inputs: change(*program(*inputs))


def forgotten(program):
    """Compile so that writes to the second input are lost."""
    return lambda x, y: program(x, y.clone())


def refused(program):
    """Compile so that a call raises."""

    def call(*inputs):
        raise ValueError("no")

    return call


FAULTS = {
    "values": returned(lambda product, view: (product + 1, view)),
    "digits": returned(lambda product, view: (product * (1 + 1e-5), view)),
    "memory": returned(lambda product, view: (product, view.contiguous())),
    "strides": returned(lambda product, view: (product, view.contiguous())),
    "inputs": forgotten,
    "gradients": returned(lambda product, view: (product * 2, view)),
    "raises": refused,
}


def run(monkeypatch, compiler, check):
    monkeypatch.setattr(torch, "compile", lambda program, backend: compiler(program))
    exec(short_script(PROGRAM, INPUTS, "'inductor'", check), {"__name__": "__main__"})


@pytest.mark.parametrize("check", FAULTS)
def test_checks_see_their_fault(check, monkeypatch, capsys):
    run(monkeypatch, lambda program: program, check)
    with pytest.raises(ValueError if check == "raises" else AssertionError):
        run(monkeypatch, FAULTS[check], check)


def test_a_second_call_gets_other_inputs(monkeypatch, capsys):
    inputs = INPUTS.replace("inputs()", "inputs(seed)").replace("torch.ones(2, 3)", "torch.full((2, 3), float(seed))")
    seen = []

    def compiler(program):
        return lambda x, y: (seen.append(y.sum().item()), program(x, y))[1]

    monkeypatch.setattr(torch, "compile", lambda program, backend: compiler(program))
    exec(short_script(PROGRAM, inputs, "'inductor'", "values", calls=2), {"__name__": "__main__"})
    assert seen == [0, 6]


def test_kinds_of_findings_have_checks():
    assert checks_of("value of output") == ("values", "digits")
    assert checks_of("alias of output") == ("memory",)
    assert checks_of("value of grad (second call)") == ("gradients",)
    assert checks_of("value of input") == ("inputs",)
    assert checks_of("KeyError at torch._inductor.lowering:fn") == ("raises",)


def test_scripts_begin_with_plain_inputs_and_leave_annotations_to_regional_backends():
    scope = (Region("a", (), ()),)
    program = Program((TensorInput((2, 3)),), (Step("sin", (0,), (), (1,), scope, ()),), (1,), ())

    whole, regional = (list(scripts_of(program, "value of output", name)) for name in ("inductor", "torch"))

    assert "torch.arange(6.).reshape(2, 3)" in whole[0]
    assert all("annotate" not in text for text in whole)
    assert all("annotate" in text for text in regional)
    assert "generator" in whole[-1].lower() or "seed" in whole[-1]
    assert len(whole[0].splitlines()) <= 20


def test_a_backend_of_somebodys_own_is_imported_and_keeps_annotations(tmp_path, monkeypatch, capsys):
    (tmp_path / "wrong_backend.py").write_text(
        "def wrong(gm, inputs):\n    return lambda *x: [one + 1 for one in gm(*x)]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    scope = (Region("a", (), ()),)
    program = Program((TensorInput((2, 3)),), (Step("sin", (0,), (), (1,), scope, ()),), (1,), ())

    script = next(scripts_of(program, "value of output", "wrong_backend:wrong"))

    assert "annotate" in script
    with pytest.raises(AssertionError, match="not close"):
        exec(script, {"__name__": "__main__"})
    assert "cannot be imported" not in capsys.readouterr().out


@pytest.mark.parametrize("partitioner", [None, "min_cut"])
@pytest.mark.parametrize(
    "backend", ["inductor", "aot_eager", "torch", "reference", "cudagraphs", "torch._dynamo:reset"]
)
def test_the_source_of_a_backend_makes_what_compile_takes(backend, partitioner):
    given, before = backend_source(backend, partitioner)
    names = {}
    exec(before, names)
    made = eval(given, names)

    assert callable(made) or made in (*torch._dynamo.list_backends(None), "regional")


def test_what_a_script_does_for_its_process_is_left_out():
    text = "import os\nimport sys\n\nos.environ['A'] = 'b'\nsys.excepthook = print\n\nimport torch\n\nprint(torch)\n"

    assert without_scaffold(text) == "import torch\n\nprint(torch)\n"
    assert "import os" in without_scaffold(text + "print(os)\n")
