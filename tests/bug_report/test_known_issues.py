"""Duplicates: by what fails, by operators, and by the steps of the compiler that blame names."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from pathlib import Path

import pytest

from pytest_regional._torch.vetoes import settings_to_try
from pytest_regional.bug_report.known_issues import KnownIssue, Seen, kept_findings, layer_in, public_issues, steps_in
from pytest_regional.harness.blame.culprit import Culprit

#: On a GPU there are more.
SETTINGS = [setting.sentence for setting in settings_to_try(gpu=True)]

ROOT = Path(__file__).parents[2]
FLOOR = KnownIssue(
    *(1, "floor", "floor of a quotient", "value of", "inductor"),
    operators=("(aten_)?div.*mode",),
    features=("dtype:float32",),
    culprits=("lowering of aten.div.Tensor_mode at div",),
)


def seen(
    fails="parity run value of output",
    operators=("aten_div_Scalar_mode",),
    features=("dtype:float32",),
    culprit="",
    name="new",
):
    return Seen(fails, operators, frozenset(features), culprit, name)


def test_the_same_step_and_operator_are_a_duplicate():
    (known,) = seen(culprit="lowering of aten.div.Scalar_mode at div (script.py:4): right").similar_to([FLOOR])

    assert known.likeness == 1


@pytest.mark.parametrize(
    "other",
    [
        seen(fails="parity run alias of output"),
        seen(operators=("sin",)),
        seen(operators=("sin",), culprit="lowering of aten.div.Tensor_mode"),
        seen(culprit="joint-graph pass remove_noop_ops: right where that is left out"),
        seen(culprit="region 'a': AOTAutograd: its graphs are wrong already when they run eagerly"),
        seen(features=("dtype:float64",)),
        seen(name="floor"),
    ],
    ids=["fails otherwise", "other operator", "step alone", "other step", "other layer", "other input", "itself"],
)
def test_less_is_none(other):
    assert other.similar_to([FLOOR]) == ()


def test_the_likeliest_comes_first():
    vague = KnownIssue(2, "vague", "", "value of", operators=("aten_div.*", "cos", "(sin|aten_div.*)"))

    assert [one.issue.number for one in seen().similar_to([vague, FLOOR])] == [1, 2]


def test_steps_that_blame_names():
    sentence = (
        "region 'a': joint-graph pass remove_noop_ops and lowering of aten.slice.Tensor at slice_1; "
        "so is the fallback of aten.expmN.default; right with no vectorized code"
    )
    assert steps_in(sentence) == {"remove_noop_ops", "aten.slice", "aten.expmN", "no vectorized code"}


def test_a_rewrite_is_a_step():
    assert steps_in("rewrite addmm_replacement at mm_1 (a.py:3): right where that is left out") == {"addmm_replacement"}


@pytest.mark.parametrize("sentence", SETTINGS)
def test_a_setting_that_blame_names_is_a_step(sentence):
    """Code generation, scheduling and memory are left out by settings."""
    said = Culprit("codegen", (), None, sentence, "confirmed").sentence
    assert sentence in said
    assert steps_in(said) == {sentence}

    issue = KnownIssue(1, "a", "", "value of", operators=("(aten_)?sum",), culprits=(said,))
    another = said.replace(sentence, next(one for one in SETTINGS if one != sentence))
    assert seen(operators=("sum",), culprit=said).similar_to([issue])[0].likeness == 1
    assert seen(operators=("sum",), culprit=another).similar_to([issue]) == ()


@pytest.mark.parametrize(
    ("sentence", "layer"),
    [
        ("Dynamo: the graph that it captured is wrong already when it runs eagerly", "dynamo"),
        ("region 'a': the partitioner: right with the other one", "aot_autograd"),
        ("the backend: right where AOTAutograd's graphs run eagerly (necessary)", "inductor"),
        ("the backend's partitions: right with backend 'reference' in its place", "regions"),
        ("fusion of op0 (aten.sum) with op2 (aten.sum): right where that is left out", "inductor"),
        ("it comes and goes", ""),
    ],
    ids=["dynamo", "partitioner", "whole graph", "stage", "step", "none"],
)
def test_the_layer_that_blame_names(sentence, layer):
    assert layer_in(sentence) == layer


def test_the_index_is_what_the_suites_say():
    """``tools/known_issues`` writes it."""
    loader = importlib.machinery.SourceFileLoader("known_issues_tool", str(ROOT / "tools" / "known_issues"))
    tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("known_issues_tool", loader))
    loader.exec_module(tool)

    assert tool.index(tool.kept()) == json.loads(tool.INDEX.read_text(encoding="utf-8"))
    assert len(public_issues()) > 70
    assert sum(bool(issue.steps) for issue in public_issues()) > 15


def test_kept_findings_are_issues_without_a_number():
    kept = kept_findings(ROOT / "docs" / "findings" / "conformance")

    assert kept
    for issue in kept:
        assert issue.number is None
        assert Seen(issue.fails.replace("\\", ""), ()).likeness(issue) in (0, 1)
