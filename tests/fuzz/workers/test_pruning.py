"""Which kept programs of a store are needed for what all of them reach."""

from pytest_regional.fuzz.store import open_store
from pytest_regional.fuzz.workers.pruning import KeptProgram, Pruned, needed, prune


def programs(**reached):
    return {name: KeptProgram(size, frozenset(keys)) for name, (size, keys) in reached.items()}


def test_what_others_reach_is_not_needed():
    assert needed(programs(a=(5, "xyz"), b=(1, "x"), c=(1, "w"))) == {"a", "c"}


def test_of_equal_programs_the_smaller_one_is_needed():
    assert needed(programs(a=(5, "xy"), b=(2, "xy"))) == {"b"}


def test_nothing_needs_nothing():
    assert needed({}) == set()


def entry(mode, size, keys):
    return {"mode": mode, "program": {}, "size": size, "keys": sorted(keys)}


def test_modes_reach_things_of_their_own_and_junk_goes(tmp_path):
    store = open_store(tmp_path / "store")
    store.write("corpus", "a", entry("native", 5, "xy"), version=0)
    store.write("corpus", "b", entry("native", 1, "x"), version=0)
    store.write("corpus", "c", entry("interpret", 1, "x"), version=0)
    store.write("corpus", "junk", {"mode": 5}, version=0)

    assert prune(store) == Pruned(4, 2, 3)

    assert set(store.entries("corpus")) == {"a", "c"}
    assert prune(store) == Pruned(2, 2, 3)
