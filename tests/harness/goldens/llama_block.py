"""Goldens of a Llama block, kept in ``__goldens__`` for torch 2.11, 2.13 and 2.15; ``test_llama.py`` runs this file."""

from __future__ import annotations

import pytest

from suites.models.llama import BATCH, LENGTH, SIZE, LlamaBlock


@pytest.mark.regional_compile
def test_llama_block(regional):
    block = LlamaBlock().to(regional.device)
    x = regional.randn(BATCH, LENGTH, SIZE, requires_grad=True)
    record = regional.assert_golden(block, x)
    regional.assert_golden(record, name="below the graph", facts=("fusions", "memory", "key"))
