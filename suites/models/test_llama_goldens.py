"""Goldens of a Llama block: what its compile did, in one file for torch 2.11, 2.13 and 2.15."""

from __future__ import annotations

import pytest

from .llama import BATCH, LENGTH, SIZE, LlamaBlock

#: Backends whose goldens are kept here, all of the CPU.
KEPT = ("reference", "torch", "inductor")


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("backward",))
def test_llama_block(regional):
    if regional.backend not in KEPT or regional.device_under_test.name != "cpu":
        pytest.skip(f"goldens are kept of {', '.join(KEPT)} on cpu")
    block = LlamaBlock().to(regional.device)
    x = regional.randn(BATCH, LENGTH, SIZE, requires_grad=True)
    record = regional.assert_golden(block, x)
    regional.assert_golden(record, name="below the graph", facts=("fusions", "memory", "key"))
