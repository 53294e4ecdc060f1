"""A miss names the entry in which its key differs from the nearest stored one; two keys are compared the same way."""

import json
import runpy
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from pytest_regional import BackendSpec, CounterExpectationError, region
from pytest_regional._base import cache_keys
from pytest_regional._base.cache_keys import CacheKey, Difference, differences, in_words, keep_texts, why_missed
from pytest_regional._base.errors import RegionalValueError
from pytest_regional.backends import registry
from pytest_regional.harness.cache_keys import graph_ingredients, keys_of
from pytest_regional.reference import pipeline
from pytest_regional.testing import regional


def activated(x, function=torch.relu, configs=None):
    with region("mlp", configs=configs or {}):
        return function(x) + 1


def _missed(r, compile_again):
    """Return the failure of an expected hit."""
    r.restart()
    with pytest.raises(CounterExpectationError) as failed, r.expect(cache_hits=1):
        compile_again()
    return str(failed.value)


@pytest.mark.parametrize("backend", ["reference", "inductor"])
def test_an_unexpected_miss_names_the_entry_that_differs(backend):
    with regional(backend, "cpu", expects_regions=False) as r:
        r.compile(lambda x: activated(x, torch.sigmoid))(r.randn(7))
        r.compile(activated)(r.randn(3, 4))
        said = _missed(r, lambda: r.compile(activated)(r.randn(5, 4)))
        assert "the nearest stored key differs in input 0, shape: it has [3, 4], this one [5, 4]" in said
        with torch._inductor.config.patch(max_fusion_size=8):
            said = _missed(r, lambda: r.compile(activated)(r.randn(3, 4)))
        assert "differs in torch._inductor.config.max_fusion_size: it has 64, this one 8" in said


def test_annotations_and_passes_are_entries_of_the_references_key(pre_grad_pass):
    with regional("reference", "cpu", expects_regions=False) as r:
        x = r.randn(4)
        r.compile(activated, pre_grad_pass=pre_grad_pass(uuid="v1"), pre_grad_pass_timing="late")(x)
        again = r.compile(activated, pre_grad_pass=pre_grad_pass(uuid="v2"), pre_grad_pass_timing="late")
        said = _missed(r, lambda: again(x))
        assert "differs in passes" in said
        assert "v1" in said
        assert "v2" in said
        r.compile(activated)(x)
        said = _missed(r, lambda: r.compile(lambda x: activated(x, configs={"max_fusion_size": 8}))(x))
        assert "the nearest stored key differs in annotations, line " in said
        assert "max_fusion_size" in said


@pytest.mark.usefixtures("warm_process")
def test_a_key_of_another_process_is_compared_too():
    with regional("reference", "cpu", expects_regions=False) as r:
        r.in_new_process(_compile_in_a_child)
        said = _missed(r, lambda: r.compile(activated)(torch.ones(5)))
        assert "the nearest stored key differs in input 0, shape: it has [3], this one [5]" in said


def _compile_in_a_child():
    torch.compile(activated, backend="regional")(torch.ones(3))


def test_the_miss_of_a_pipeline():
    with regional("reference", "cpu", expects_regions=False) as r:
        pipeline.compile(activated, (torch.ones(3),), cache=True)
        said = _missed(r, lambda: pipeline.compile(activated, (torch.ones(5),), cache=True))
        assert "the nearest stored key differs in graphs, line " in said


def test_the_first_miss_has_nothing_to_compare_with():
    with regional("reference", "cpu", expects_regions=False) as r:
        said = _missed(r, lambda: r.compile(activated)(r.randn(3)))
        assert "cache_misses = 1" in said
        assert "nearest" not in said


def test_differences():
    first, second = {"a": "1", "b": "2", "gone": "3"}, {"a": "1", "b": "4", "new": "5"}
    found = differences(first, second)
    assert found == [Difference("b", "2", "4"), Difference("gone", "3", None), Difference("new", None, "5")]
    said = "b: it has 2, this one 4; gone: it has 3, this one nothing; new: it has nothing, this one 5"
    assert in_words(found) == said
    assert in_words(found, most=1) == "b: it has 2, this one 4; and in 2 more entries"
    assert differences(first, first) == []


