"""In what the calls of a backend differ, where a cache gave one of them the answer to another."""

from __future__ import annotations

import functools

import pytest
import torch

from pytest_regional import region
from pytest_regional._torch.inductor import interpreting_regions
from pytest_regional.harness.cache_keys import different, graph_ingredients, ingredients_of, ops_of
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
        different([ingredients_of(one), ingredients_of(traced(lambda x: x.cos()))]) == "the calls differ in the graph"
    )
    before = ingredients_of(one)
    one.graph.find_nodes(op="placeholder")[0].meta["example_value"] = torch.ones(3)
    assert different([before, ingredients_of(one)]) == "the calls differ in input 0"


def test_annotations():
    one = traced(lambda x: x.sin())
    before = ingredients_of(one)
    one.graph.find_nodes(op="call_method", target="sin")[0].meta["custom"] = {"compile_with_inductor": 1}
    assert different([before, ingredients_of(one)]) == "the calls differ in the annotation of region 0"


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


def annotated(**annotation):
    gm = traced(lambda x: x.sin().cos())
    for node in gm.graph.find_nodes(op="call_method"):
        node.meta["custom"] = {"compile_with_inductor": annotation or None}
    return graph_ingredients(gm)["the annotation of region 0"].splitlines()


def test_each_part_of_an_annotation_is_a_line():
    assert annotated() == ["id: default", "ops: %1, %2", "configs: {}", "after: []", 'form: "default"']
    one, other = annotated(inductor_region="a"), annotated(inductor_region="b", inductor_configs={"x": 1}, more=2)
    assert [lines for lines in zip(one, other, strict=True) if lines[0] != lines[1]] == [
        ("id: a", "id: b"),
        ("configs: {}", 'configs: {"x": 1}'),
        ("form: {}", 'form: {"more": 2}'),
    ]


def test_ops_are_the_same_whatever_values_are_called():
    one, other = traced(lambda x: x.sin() + 1), traced(lambda renamed: renamed.sin() + 1)
    assert (
        ops_of(one)
        == ops_of(other)
        == [
            "placeholder",
            "call_method sin(%0)",
            "call_function operator.add(%1, 1)",
            "output(%2)",
        ]
    )
    assert ops_of(one) != ops_of(traced(lambda x: x.sin() + 2))


def test_constants_are_ingredients_by_their_values():
    def with_constant(value):
        module = torch.nn.Module()
        module.constant = torch.tensor([value])
        graph = torch.fx.Graph()
        graph.output(graph.get_attr("constant"))
        return graph_ingredients(torch.fx.GraphModule(module, graph))["the constant constant"]

    assert with_constant(1.0) == with_constant(1.0) != with_constant(2.0)


def test_calls_that_differ_in_much():
    assert different([{"a": "1", "b": "1", "c": "1", "d": "1"}, {"a": "2", "b": "2", "c": "2", "d": "2"}]) == ""
    long = different([{"a": "1" * 40}, {"a": "2" * 40}])
    assert long == "the calls differ in a"


def scaled(x, name):
    with region(name):
        return x.sin() + 1


def test_a_key_that_lacks_an_ingredient(monkeypatch):
    """The key of the reference's cache without annotations: a program without a region gets the code of one with it."""
    monkeypatch.setattr("pytest_regional.reference.caching.outer.annotations_of", lambda gm: iter(()))

    def check(program, x):
        for name in ("one", "two"):
            r.restart()
            r.compile(lambda x, name=name: program(x, name))(x)
        if r.counters.cache_hits:
            raise AssertionError("one region got the code of another one")

    with interpreting_regions(), regional("reference", "cpu", expects_regions=False) as r:
        found = r.blame(scaled, r.randn(4), check=check)
    assert found.setting == "no result stored or loaded"
    assert found.sentence.endswith(
        "right with no result stored or loaded (confirmed); the calls differ in the annotation of region 0"
    )
