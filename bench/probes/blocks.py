"""What equal blocks cost to compile: ``python -m bench.probes.blocks WHO BLOCKS``, who is ours or PyTorch.

Prints seconds of the first training step, how many regions were compiled, and which part of the seconds the backend
had: the rest is Dynamo's, but for the step itself and a backward that compiles later. One small region is compiled
beforehand, which pays for finding the C++ compiler.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch._inductor

from pytest_regional._base.region import region


class Block(torch.nn.Module):
    """A feed-forward block with a norm, one region."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        with region("mlp"):
            h = self.down(torch.nn.functional.silu(self.up(self.norm(x))))
        return x + h


def backend_of(who: str) -> Any:
    """Return our backend or PyTorch's."""
    if who == "ours":
        from pytest_regional.reference import regional

        return regional
    from pytest_regional._torch.dynamo import regional_inductor_backend

    return regional_inductor_backend()


def small(x: torch.Tensor) -> torch.Tensor:
    """Compute two ops."""
    return (x.sin() + 1).cos()


def train(fn: Any, backend: Any, *inputs: torch.Tensor) -> None:
    """Compile and run forward and backward."""
    torch.compile(fn, backend=backend, fullgraph=True)(*inputs).sum().backward()


def main(who: str, blocks: int) -> None:
    """Measure and print."""
    compiles, original = 0, torch._inductor.standalone_compile

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return original(*args, **kwargs)

    torch._inductor.standalone_compile = counting
    backend = backend_of(who)
    torch.compile(region("warm")(small), backend=backend, fullgraph=True)(torch.randn(7))
    compiles, in_backend = 0, 0.0

    def timed(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal in_backend
        begin = time.perf_counter()
        compiled = backend(gm, inputs)
        in_backend += time.perf_counter() - begin
        return compiled

    model = torch.nn.Sequential(*(Block() for _ in range(blocks)))
    x = torch.randn(16, 32, requires_grad=True)
    begin = time.perf_counter()
    train(model, timed, x)
    seconds = time.perf_counter() - begin
    print("probe", seconds, compiles, f"backend {in_backend / seconds:.0%}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
