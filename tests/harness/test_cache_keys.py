"""What is said of two keys: in what they differ, and what they lack."""

from types import SimpleNamespace

import pytest
import torch

from pytest_regional._cache_keys import RegionKey
from pytest_regional.backends.spec import BackendSpec, CacheKey
from pytest_regional.harness.cache_keys import (
    Difference,
    GraphKey,
    NoCacheKeyError,
    NoGraphError,
    compared,
    compared_regions,
    keys_of,
)


def graph(key="k", of_key=None, seen=None):
    return GraphKey(CacheKey(key, "", of_key or {}), seen or {})


def test_equal_keys_of_equal_graphs():
    found = compared(graph(), graph())
    assert (found.same, found.in_key, found.missing) == (True, (), ())
    assert not compared(graph(""), graph("")).same  # nothing is stored


def test_what_differs_is_said_once_and_as_the_graphs_show_it():
    one = graph("a", {"graph": {"the code of the graph": "h = x"}}, {"graph": {"the graph": "sin"}})
    other = graph("b", {"graph": {"the code of the graph": "h = y"}}, {"graph": {"the graph": "cos"}})
    assert compared(one, other).in_key == (Difference("the graph", "sin", "cos", "graph"),)


def test_what_no_graph_shows_is_said_as_the_key_has_it():
    found = compared(graph("a", {"machine": {"cpu": "avx2"}}), graph("b", {"machine": {"cpu": "avx512"}}))
    assert found.in_key == (Difference("cpu", "avx2", "avx512", "machine"),)


def test_what_follows_from_others_is_said_where_nothing_else_is():
    rest = {"input 0, where it comes from": "x", "input 0, everything else": "1"}
    one = graph("a", {"inputs": {"input 0, shape": "[2]", **rest}})
    other = graph("b", {"inputs": {"input 0, shape": "[3]", **dict.fromkeys(rest, "2")}})
    assert [each.name for each in compared(one, other).in_key] == ["input 0, shape"]
    same_shape = graph("b", {"inputs": {"input 0, shape": "[2]", **dict.fromkeys(rest, "2")}})
    assert [each.name for each in compared(one, same_shape).in_key] == list(rest)


def test_an_ingredient_that_the_keys_lack():
    one, other = ({"state": {"threads": number, "precision": "high"}} for number in "12")
    found = compared(graph(seen=one), graph(seen=other))
    assert (found.same, [each.name for each in found.missing]) == (True, ["threads"])
    # Also where they differ in something else, so that the next program may hit.
    found = compared(graph("a", {"machine": {"cpu": "1"}}, one), graph("b", {"machine": {"cpu": "2"}}, other))
    assert ([each.name for each in found.in_key], [each.name for each in found.missing]) == (["cpu"], ["threads"])


def test_a_fact_that_the_key_has_under_another_name_is_not_lacking():
    one, other = ({"state": {"the precision of products": value}} for value in ("highest", "high"))
    keys = [{"state": {"allow_tf32": value}} for value in ("False", "True")]
    assert compared(graph("a", keys[0], one), graph("b", keys[1], other)).missing == ()
    named = [{"state": {**key["state"], "the precision of products": "highest"}} for key in keys]
    assert len(compared(graph("a", named[0], one), graph("b", named[1], other)).missing) == 1


def test_ops_of_regions_that_have_other_numbers_because_the_graph_differs():
    one = graph(seen={"graph": {"the graph": "a"}, "annotations": {"the ops of region 0": "%1, %2"}})
    other = graph("b", seen={"graph": {"the graph": "b"}, "annotations": {"the ops of region 0": "%2, %3"}})
    assert [each.name for each in compared(one, other).missing] == ["the graph", "the ops of region 0"]
    with_code = [
        GraphKey(CacheKey(key, "", {"graph": {"the code of the graph": key}}), each.ingredients)
        for key, each in (("a", one), ("b", other))
    ]
    found = compared(*with_code)
    assert ([each.name for each in found.in_key], found.missing) == (["the graph"], ())


def test_regions_are_paired_by_name():
    first = [RegionKey("forward.r_0", "r", "1", {"op %1": "sin"}), RegionKey("backward.r_0", "r", "2")]
    second = [RegionKey("inference.r_0", "r", "3", {"op %1": "cos"}), RegionKey("inference.s_0", "s", "4")]
    assert [
        (one and one.key, other and other.key, len(differ)) for one, other, differ in compared_regions(first, second)
    ] == [
        ("1", "3", 1),
        ("2", None, 0),
        (None, "4", 0),
    ]


def test_a_backend_says_its_key_and_may_change_the_graph():
    def cache_key(gm, example_inputs):
        gm.graph.erase_node(next(iter(reversed(gm.graph.nodes))))
        return CacheKey(str(len(example_inputs)))

    spec = BackendSpec("mine", lambda: None, cache_key=cache_key)
    found = keys_of(spec, "program", lambda x: x.sin(), (torch.ones(2),), {})
    assert [one.key.key for one in found.graphs] == ["1"]
    assert found.graphs[0].inputs == ("l_x_",)
    with pytest.raises(NoGraphError, match="nothing of program is compiled"):
        keys_of(spec, "program", lambda x: x, (torch.ones(2),), {})


def test_a_backend_that_does_not_say_its_key():
    with pytest.raises(NoCacheKeyError, match="its BackendSpec has no cache_key"):
        keys_of(SimpleNamespace(name="mine", cache_key=None), "program", torch.sin, (torch.ones(2),), {})
    with pytest.raises(TypeError, match="cache_key must be callable"):
        BackendSpec("mine", lambda: None, cache_key="key")
