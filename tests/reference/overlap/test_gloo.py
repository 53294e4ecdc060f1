"""Two real processes: the values of eager, on each rank, with and without the pass; a hang is a failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

ROOT = Path(__file__).parents[3]
SECONDS = 240


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch was built without gloo")
def test_two_ranks(tmp_path):
    results = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    command = [sys.executable, "-W", "ignore", "-m", "tests.reference.overlap.gloo_rank"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), str(results[rank])],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank, process in enumerate(ranks):
            output, _ = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, f"rank {rank}:\n{output}"
    finally:
        for process in ranks:
            process.kill()

    first, second = (json.loads(result.read_text()) for result in results)
    assert [one["delay"] for one in second] == [0.0, 0.0, 0.3]
    for one, other in zip(first, second, strict=True):
        assert one["equal"], one
        assert other["equal"], other
        assert one["issued"] == other["issued"]
        assert one["changed"]
    assert first[0]["sum"] != second[0]["sum"], "the ranks hold different parts"
