"""Two real processes: the values of eager, on each rank, with and without the pass; a hang is a failure."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.warm_process import run_module

ROOT = Path(__file__).parents[3]
SECONDS = 240


@pytest.mark.slow(
    "starts processes that import torch", fast="tests/faults/reference/test_overlap.py::test_a_broken_pass_is_noticed"
)
@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch was built without gloo")
def test_two_ranks(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
    }
    ranks = run_module("tests.reference.overlap.gloo_rank", [str(tmp_path)], ROOT, environment, SECONDS, together=True)
    assert ranks.returncode == 0, ranks.stdout

    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert [one["delay"] for one in second] == [0.0, 0.0, 0.3]
    for one, other in zip(first, second, strict=True):
        assert one["equal"], one
        assert other["equal"], other
        assert one["issued"] == other["issued"]
        assert one["changed"]
    assert first[0]["sum"] != second[0]["sum"], "the ranks hold different parts"
