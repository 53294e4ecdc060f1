"""The region plan, told to people."""

from pytest_regional.reference import explain
from tests.reference.graphs import chain, diamond


def with_values(gm):
    for node in gm.graph.nodes:
        node.meta["val"] = 0
    return gm


def test_plan_names_regions_splits_and_sharing(capsys):
    gm = with_values(diamond(["a1 a x", "u u a1", "a2 a u", "b1 b a2"]))
    before = str(gm.graph)
    explanation = explain(gm)
    assert str(gm.graph) == before
    assert explanation.regions == ("a", "b")
    assert [p.split_by for p in explanation.partitions] == [None, "u", None]
    assert [p.shared_with for p in explanation.partitions] == [None, "compiled_region_a_0", "compiled_region_a_0"]
    printed = capsys.readouterr().out
    assert "region 'a': 2 partition(s)" in printed
    assert "compiled_region_a_1: aten.sin.default  (split by u; shares compiled_region_a_0)" in printed


def test_split_by_another_region():
    gm = with_values(diamond(["a1 a x", "b1 b x", "b2 b a1", "a2 a b1"]))
    assert [p.split_by for p in explain(gm, show=False).partitions] == [None, None, "the order of other regions"]


def test_no_regions(capsys):
    assert explain(with_values(chain("uu"))).partitions == ()
    assert capsys.readouterr().out == "no regions\n"
