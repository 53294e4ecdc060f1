"""Print what 1, 8 and 32 equal blocks cost to compile, forward and backward, beside PyTorch's regional backend.

``python tests/benchmarks/identical_blocks.py``. Every compile is cold: a process and a cache folder of its own, with
one small region compiled beforehand, which pays for finding the C++ compiler. Ours and PyTorch's take turns.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile

BLOCKS = (1, 8, 32)
RUNS = 3

PROBE = """
import sys, time
import torch, torch._inductor
from pytest_regional.annotation import region

compiles = 0
original = torch._inductor.standalone_compile

def counting(*args, **kwargs):
    global compiles
    compiles += 1
    return original(*args, **kwargs)

torch._inductor.standalone_compile = counting

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x):
        with region("mlp"):
            h = self.down(torch.nn.functional.silu(self.up(self.norm(x))))
        return x + h

def backend():
    if sys.argv[1] == "ours":
        from pytest_regional.reference import regional
        return regional
    from pytest_regional._torch.backends import regional_inductor_backend
    return regional_inductor_backend()

def train(fn, *inputs):
    torch.compile(fn, backend=backend(), fullgraph=True)(*inputs).sum().backward()

train(region("warm")(lambda x: (x.sin() + 1).cos()), torch.randn(7, requires_grad=True))
compiles = 0
model = torch.nn.Sequential(*(Block() for _ in range(int(sys.argv[2]))))
x = torch.randn(16, 32, requires_grad=True)
begin = time.perf_counter()
train(model, x)
print(time.perf_counter() - begin, compiles)
"""


def cold(who: str, blocks: int) -> tuple[float, int]:
    """Return seconds and region compiles of one cold compile."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        output = subprocess.check_output([sys.executable, "-c", PROBE, who, str(blocks)], env=environment, text=True)
    seconds, compiles = output.split()[-2:]
    return float(seconds), int(compiles)


def shown(values: list[float]) -> str:
    """Show the median of ``values`` with its spread."""
    return f"{statistics.median(values):6.1f} s (from {min(values):.1f} to {max(values):.1f})"


def main() -> None:
    """Print a line for each number of blocks."""
    import torch

    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, median of {RUNS}")
    for blocks in BLOCKS:
        results: dict[str, list[tuple[float, int]]] = {"ours": [], "PyTorch": []}
        for _ in range(RUNS):
            for who, runs in results.items():
                runs.append(cold(who, blocks))
        times = {who: [seconds for seconds, _ in runs] for who, runs in results.items()}
        for who, runs in results.items():
            print(f"{blocks:3} blocks, {who:8} {runs[0][1]:3} region compiles, {shown(times[who])}")
        ratio = statistics.median(times["PyTorch"]) / statistics.median(times["ours"])
        print(f"{blocks:3} blocks, ratio of times 1/{ratio:.1f}", flush=True)


if __name__ == "__main__":
    main()
