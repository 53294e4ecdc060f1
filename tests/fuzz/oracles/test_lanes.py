"""Lanes."""

from __future__ import annotations

import pytest

from pytest_regional.fuzz.modes import LANES, LaneError, in_lane, lane_of
from pytest_regional.fuzz.oracles import check
from pytest_regional.testing import regional

from .programs import A, B, chain

PROGRAM = chain(("sin", A), ("exp", ()), ("cos", B), training=True)


def test_the_structure_lane_generates_no_code():
    with regional("reference", "cpu") as harness:
        with in_lane(harness, "structure"):
            record = harness.run(PROGRAM.function, *PROGRAM.inputs())
        assert [region.partitions for region in record.regions] == [1, 1, 1, 1]
        assert (len(record.code), record.counters.region_compiles, record.counters.cache_saves) == (0, 0, 1)


def test_what_the_structure_lane_stored_is_loaded():
    with regional("reference", "cpu") as harness:
        assert "warm" in check(harness, PROGRAM, lane="structure", oracles=["warm"]).oracles


def test_pytorchs_backend_passes_the_same_seam():
    with regional("torch", "cpu") as harness:
        with in_lane(harness, "structure"), harness.expect(region_compiles=0, graphs=2):
            harness.assert_parity(PROGRAM.function, *PROGRAM.inputs())


@pytest.mark.parametrize(
    ("backend", "lane", "reason"),
    [
        ("reference", "slow", "unknown lane .slow.. Known: fast, full, structure"),
        ("reference", "fast", "whose lane is 'full'"),
        ("inductor", "structure", "disclaims regions"),
    ],
)
def test_lanes_that_cannot_be(backend, lane, reason):
    with (
        regional(backend, "cpu", expects_regions=False) as harness,
        pytest.raises(LaneError, match=reason),
        in_lane(harness, lane),
    ):
        pass


def test_the_lane_of_a_device():
    assert [lane_of(device) for device in ("cpu", "cuda", "cuda-emulated", "cuda-emulated-a100")] == [
        "full",
        "full",
        "fast",
        "fast",
    ]
    assert set(LANES) == {"structure", "fast", "full"}
