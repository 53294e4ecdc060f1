"""The collector is held while a graph is taken apart, and on again afterwards."""

import gc

import pytest

from pytest_regional.reference import extract, partition
from pytest_regional.reference.partition import without_collections
from tests.reference.graphs import chain


def test_the_collector_is_held_and_on_again():
    assert gc.isenabled()
    with without_collections():
        assert not gc.isenabled()
        with without_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error_and_stays_off_where_it_was_off():
    with pytest.raises(KeyError), without_collections():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_graph_is_taken_apart_without_collections(monkeypatch):
    seen = []
    for module, name in ((partition, "order_edges"), (extract, "replace_graph")):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, original=original: seen.append(gc.isenabled()) or original(*a))
    gm = chain("abcd")
    extract.extract_partitions(gm, partition.plan_partitions(gm.graph))
    assert seen == [False, False]
