"""What a program runs and is given, in words; and the variants of scripts that duplicates are measured with."""

from __future__ import annotations

import ast
import builtins
import contextlib
import io

import pytest
import torch

from bench.duplicates import SCRIPTS, SURROUNDINGS, Observed, table, variant
from pytest_regional.bug_report._observing import features_of, operators_of
from pytest_regional.bug_report.known_issues import KnownIssue, Seen


@torch.library.custom_op("regional_observing::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_operators_are_named_as_functions_and_as_kernels():
    def program(x):
        x.mul_(2)
        return torch.div(x, 0.1, rounding_mode="floor").mT[0], scale(x)

    names = operators_of(lambda: program(torch.ones(2, 3)))

    assert {"mul_", "aten_mul__Tensor", "div", "aten_div_Tensor_mode", "mT", "getitem", "custom_scale_default"} <= {
        *names
    }
    assert len(set(names)) == len(names)


def test_operators_that_are_given_a_program():
    def program(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    names = operators_of(lambda: program(torch.ones(3)))

    assert names[-1] == "cond"


def test_an_exception_of_the_program_goes_through():
    with pytest.raises(RuntimeError, match="must match"):
        operators_of(lambda: torch.ones(2) + torch.ones(3))


ONES = torch.ones(4)
ZEROS_WITH_SIGN = torch.tensor([-0.0])


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([], set()),
        ([ONES], {"dtype:float32"}),
        ([ONES.long(), torch.ones(4, requires_grad=True)], {"dtype:int64", "dtype:float32", "training"}),
        ([ONES, ONES[1:]], {"dtype:float32", "input:alias"}),
        ([ZEROS_WITH_SIGN], {"dtype:float32", "input:edges"}),
        ([ONES * torch.inf], {"dtype:float32", "input:edges", "large"}),
        ([ONES * 1e20], {"dtype:float32", "large"}),
        ([ONES.to_sparse()], {"dtype:float32"}),
    ],
    ids=["nothing", "plain", "training", "alias", "negative zero", "infinite", "large", "sparse"],
)
def test_features(tensors, words):
    assert features_of(tensors, dynamic=False) == words
    assert features_of(tensors, dynamic=True) == {*words, "dynamic"}


SCRIPT = '''\
"""What is wrong."""

import sys

import torch


def scaled(x, by=2):  # a comment
    total = x * by
    return total.sum(dim=0)


eager, compiled = scaled(torch.ones(3), by=3), torch.compile(scaled, backend="eager")(torch.ones(3), by=3)
print("equal", torch.equal(eager, compiled))
'''


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_a_variant_does_the_same_under_other_names(surroundings):
    text = variant(SCRIPT, surroundings)

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "variant", "exec"), {"__name__": "__main__"})
    assert printed.getvalue() == "equal True\n"
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    # The backend is named "eager", too.
    assert names & {"scaled", "total", "eager", "compiled"} == {"eager"}
    assert "comment" not in text
    assert "What is wrong" not in text
    assert ("surrounded(" in text) is (surroundings != "renamed")


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_every_script_has_a_variant_without_unknown_names(surroundings):
    for path in sorted(SCRIPTS.glob("*.py")):
        tree = ast.parse(variant(path.read_text(encoding="utf-8"), surroundings))
        nodes = list(ast.walk(tree))
        loaded = {node.id for node in nodes if isinstance(node, ast.Name)}
        defined = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        defined |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        defined |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        defined |= {
            (alias.asname or alias.name).partition(".")[0]
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        defined |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
        assert loaded <= {*defined, *vars(builtins), "__file__"}, path.name


def test_the_table_counts_what_is_recognised_and_what_is_mistaken():
    issues = [
        KnownIssue(1, "sines", "", "value of", operators=("sin",)),
        KnownIssue(2, "cosines", "", "value of", operators=("cos",)),
    ]

    def observed(bug, *operators, outcome="wrong"):
        return Observed(bug, "renamed", outcome, Seen("parity run value of output", operators), 1.0)

    lines = list(
        table([observed("sines", "sin"), observed("cosines", "sin"), observed("sines", outcome="right")], issues)
    )

    assert lines[2] == "| `sines` | renamed | 100% | none |"
    assert lines[3] == "| `cosines` | renamed | **not recognised** | `sines` |"
    assert lines[5] == "variants recognised: 1 of 2; taken for another bug: 1 of 2"
    assert lines[6].startswith("variants that do not show the defect: sines (right);")
