"""How many partitions a region becomes: as few as the graph allows."""

from __future__ import annotations

import pytest
import torch

from .annotations import chain, in_region

pytestmark = pytest.mark.regional_compile(requires=("regions", "region_counts"))


def pair(regional, **options):
    return regional.randn(4, 8, **options), regional.randn(8, 8, **options) / 3


# u outside the region, T inside: each T that waits for a u which waits for a T starts another partition.
@pytest.mark.quick
@pytest.mark.parametrize(("pattern", "partitions"), [("uTTTu", 1), ("TTuTT", 2), ("TuTuT", 3), ("TuTuTuT", 4)])
def test_chains(regional, pattern, partitions):
    record = regional.run(chain(pattern), *pair(regional))

    assert [(r.name, r.partitions) for r in record.regions] == [("default", partitions)]


@pytest.mark.regional_compile(expects_regions=False)
def test_a_chain_without_region(regional):
    record = regional.run(chain("uuu"), *pair(regional))

    assert record.regions == ()
    assert record.counters["region_compiles"] == 0


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions", "region_counts", "few_partitions"))
def test_an_independent_node_in_the_middle_does_not_split_a_region(regional):
    def program(x, w):
        with in_region("one"):
            a = x @ w
        b = torch.sin(x)
        with in_region("one"):
            c = x @ w.T
        return a, b, c

    regional.assert_parity(program, *pair(regional))
    record = regional.run(program, *pair(regional))
    assert record.region("one").partitions == 1


@pytest.mark.regional_compile(requires=("regions", "region_counts", "few_partitions"))
def test_two_independent_nodes_of_one_region_are_one_partition(regional):
    def program(x, w):
        with in_region("one"):
            return x @ w, x @ w.T

    record = regional.run(program, *pair(regional))
    assert record.region("one").partitions == 1
    assert record.counters["region_compiles"] == 1


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions", "region_ids", "region_counts"))
def test_two_ids_are_two_partitions(regional):
    def program(x, w):
        with in_region("one"):
            a = x @ w
        b = torch.sin(x)
        with in_region("two"):
            c = x @ w.T
        return a, b, c

    record = regional.run(program, *pair(regional))
    assert [(r.name, r.partitions) for r in record.regions] == [("one", 1), ("two", 1)]


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions", "region_ids", "region_counts"))
def test_two_adjacent_ids_are_never_in_one_partition(regional):
    def program(x, w):
        with in_region("one"):
            h = x @ w
        with in_region("two"):
            return h @ w.T

    record = regional.run(program, *pair(regional))
    assert [(r.name, r.partitions) for r in record.regions] == [("one", 1), ("two", 1)]
    assert record.counters["region_compiles"] == 2


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions", "share_identical", "region_counts"))
def test_identical_blocks_are_compiled_once_forward_and_once_backward(regional):
    def program(x, *weights):
        for w in weights:
            with in_region("block"):
                x = x @ w
            x = x.tanh()
        return x

    x, weights = regional.randn(4, 8, requires_grad=True), [regional.randn(8, 8, requires_grad=True) for _ in range(32)]
    record = regional.run(program, x, *weights)

    # Each block has a weight of its own. With a shared one the backward partitions would differ: all but the first one
    # add to the weight's gradient.
    assert [(r.graph, r.partitions) for r in record.regions] == [("forward", 32), ("backward", 32)]
    assert record.counters["region_compiles"] == 2


@pytest.mark.regional_compile(requires=("share_identical", "region_counts"))
def test_a_second_model_of_the_same_blocks_costs_no_compile(regional):
    def model(count):
        def program(x, w):
            for _ in range(count):
                with in_region("block"):
                    x = x @ w
                x = x.tanh()
            return x

        return program

    x, w = regional.randn(4, 8), regional.randn(8, 8)
    first = regional.compile(model(2))
    with regional.expect(region_compiles=1):
        first(x, w)
    with regional.expect(region_compiles=0):
        regional.compile(model(3))(x, w)
    regional.restart()
    with regional.expect(region_compiles=0, region_cache_hits=1):  # a third model: no cache has the whole of it
        regional.compile(model(4))(x, w)
