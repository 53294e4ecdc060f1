"""Sentences about two goldens."""

from __future__ import annotations

import pytest

from pytest_regional.harness.goldens.checking import in_full, sentences


def ops(*lines, graph="forward"):
    return ("ops", f"  {graph}", *(f"    {line}" for line in lines))


def fusions(*lines):
    return ("fusions", "  forward, mlp", *(f"    {line}" for line in lines))


@pytest.mark.parametrize(
    ("golden", "now", "said"),
    [
        (["a", "b", "c"], ["a", "d", "c"], ["b became d in the code outside of regions, after a"]),
        (["a", "mlp: b"], ["a", "b"], ["b moved out of region mlp"]),
        (["a", "b x3"], ["a", "mlp: b x2", "b"], ["b x2 moved into region mlp"]),
        (["one: a", "two: b"], ["one: a", "one: b"], ["b moved out of region two and into region one"]),
        (["a", "b", "c"], ["b", "c", "a"], ["a in the code outside of regions runs after c, and not first"]),
        (["mlp: a"], ["mlp: a x2", "mlp: b"], ["a is new in region mlp, after a", "b is new in region mlp, after a"]),
        (["mlp: a x3"], ["mlp: a"], ["a x2 is gone from region mlp"]),
    ],
)
def test_operators(golden, now, said):
    assert sentences(ops(*golden), ops(*now)) == [f"forward: {one}" for one in said]


@pytest.mark.parametrize(
    ("golden", "now", "said"),
    [
        (["k: a, b"], ["k1: a", "k2: b"], "fusion broke: k (a, b) was one kernel, now k1 (a) and k2 (b)"),
        (["k1: a", "k2: b"], ["k: a, b"], "new fusion: k (a, b) is one kernel, and was k1 (a) and k2 (b)"),
        (["k: a, b"], ["k: a, b", "k: a"], "fusion broke: one more kernel k (a)"),
        (["k: a, b", "k: a"], ["k: a, b"], "new fusion: one kernel k (a) less"),
        (["k: a x2"], ["k: a"], "new fusion: one kernel k (a) less"),
        (["k: a, b"], ["k: a, c"], "kernel k, without b and with c"),
        (["k: a"], ["l: a"], "kernel k is l now, of the same operators"),
        (["k: a", "l: b"], ["l: b", "k: a"], "the same kernels run in another order"),
        (["k: a"], ["k: a", "l: b"], "a new kernel l (b)"),
        (["k: a", "l: b"], ["k: a"], "no kernel l (b) any more"),
    ],
)
def test_fusions(golden, now, said):
    assert sentences(fusions(*golden), fusions(*now)) == [f"forward, mlp: {said}"]


def test_a_graph_more():
    golden, now = ops("a"), (*ops("a"), *ops("b", graph="backward")[1:])
    assert sentences(golden, now) == ["backward: a new graph, of 1 line"]
    assert sentences(now, golden) == ["backward: the graph is gone, of 1 line"]


def test_borders():
    golden, now = (
        ("order", "  forward", *(f"    {line}" for line in lines)) for lines in (["a > [m] > b"], ["a > [m] > c"])
    )
    assert sentences(golden, now) == ["forward, at a border: a > [m] > c; was a > [m] > b"]
    assert sentences(golden, (*golden, "    d > [n] > end")) == ["forward: 2 calls of regions, was 1"]


def test_values():
    golden, now = ("passes", "  graphs: 1", "  fallbacks: 1"), ("passes", "  graphs: 2", "  recompiles: 1")
    assert sentences(golden, now) == [
        "graphs: 2, was 1",
        "fallbacks: gone, was 1",
        "recompiles: 1, was not there",
    ]


def test_what_the_operators_say_the_numbers_do_not_say_again():
    golden = ("regions", "  forward, mlp: 2 ops, 1 partition", *ops("mlp: a", "mlp: b"))
    now = ("regions", "  forward, mlp: 1 op, 2 partitions", *ops("mlp: a", "b"))
    assert sentences(golden, now) == [
        "forward: b moved out of region mlp",
        "forward, mlp: 2 partitions, was 1 partition",
    ]
    assert sentences(golden[:2], now[:2]) == ["forward, mlp: 1 op, 2 partitions, was 2 ops, 1 partition"]


def test_other_facts():
    assert sentences(("passes", "  graphs: 1"), ops("a")) == [
        "no fact 'passes' is asked for any more",
        "the golden has no fact 'ops'",
    ]


def test_in_full():
    assert in_full(("passes", "  graphs: 1"), ("passes", "  graphs: 2")).splitlines()[-2:] == [
        "-  graphs: 1",
        "+  graphs: 2",
    ]
