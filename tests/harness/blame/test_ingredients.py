"""In what the calls of a backend differ, where a cache gave one of them the answer to another."""

from __future__ import annotations

import functools

import pytest
import torch

from pytest_regional import region
from pytest_regional.harness.blame.ingredients import different, ingredients_of
from pytest_regional.reference.caching import key
from pytest_regional.testing import regional


def traced(program):
    gm = torch.fx.symbolic_trace(program)
    for node in gm.graph.find_nodes(op="placeholder"):
        node.meta["example_value"] = torch.ones(2)
    return gm


def test_calls_that_do_not_differ():
    gm = traced(lambda x: x.sin())
    assert different([ingredients_of(gm), ingredients_of(traced(lambda x: x.sin()))]) == ""
    assert different([]) == ""


def test_the_program_and_its_inputs():
    one = traced(lambda x: x.sin())
    assert (
        different([ingredients_of(one), ingredients_of(traced(lambda x: x.cos()))]) == "the calls differ in the program"
    )
    before = ingredients_of(one)
    one.graph.find_nodes(op="placeholder")[0].meta["example_value"] = torch.ones(3)
    assert different([before, ingredients_of(one)]) == "the calls differ in the inputs"


def test_annotations():
    one = traced(lambda x: x.sin())
    before = ingredients_of(one)
    one.graph.find_nodes(op="call_method", target="sin")[0].meta["custom"] = {"compile_with_inductor": 1}
    assert different([before, ingredients_of(one)]).startswith("the calls differ in the annotations (")


@pytest.mark.parametrize(
    ("within", "said"),
    [
        (functools.partial(torch.autocast, "cpu", torch.bfloat16), "autocast of cpu (off then torch.bfloat16)"),
        (torch.no_grad, "whether gradients are recorded (True then False)"),
        (
            functools.partial(torch._inductor.config.patch, max_fusion_size=3),
            "torch._inductor.config.max_fusion_size (64 then 3)",
        ),
    ],
)
def test_the_state_of_the_process(within, said):
    gm = traced(lambda x: x.sin())
    before = ingredients_of(gm)
    with within():
        assert different([before, before, ingredients_of(gm)]) == f"the calls differ in {said}"


def test_calls_that_differ_in_much():
    assert different([{"a": "1", "b": "1", "c": "1", "d": "1"}, {"a": "2", "b": "2", "c": "2", "d": "2"}]) == ""
    long = different([{"a": "1" * 40}, {"a": "2" * 40}])
    assert long == "the calls differ in a"


def scaled(x, name):
    with region(name):
        return x.sin() + 1


def test_a_key_that_lacks_an_ingredient(monkeypatch):
    """The key of the reference's cache without annotations: a program without a region gets the code of one with it."""
    monkeypatch.setattr(key, "annotations_of", lambda gm: iter(()))

    def check(program, x):
        for name in ("one", "two"):
            r.restart()
            r.compile(lambda x, name=name: program(x, name))(x)
        if r.counters.cache_hits:
            raise AssertionError("one region got the code of another one")

    with regional("reference", "cpu", expects_regions=False) as r:
        found = r.blame(scaled, r.randn(4), check=check)
    assert found.setting == "no result stored or loaded"
    assert found.sentence.endswith(
        "right with no result stored or loaded (confirmed); the calls differ in the annotations"
    )
