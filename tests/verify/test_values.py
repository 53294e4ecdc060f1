"""What kernels compute, against the graph: what is right is proved, and no planted fault is."""

from __future__ import annotations

import re
from functools import cache

import pytest

from pytest_regional.verify import PROVED, REFUTED
from pytest_regional.verify.outcomes import MEMORY, UNKNOWN, VALUES
from tests.verify.planted import DYNAMIC, STATIC, compiled, planted, seen, verified
from tests.verify.wrong_values import NOT_FOLLOWED, WRONG_VALUES

SECONDS = 60.0
CONFIGS = 1
TEXTS = ("is not what the graph computes", "out-of-bounds")
RIGHT = (
    "pointwise",
    "transposed",
    "column means",
    "even",
    "square",
    "softmax",
    "sums",
    "gather",
    "two axes",
    "cat",
    "cat columns",
    "pieces",
    "half of a product",
    "channels last",
    "every second",
    "outer",
    "pad",
    "roll",
    "layer norm",
    "total",
    "two stages",
    "largest",
    "nonzero",
    "first",
)
RIGHT_FOR_ALL_SIZES = ("pointwise", "transposed", "even", "sums", "gather", "roll", "layer norm")
OUT_OF_SCOPE = {"scan": "scanned, of which nothing is known", "scatter": "values that are added up in memory"}


@pytest.fixture(scope="module")
def made(emulation):
    return cache(lambda program, sizes: compiled(emulation, program, sizes))


def values_of(found):
    return [outcome for one in found for outcome in one.outcomes if outcome.property == VALUES]


@pytest.mark.parametrize(
    ("program", "sizes"),
    [*((name, STATIC) for name in RIGHT), *((name, DYNAMIC) for name in RIGHT_FOR_ALL_SIZES)],
)
def test_what_is_right_is_proved(emulation, made, program, sizes):
    code = made(program, sizes)
    values = values_of(verified(emulation, code, code.source, SECONDS, CONFIGS, values=True))
    assert values
    assert [outcome for outcome in values if outcome.verdict != PROVED] == []


@pytest.mark.parametrize("program", OUT_OF_SCOPE)
def test_what_is_out_of_scope_is_named(emulation, made, program):
    code = made(program, STATIC)
    values = values_of(verified(emulation, code, code.source, SECONDS, CONFIGS, values=True))
    assert OUT_OF_SCOPE[program] in [outcome.reason for outcome in values if outcome.verdict != PROVED]
    assert [outcome for outcome in values if outcome.verdict == REFUTED] == []


@pytest.mark.parametrize("fault", WRONG_VALUES, ids=str)
def test_a_wrong_value_is_refuted(emulation, made, fault):
    code = made(fault.program, fault.sizes)
    broken = planted(code, fault)
    values = values_of(verified(emulation, code, broken, SECONDS, CONFIGS, values=True))
    refuted = [outcome for outcome in values if outcome.verdict == REFUTED]
    assert refuted, values
    assert any(text in outcome.reason for outcome in refuted for text in TEXTS), refuted
    assert seen(emulation, code, broken) != fault.hidden


def test_what_is_not_followed_is_not_proved(emulation, made):
    code = made(NOT_FOLLOWED.program, NOT_FOLLOWED.sizes)
    broken = planted(code, NOT_FOLLOWED)
    values = values_of(verified(emulation, code, broken, SECONDS, CONFIGS, values=True))
    assert "carried, of which nothing is known" in [outcome.reason for outcome in values]


def test_what_data_determine_is_not_refuted_of_one_kernel(emulation, made):
    """Data may not allow what a kernel alone would do wrong: without its assertion only nothing is known."""
    code = made("first", STATIC)
    right, broken = (
        {outcome.property: outcome for one in found for outcome in one.outcomes}
        for found in (
            verified(emulation, code, source, SECONDS, CONFIGS)
            for source in (code.source, re.sub(r"if not \(u\d+ <=? 6\d\):", "if False:", code.source))
        )
    )
    assert right[MEMORY].verdict == PROVED
    assert broken[MEMORY].verdict == UNKNOWN
    assert re.search(r"no replay: data determine u\d", broken[MEMORY].reason), broken[MEMORY]


def test_a_number_of_another_tensor_is_not_the_graphs(emulation, made):
    code = made("first", STATIC)
    number = re.search(r"(arg\d_1)\.item\(\)", code.source).group(1)
    other = next(name for name in re.findall(r"assert_size_stride\((arg\d_1), \(\)", code.source) if name != number)
    broken = code.source.replace(f"{number}.item()", f"{other}.item()")
    broken = re.sub(rf"^ +del {number}\n", "", broken, flags=re.MULTILINE)
    values = values_of(verified(emulation, code, broken, SECONDS, CONFIGS, values=True))
    assert {outcome.verdict for outcome in values} == {UNKNOWN}
    assert all("a number of a tensor that is not shown to be the graph's" in outcome.reason for outcome in values)


def test_bytes_are_no_truth_values(emulation):
    """Of what is true of 0 and 1 alone nothing is proved."""
    code = compiled(emulation, "bytes", STATIC)
    right = values_of(verified(emulation, code, code.source, SECONDS, CONFIGS, values=True))
    broken = code.source.replace("tmp0 + tmp1", "tl.where(tmp0 > 1, tmp0, tmp0 + tmp1)")
    wrong = values_of(verified(emulation, code, broken, SECONDS, CONFIGS, values=True))
    assert broken != code.source
    assert [outcome.verdict for outcome in right] == [PROVED, PROVED]
    assert [outcome.verdict for outcome in wrong] != [PROVED, PROVED]


def test_the_corpus_is_large_enough():
    names = [str(fault) for fault in WRONG_VALUES]
    assert len(set(names)) == len(names) >= 40
