"""Peak memory of a compiled forward and backward beside PyTorch's backend, from the CPU allocator's own events."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from .row import Claim, Row, Target
from .turns import in_turns

CLAIMS = (
    Claim(
        "memory: peak of forward and backward",
        "backend `regional`, two layers of a transformer",
        "PyTorch's regional backend",
        "MiB",
        Target("at most 1.0", most=1.0),
        style="{:.3f}",
    ),
)
WIDTH, LENGTH, BATCH, LAYERS = 64, 128, 4, 2


def model() -> Any:
    """Return two layers, attention and the feed-forward network of each a region."""
    import torch

    from pytest_regional._base.region import region

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
            self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
            self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
            with region("attention"):
                attended = torch.softmax(q @ k.mT / 8, -1) @ v
            x = x + self.out(attended)
            with region("mlp"):
                h = self.down(torch.nn.functional.silu(self.up(self.norms[1](x))))
            return x + h

    torch.manual_seed(0)
    return torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))


def peak_mib(step: Any) -> float:
    """Return the most that was allocated during ``step`` beyond what was before it, in MiB."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(str(Path(folder, "trace.json")))
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    live = peak = 0
    for _, change in changes:
        live += change
        peak = max(peak, live)
    assert peak, "the profiler saw no allocation"
    return peak / 2**20


def measure(rounds: int) -> list[Row]:
    """Take turns of training steps, compiled beforehand."""
    import torch

    from pytest_regional._torch.dynamo import regional_inductor_backend
    from pytest_regional.reference import regional

    def way(backend: Any) -> Any:
        compiled = torch.compile(model(), backend=backend, fullgraph=True)
        x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)

        def step() -> None:
            compiled(x).sum().backward()
            compiled.zero_grad()
            x.grad = None

        step()
        return lambda: peak_mib(step)

    ways = {"ours": way(regional), "theirs": way(regional_inductor_backend())}
    return [CLAIMS[0].row(**in_turns(rounds, ways))]
