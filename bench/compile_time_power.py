"""How often ``assert_compile_time`` fails equal programs, and how often it finds a pass that takes 30 % more.

``python -m bench.compile_time_power --trials 20`` prints a row for each phase and limit. Every trial is one check: the
same program twice, or a program whose pre-grad pass takes as long as 30 % of what the phase took.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from statistics import median, pstdev
from typing import Any

import torch

from pytest_regional import region
from pytest_regional.harness.compile_times.checking import CompileTimeCheck, check
from pytest_regional.harness.compile_times.measuring import Measured
from pytest_regional.harness.regional import Regional
from pytest_regional.testing import regional

GROWTH = 0.3


def usual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiply in a region, which needs no C++ compiler."""
    with region("mlp"):
        h = x @ w
    return torch.sin(h)


def equal(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Do the same."""
    with region("mlp"):
        h = x @ w
    return torch.sin(h)


def grown(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Do the same with the function on which the pass is slow."""
    with region("mlp"):
        h = x @ w
    return torch.cos(h)


class SlowForCos:
    """A pass that works for some seconds on graphs with ``cos``."""

    seconds = 0.0

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Spend the time in this thread, as a pass does that has more to do."""
        end = time.perf_counter() + self.seconds * any("cos" in str(node.target) for node in graph.nodes)
        while time.perf_counter() < end:
            pass

    def uuid(self) -> str:
        """Say that runs are alike."""
        return "slow for cos"


def trial(r: Regional, new: Any, inputs: tuple[Any, ...], phase: str, at_most: float, clock: str) -> CompileTimeCheck:
    """Make one check, as ``assert_compile_time`` does."""
    sides = [Measured(r, fn, inputs, {}, False, r._spec, clock=clock, kernels_kept=True) for fn in (new, usual)]
    return check(sides[0], sides[1], phase, at_most, 5)


def row(kind: str, phase: str, at_most: float, made: list[CompileTimeCheck]) -> str:
    """Return what became of the trials, and how far their ratios are from each other."""
    outcomes = Counter(one.outcome for one in made)
    ratios = [one.ratio.value for one in made]
    spread = pstdev(map(math.log, ratios))
    compiles = median(len(one.new.compiles) for one in made)
    words = ", ".join(f"{outcomes[one]} {one}" for one in ("within", "slower", "undecided"))
    noise = median(one.new.phase(phase).noise for one in made)
    return (
        f"{kind:<6} {phase:<7} at_most={at_most:<4g} {len(made)} trials: {words}; ratio {median(ratios):.3f} "
        f"+- {spread:.1%}, noise of one compile {noise:.1%}, {compiles:g} compiles of each"
    )


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--phases", default="passes,total")
    parser.add_argument("--at-most", type=float, default=1.1)
    parser.add_argument("--clock", default="wall")
    asked = parser.parse_args()
    slow = SlowForCos()
    with regional("reference", "cpu") as r, torch._inductor.config.patch(pre_grad_custom_pass=slow):
        inputs = r.randn(8, 8), r.randn(8, 8)
        usual_times = r.compile_times(usual, *inputs, repeat=10, clock=asked.clock)
        for phase in asked.phases.split(","):
            slow.seconds = GROWTH * usual_times.phase(phase).median
            print(
                f"{phase}, {asked.clock} time: {usual_times.phase(phase)}, "
                f"a pass that takes {slow.seconds * 1000:.1f} ms more"
            )
            for kind, new in (("equal", equal), ("grown", grown)):
                made = [trial(r, new, inputs, phase, asked.at_most, asked.clock) for _ in range(asked.trials)]
                print(row(kind, phase, asked.at_most, made), flush=True)


if __name__ == "__main__":
    main()
