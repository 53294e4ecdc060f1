"""Two ranks, a process each: run a program eager, compiled, and compiled with the pass; write what each saw as JSON.

Argument: a folder, for the store, the caches of each rank and the results.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_regional.harness.kernel_store import kernels_kept
from tests.reference.overlap.programs import layers, overlapping

FOLDER = Path(sys.argv[1])
RANK = 0
DELAY = 0.0


@torch.library.custom_op("overlap_test::late", mutates_args=())
def late(x: torch.Tensor) -> torch.Tensor:
    """Give ``x`` after a time that differs between the ranks."""
    time.sleep(DELAY)
    return x.clone()


@late.register_fake
def _(x):
    return torch.empty_like(x)


def program(x, *shards):
    return layers(late(x), *shards)


def inputs():
    torch.manual_seed(0)
    return [torch.randn(16, 16), *(shards[RANK] for shards in torch.randn(3, 2, 8, 16) / 4)]


def compiled(**bounds):
    torch._dynamo.reset()
    with overlapping(**bounds) as plans:
        outputs = torch.compile(program, fullgraph=True)(*inputs())
    return outputs, plans


def main():
    """Compare, with ranks alike and with one of them slow."""
    global DELAY
    store = dist.FileStore(str(FOLDER / "store"), 2)
    dist.init_process_group("gloo", rank=RANK, world_size=2, store=store, timeout=datetime.timedelta(seconds=60))
    seen = []
    expected = program(*inputs())
    plain = torch.compile(program, fullgraph=True)(*inputs())
    for DELAY, cases in ((0.0, ({}, {"in_flight": 1})), (0.3 * RANK, ({"memory_bound": 2.0},))):
        for bounds in cases:
            outputs, plans = compiled(**bounds)
            pairs = zip(outputs, expected, plain, strict=True)
            seen.append(
                {
                    "bounds": bounds,
                    "delay": DELAY,
                    "equal": all(torch.equal(one, eager) and torch.equal(one, other) for one, eager, other in pairs),
                    "changed": plans[0].changed,
                    "issued": [collective.op for collective in plans[0].collectives],
                    "sum": float(sum(output.abs().sum() for output in outputs)),
                }
            )
    dist.destroy_process_group()
    (FOLDER / f"rank{RANK}.json").write_text(json.dumps(seen))


def both():
    """Fork the other rank, so that torch is imported once; be this one, and wait for it."""
    global RANK
    other = os.fork()
    RANK = int(other == 0)
    # Neither is to find what the other has compiled.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(FOLDER / f"inductor{RANK}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with kernels_kept():
        main()
    if other and os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]):
        sys.exit("the other rank failed")


if __name__ == "__main__":
    both()
