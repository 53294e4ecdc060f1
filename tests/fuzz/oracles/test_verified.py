"""The oracle ``verified``: a program with a kernel that is refuted violates it."""

from __future__ import annotations

import pytest

from pytest_regional.fuzz.oracles import OracleViolationError, check
from pytest_regional.testing import regional
from pytest_regional.verify import Outcome, verifier

from .programs import A, chain

PROGRAM = chain(("sin", A), ("exp", ()))


def checked(*oracles, verify=20.0):
    with regional("inductor", "cuda-emulated", expects_regions=False, verify=verify) as r:
        return check(r, PROGRAM, mode="emulated", oracles=oracles)


def test_kernels_that_are_right_keep_it():
    assert "verified" in checked("compiles", "verified").oracles


def test_a_refuted_kernel_violates_it(monkeypatch):
    refuted = Outcome("memory", "refuted", "planted")
    monkeypatch.setattr(verifier, "memory_safe", lambda question: refuted)
    monkeypatch.setenv("PYTEST_REGIONAL_KERNEL_STORE", "off")  # where it is known to be right
    monkeypatch.setattr(verifier, "_KNOWN", {})
    with pytest.raises(OracleViolationError, match=r"triton_.*: memory: planted") as caught:
        checked("compiles", "verified")
    assert (caught.value.oracle, caught.value.stage, caught.value.origin) == ("verified", "compile", "memory")


def test_it_claims_nothing_where_nothing_is_verified():
    assert "--regional-verify" in checked("compiles", "verified", verify=None).skipped["verified"]


def test_graphs_of_an_earlier_program_are_not_held_against_the_next(monkeypatch):
    with regional("inductor", "cuda-emulated", expects_regions=False, verify=20.0) as r:
        check(r, PROGRAM, mode="emulated", oracles=["compiles"])
        assert r.verification._waiting, "the first program's kernels were not looked at"
        seen = []
        monkeypatch.setattr(verifier, "verify_graph", lambda graph, *_: seen.append(graph) or [])
        check(r, chain(("cos", A)), mode="emulated", oracles=["compiles", "verified"])
    assert seen
    assert all("cos" in graph.source for graph in seen)