def test_of_long_texts_what_differs_is_shown():
    one, other = "x" * 500 + "sin" + "y" * 500, "x" * 500 + "cos" + "y" * 500
    said = in_words(differences({"graph": one}, {"graph": other}))
    assert "sin" in said
    assert "cos" in said
    assert len(said) < 300
    one, other = "def f(x):\n  sin(x)\n  return", "def f(x):\n  cos(x)\n  return"
    said = in_words(differences({"graph": one}, {"graph": other}))
    assert said == "graph, line 2: it has sin(x), this one cos(x)"


def test_the_nearest_key_is_that_with_the_fewest_differences(tmp_path):
    assert why_missed(tmp_path, {"a": "1"}) == ""
    keep_texts(tmp_path, "far", {"a": "2", "b": "2"})
    keep_texts(tmp_path, "near", {"a": "1", "b": "2"})
    assert why_missed(tmp_path, {"a": "1", "b": "3"}) == "the nearest stored key differs in b: it has 2, this one 3"
    assert "the same key is stored" in why_missed(tmp_path, {"a": "1", "b": "2"})


@pytest.mark.parametrize("damaged", ["", "[1]", '{"a": 1}', '{"a": "1", "a": "2"}', "[" * 10**5, "\0"])
def test_a_damaged_file_of_a_key_is_left_out(tmp_path, damaged):
    keep_texts(tmp_path, "a", {"a": "1"})
    (file,) = tmp_path.glob("**/*.json")
    assert json.loads(file.read_text()) == {"a": "1"}
    file.write_text(damaged)
    assert why_missed(tmp_path, {"a": "2"}) == ""


def test_a_third_party_says_its_key():
    def cache_key(gm, example_inputs):
        gm.graph.erase_node(next(node for node in gm.graph.nodes if not node.users and node.op != "output"))
        return CacheKey(str(len(example_inputs)))

    spec = BackendSpec("mine", lambda: None, cache_key=cache_key)

    def program(x, y):
        x.sin()
        return x + y

    found = keys_of(spec, "program", program, (torch.ones(2), torch.ones(2)), {})
    assert [graph.key for graph in found.graphs] == ["2"]


def test_what_has_no_key():
    with pytest.raises(RegionalValueError, match="its BackendSpec has no cache_key"):
        keys_of(SimpleNamespace(name="mine", cache_key=None), "program", torch.sin, (torch.ones(2),), {})
    with pytest.raises(TypeError, match="cache_key must be callable"):
        BackendSpec("mine", lambda: None, cache_key="key")


def test_a_program_without_a_graph():
    spec = BackendSpec("mine", lambda: None, cache_key=lambda gm, example_inputs: CacheKey("key"))
    with pytest.raises(RegionalValueError, match="nothing of program is compiled"):
        keys_of(spec, "program", lambda: 1, (), {})


class Silent:
    def __str__(self):
        raise RuntimeError("no text")


class OfSilentVersion(CustomGraphPass):
    def __call__(self, graph):
        pass

    def uuid(self):
        return [1, Silent()]


def test_a_text_of_an_object_that_cannot_be_printed():
    """A miss is explained unasked, so the explanation must not fail the compile."""
    spec = registry.resolve("inductor")
    with torch._inductor.config.patch(post_grad_custom_post_pass=OfSilentVersion()):
        (graph,) = keys_of(spec, "program", torch.sin, (torch.ones(2),), {}).graphs
    assert "[1, <Silent whose __str__ raises RuntimeError>]" in graph.texts.values()


def test_the_text_of_a_constant_is_its_bytes():
    def text(values):
        graph = torch.fx.Graph()
        graph.output(graph.get_attr("table"))
        gm = torch.fx.GraphModule({"table": values}, graph)
        return graph_ingredients(gm, annotations=False)["the constant table"]

    values = torch.arange(6.0).reshape(2, 3)
    same, other = values.t().contiguous().t(), values + 1
    assert text(values) == text(same) != text(other)
    assert text(torch.empty(0)).startswith("float32 [0]")


def test_the_digest_of_our_code_changes_with_each_package_it_names(tmp_path):
    for package in ("_base", "_torch", "reference", "fuzz"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "module.py").write_text("A = 1\n")
    copied = shutil.copy(cache_keys.__file__, tmp_path / "_base")
    own_code = runpy.run_path(str(copied))["own_code"].__wrapped__
    digests = [own_code("reference")]
    for package in ("_base", "_torch", "reference"):
        (tmp_path / package / "module.py").write_text("A = 2\n")
        digests.append(own_code("reference"))
    (tmp_path / "fuzz" / "module.py").write_text("A = 2\n")
    assert len(set(digests)) == 4
    assert own_code("reference") == digests[-1]
