"""A Llama block: its goldens hold under each torch, and one change gives a difference of few lines that names it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_regional._torch.vetoes import vetoing
from pytest_regional.harness.goldens.checking import sentences
from pytest_regional.harness.goldens.file import GoldenFile, GoldenKey
from pytest_regional.testing import regional
from suites.models.layers import SwiGLU, in_region, rotate
from suites.models.llama import BATCH, HEAD_SIZE, HEADS, HIDDEN, KV_HEADS, LENGTH, SIZE, LlamaBlock, causal_attention

from .writing import difference, write

ROOT = Path(__file__).parents[3]
SUITE = ROOT / "suites" / "models" / "test_llama_goldens.py"
GOLDENS = SUITE.parent / "__goldens__" / "test_llama_goldens.txt"


@pytest.mark.slow(
    "runs the suite of goldens of a Llama block", fast="tests/harness/goldens/test_checking.py::test_facts_of_a_program"
)
def test_goldens_hold_under_this_torch():
    """They are kept for 2.11, 2.13 and 2.15."""
    options = ("--regional-backend=reference,torch", "--regional-device=cpu", "-n0", "-p", "no:cacheprovider", "-q")
    command = [sys.executable, "-m", "pytest", *options, str(SUITE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout


def test_only_what_is_otherwise_is_there_twice():
    file = GoldenFile.read(GOLDENS)
    whole, *regions = (GoldenKey("test_llama_block", backend) for backend in ("inductor", "reference", "torch"))
    assert [list(file.goldens[key]["cpu"]) for key in regions] == [[(2, 11)]] * 2, "the same under each"
    assert list(file.goldens[whole]["cpu"]) == [(2, 11), (2, 13)], "the gradient of SiLU is decomposed otherwise"
    assert file.holding(whole, "cpu", (2, 15)) == file.holding(whole, "cpu", (2, 13))


def test_the_documentation_shows_what_a_new_version_changed():
    entries = GoldenFile.read(GOLDENS).goldens[GoldenKey("test_llama_block", "inductor")]["cpu"]
    said = "".join(f"  {line}\n" for line in sentences(entries[2, 11].text, entries[2, 13].text))
    headers = [line for line in GOLDENS.read_text("utf-8").splitlines() if re.match("--- .* from torch", line)]
    page = (ROOT / "docs" / "goldens.md").read_text("utf-8")
    assert f"cpu):\n{said}If that is intended" in page
    assert "".join(f"{line}\n...\n" for line in headers if "below the graph" not in line) in page


class WithGelu(SwiGLU):
    def forward(self, x):
        return nn.functional.gelu(x @ self.gate.T) * (x @ self.up.T) @ self.down.T


def attention_without_repeats(query, key, value):
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value


class RepeatsOutside(LlamaBlock):
    """Keys and values are repeated for their queries before the region."""

    def _attend(self, x):
        batch, length, _ = x.shape
        heads = (x @ self.qkv.T).view(batch, length, -1, HEAD_SIZE).transpose(1, 2)
        query, key, value = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        query, key = rotate(query, self.cosine, self.sine), rotate(key, self.cosine, self.sine)
        key, value = (one.repeat_interleave(HEADS // KV_HEADS, 1) for one in (key, value))
        with in_region("attention"):
            attended = attention_without_repeats(query, key, value)
        return attended.transpose(1, 2).reshape(batch, length, -1) @ self.out.T


class TransposesInside(LlamaBlock):
    """The transposition after the attention is in the region."""

    def _attend(self, x):
        batch, length, _ = x.shape
        heads = (x @ self.qkv.T).view(batch, length, -1, HEAD_SIZE).transpose(1, 2)
        query, key, value = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        query, key = rotate(query, self.cosine, self.sine), rotate(key, self.cosine, self.sine)
        with in_region("attention"):
            attended = causal_attention(query, key, value).transpose(1, 2)
        return attended.reshape(batch, length, -1) @ self.out.T


@pytest.fixture
def r():
    with regional("reference", "cpu") as harness:
        yield harness


@pytest.fixture
def x(r):
    return r.randn(BATCH, LENGTH, SIZE, requires_grad=True)


@pytest.fixture
def golden(r, x, tmp_path):
    """The golden of the block as it is, with all facts."""
    path = tmp_path / "llama.txt"
    write(r, path, LlamaBlock(), x)
    return path


@pytest.mark.slow("compiles a Llama block", fast="tests/harness/goldens/test_checking.py::test_a_difference")
def test_one_operator(r, x, golden):
    block = LlamaBlock()
    block.feed_forward = WithGelu(SIZE, HIDDEN)
    assert difference(r, golden, block, x) == [
        "forward: aten.silu.default became aten.gelu.default in the code outside of regions, "
        "after aten._unsafe_view.default",
        "backward: aten.silu_backward.default became aten.gelu_backward.default in the code outside of regions, "
        "after aten.permute.default",
    ]


@pytest.mark.slow("compiles a Llama block", fast="tests/harness/goldens/test_checking.py::test_a_difference")
def test_an_operator_moved_into_a_region(r, x, golden):
    found = difference(r, golden, TransposesInside(), x)
    assert found[:2] == [
        "forward: aten.transpose.int moved into region attention",
        "backward: aten.transpose.int moved into region attention",
    ]
    assert "forward, at a border: aten.contiguous.default > [attention] > aten.clone.default; " in "\n".join(found)
    assert not any("ops, 1 partition" in line for line in found)


@pytest.mark.slow("compiles a Llama block", fast="tests/harness/goldens/test_difference.py::test_operators")
def test_operators_moved_out_of_a_region(r, x, golden):
    found = difference(r, golden, RepeatsOutside(), x)
    assert "moved out of region attention" in found[0]
    assert "aten.unsqueeze.default" in found[0]


@pytest.mark.slow("compiles a Llama block to C++", fast="tests/harness/goldens/test_checking.py::test_other_backends")
def test_one_fusion(r, x, golden):
    with vetoing() as applied:
        r.restart()
        r.run(LlamaBlock(), x)
    chosen = next(one for one in applied.of_kind("fusion") if "aten.amax" in one.what)
    with vetoing([chosen]):
        found = difference(r, golden, LlamaBlock(), x)
    assert "fusion broke: " in found[0]
    assert "softmax" in found[0]


@pytest.mark.slow("compiles a Llama block", fast="tests/harness/goldens/test_checking.py::test_facts_of_a_program")
def test_one_setting(r, x, golden):
    torch.set_float32_matmul_precision("medium")
    assert difference(r, golden, LlamaBlock(), x) == ["the precision of products: medium, was highest"]
