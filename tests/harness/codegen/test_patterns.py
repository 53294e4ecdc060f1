"""What patterns match, and what is said of those that match nothing."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import at_least, torch_matches
from pytest_regional.harness.codegen import CodeLookupError, LaunchOrigin, Op, OpError, OpPattern
from pytest_regional.harness.record import GeneratedCode, GeneratedSource

# torch 2.11 forgets in its comments what it merged.
NAMED_IN_COMMENTS = torch_matches(">=2.13")

LAUNCHES = """
kernel = async_compile.cpp_pybinding(['float*'], 'extern "C" void kernel(float* out_ptr0)')
def call(args):
    kernel(buf0)
    kernel(buf1)
    kernel(buf2)
    return (buf0, buf1, buf2, )
"""


def matches(pattern, op):
    """Say whether an assertion about ``pattern`` finds the launches of a kernel that computes ``op``."""
    source = GeneratedSource("inference", (), LAUNCHES, False, (LaunchOrigin("kernel", (op,)),) * 3)
    try:
        GeneratedCode((source,)).assert_count(pattern, at_least(1))
    except OpError:
        return False
    return True


@pytest.mark.parametrize(
    "pattern",
    ["aten.add", "aten.add.Tensor", "add", "add.Tensor", "torch.ops.aten.add", torch.ops.aten.add, "aten.add#3"],
)
def test_spellings_of_one_operator(pattern):
    assert matches(pattern, Op("aten.add.Tensor"))
    assert not matches(pattern, Op("aten.addmm.default"))
    assert not matches(pattern, Op("aten.add.Tensor", inside="aten.silu"))


def test_overloads_are_distinguished():
    assert matches(torch.ops.aten.add.Tensor, Op("aten.add.Tensor"))
    assert not matches(torch.ops.aten.add.Scalar, Op("aten.add.Tensor"))
    # Comments name no overloads: a pattern with one is not answered by guessing.
    assert not matches("aten.add.Tensor", Op("aten.add"))


def test_what_was_decomposed():
    part = Op("aten.exp.default", inside="aten.silu")
    assert matches("aten.silu", part)
    assert matches("silu>exp", part)
    assert not matches("silu>add", part)
    assert not matches("aten.gelu>aten.exp", part)


@pytest.mark.parametrize("pattern", ["aten.mm#0", "aten.mm#x", "aten.mm#-1", "aten.mm#", "", ".", "#1"])
def test_no_pattern(pattern):
    with pytest.raises(OpError, match=r"from 1|names no operator"):
        OpPattern.of(pattern)


def test_no_text_and_no_operator():
    with pytest.raises(OpError, match=r"3 names no operator"):
        OpPattern.of(3)


def test_an_operator_that_is_not_there_lists_those_that_are(code):
    with pytest.raises(OpError) as failure:
        code("chain").assert_order("aten.ad", "aten.mm")
    said = str(failure.value)
    assert said.startswith("no launch of aten.ad in the inference code. Did you mean 'aten.add'?")
    assert "Operators there: aten.add.Tensor, aten.mm.default, aten." in said
    assert "aten.mm may become aten.addmm" in said
    assert " extern " in said


@pytest.mark.parametrize("op", [".view", "torch.nn.functional.silu", torch.nn.functional.silu, torch.nn.Linear])
def test_functions_that_generated_code_never_calls(code, op):
    for check in (lambda: code("chain").assert_order(op, "aten.mm"), lambda: code("chain").assert_count(op, 0)):
        with pytest.raises(OpError, match=r"Generated code calls operators of torch\.ops"):
            check()


def test_a_short_name_may_be_counted_as_absent(code):
    code("chain").assert_count("gelu", 0)
    code("chain").assert_count("silu>exp", 0)
    with pytest.raises(OpError, match=r"no launch of geluu"):
        code("chain").assert_count("geluu", 0)


def test_an_operator_that_was_merged_into_another_is_traced(code):
    # x + y @ z becomes addmm; what the comment above the call names is a hint, not an answer.
    hint = r"The comment of aten.addmm.default \(line \d+\) names it" if NAMED_IN_COMMENTS else r"mean 'aten.addmm'"
    with pytest.raises(OpError, match=hint):
        code("held").assert_order("aten.mm", "aten.add")


def test_an_ordinal_beyond_the_last(code):
    with pytest.raises(OpError, match=r"no launch of aten.mm#5 in the inference code. There are 4 of aten.mm"):
        code("products").assert_order("aten.mm#1", "aten.mm#5")


def test_graphs_and_regions_that_are_not_there(code):
    with pytest.raises(ValueError, match=r"'forwards' is not a graph. Did you mean 'forward'"):
        code("chain").assert_no_copy(graph="forwards")
    with pytest.raises(CodeLookupError, match=r"of the backward graph .*there are: inference \(no region\)"):
        code("chain").assert_no_copy(graph="backward")
    with pytest.raises(CodeLookupError, match=r"of region 'third' .*inference \(first\), inference \(second\)"):
        code("two_regions").assert_no_copy(region="third")
    with pytest.raises(OpError, match=r"no launch of aten.mm in"):
        code("two_regions").assert_count("aten.mm", 1, region="second")
    code("two_regions").assert_count("aten.mm", 1, region="first")


@pytest.mark.parametrize(
    "check",
    [
        lambda code: code.assert_order("aten.add", "aten.mm"),
        lambda code: code.assert_not_fused("aten.add", "aten.mm"),
        lambda code: code.assert_fused("aten.add", "aten.mm"),
        lambda code: code.assert_count("aten.add", 0),
        lambda code: code.assert_freed_before("aten.add", "aten.mm"),
        lambda code: code.assert_freed_before("buf0", "aten.mul"),
        lambda code: code.assert_peak_live_bytes(at_most=1),
        lambda code: code.assert_no_copy(),
    ],
)
def test_nothing_generated_is_never_a_pass(check):
    with pytest.raises(CodeLookupError, match=r"there is no generated code: nothing was compiled"):
        check(GeneratedCode())


@pytest.mark.parametrize(
    "check",
    [
        lambda code: code.assert_order("aten.mm#1", "aten.mm#1"[:7]),
        lambda code: code.assert_order("aten.add", "aten.mm"),
        lambda code: code.assert_not_fused("aten.add", "aten.mm"),
        lambda code: code.assert_fused("aten.add", "aten.mm"),
        lambda code: code.assert_count("aten.mm", 1),
        lambda code: code.assert_freed_before("buf0", "aten.mm"),
        lambda code: code.assert_no_copy(),
    ],
)
def test_launches_of_unknown_origin_are_never_a_pass(code, check):
    """As after a load in another process: a C++ wrapper has no comments on its kernels."""
    text = code("chain").sources[0].text + "\n# Another text, of which this process knows nothing.\n"
    foreign = GeneratedCode((GeneratedSource("inference", (), text, True),))
    with pytest.raises(CodeLookupError, match=r"are unknown") as failure:
        check(foreign)
    assert "ops unknown" in str(failure.value)
    assert str(failure.value).count("\n> ") == 2
