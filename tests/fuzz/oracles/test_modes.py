"""Modes."""

from __future__ import annotations

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.fuzz.oracles import check
from pytest_regional.fuzz.settings import MODES, in_mode, mode_of
from pytest_regional.testing import regional

from .programs import A, B, chain

PROGRAM = chain(("sin", A), ("exp", ()), ("cos", B), training=True)


def test_the_structure_mode_generates_no_code():
    with regional("reference", "cpu") as harness:
        with in_mode(harness, "interpret"):
            record = harness.run(PROGRAM.function, *PROGRAM.inputs())
        assert [region.partitions for region in record.regions] == [1, 1, 1, 1]
        assert (len(record.code), record.counters.region_compiles, record.counters.cache_saves) == (0, 0, 1)


def test_entries_of_the_interpret_mode_are_loaded():
    with regional("reference", "cpu") as harness:
        assert "warm" in check(harness, PROGRAM, mode="interpret", oracles=["warm"]).oracles


def test_pytorchs_backend_passes_the_same_seam():
    with regional("torch", "cpu") as harness:
        with in_mode(harness, "interpret"), harness.expect(region_compiles=0, graphs=2):
            harness.assert_parity(PROGRAM.function, *PROGRAM.inputs())


@pytest.mark.parametrize(
    ("backend", "mode", "reason"),
    [
        ("reference", "slow", "unknown mode .slow.. Known: aten, emulated, graph, interpret, native"),
        ("reference", "emulated", "whose mode is 'native'"),
        ("inductor", "interpret", "disclaims regions"),
    ],
)
def test_modes_that_cannot_be(backend, mode, reason):
    with (
        regional(backend, "cpu", expects_regions=False) as harness,
        pytest.raises(RegionalValueError, match=reason),
        in_mode(harness, mode),
    ):
        pass


def test_the_mode_of_a_device():
    assert [mode_of(device) for device in ("cpu", "cuda", "cuda-emulated", "cuda-emulated-a100")] == [
        "native",
        "native",
        "emulated",
        "emulated",
    ]
    assert set(MODES) == {"aten", "graph", "interpret", "emulated", "native"}
