"""Print what looking at generated code costs beside the compile: ``python -m bench.code_reader``.

Two programs, forward and backward, compiled whole by Inductor with fresh caches in every round: a transformer block,
and a chain of matrix products, for which Inductor writes no kernel and runs no C++ compiler: the least compile to be
small beside. One round before the first pays for imports. Seconds are those of the processor in this process, so that
other work on the machine does not count, and the C++ compiler neither.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any
from unittest import mock

import torch

from pytest_regional._torch import codegen
from pytest_regional.harness.codegen import events_of
from pytest_regional.harness.observe import observer
from pytest_regional.harness.record import GeneratedCode
from pytest_regional.testing import regional

ROUNDS = 5


class Block(torch.nn.Module):
    """Attention and a feed-forward network, with norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.mT / 4, -1) @ v)
        return x + self.down(torch.nn.functional.silu(self.up(self.norms[1](x))))


class Products(torch.nn.Module):
    """Eight matrix products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        for _ in range(8):
            x = x @ self.weight
        return x


def check_products(code: GeneratedCode) -> None:
    """Make what assertions there are for products."""
    code.assert_order("aten.mm#1", "aten.mm#2", "aten.mm#8", graph="forward")
    code.assert_not_fused("aten.mm#1", "aten.mm#2", graph="forward")
    code.assert_count("aten.mm", 8, graph="forward")
    code.assert_freed_before("aten.mm#1", "aten.addmm#2", graph="backward")
    code.assert_peak_live_bytes(at_most=2**30)
    code.assert_no_copy(graph="forward")


def check_block(code: GeneratedCode) -> None:
    """Make one assertion of each kind."""
    code.assert_order("aten.native_layer_norm#1", "aten._softmax", "aten.silu", graph="forward")
    code.assert_not_fused("aten._softmax", "aten.silu", graph="forward")
    code.assert_fused("aten.silu>aten.exp", "aten.silu>aten.neg", graph="forward")
    code.assert_count("aten.addmm", 4, graph="forward")
    code.assert_freed_before("aten.bmm#1", "aten.cat", graph="backward")
    code.assert_peak_live_bytes(at_most=2**30)
    code.assert_count("aten.clone", 0, graph="forward")


class Clock:
    """Seconds spent in functions wrapped by :meth:`timed`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``fn``, its time counted."""

        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            try:
                return fn(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - begin

        return call


@contextmanager
def listening_timed() -> Iterator[Clock]:
    """Count what the harness does while Inductor generates."""
    clock = Clock()
    places = ((codegen, "_fused"), (codegen, "_extern"), (observer, "origins_of"))
    patches = [mock.patch.object(place, name, clock.timed(getattr(place, name))) for place, name in places]
    for patch in patches:
        patch.start()
    try:
        yield clock
    finally:
        for patch in patches:
            patch.stop()


@dataclass(frozen=True)
class Costs:
    """Seconds of one round: of the processor in this process, but those of ``wall`` and ``parity``, by the clock."""

    compiled: float
    listened: float
    read: float
    asserted: float
    wall: float
    parity: float

    @property
    def looking(self) -> float:
        """What looking at the code cost in all."""
        return self.listened + self.read + self.asserted


def measure(module: torch.nn.Module, check: Callable[[GeneratedCode], None], *shape: int) -> Costs:
    """Compile and run ``module``, read its code and check that, check parity of what was compiled."""
    with regional("inductor") as r, listening_timed() as clock:
        x = r.randn(*shape, requires_grad=True)
        compiled = r.compile(module)
        begin, wall = time.process_time(), time.perf_counter()
        code = r.observe(compiled, x).code
        compile_seconds, wall_seconds = time.process_time() - begin, time.perf_counter() - wall
        events_of.cache_clear()
        begin = time.process_time()
        assert len(code.events) > 20
        read = time.process_time() - begin
        begin = time.process_time()
        check(code)
        asserted = time.process_time() - begin
        begin = time.perf_counter()
        with r.no_compile():
            r.assert_parity(module, x, compiled=lambda _: compiled)
        parity = time.perf_counter() - begin
    return Costs(compile_seconds, clock.seconds, read, asserted, wall_seconds, parity)


def main() -> None:
    """Print times and ratios."""
    os.environ["PYTEST_REGIONAL_KERNEL_STORE"] = "off"  # what is compiled is what is timed
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, median of {ROUNDS}")
    torch.manual_seed(0)
    block, products = Block(32), Products(32)
    measure(products, check_products, 16, 32)
    for module, check, shape in ((products, check_products, (16, 32)), (block, check_block, (2, 16, 32))):
        rows = [measure(module, check, *shape) for _ in range(ROUNDS)]
        compiled, listened, read, asserted, wall, parity = map(statistics.median, zip(*map(astuple, rows), strict=True))
        ratios = [100 * row.looking / row.compiled for row in rows]
        print(
            f"{type(module).__name__}: compile and run {compiled:.2f} s; listening {1e3 * listened:.1f} ms, "
            f"reading {1e3 * read:.1f} ms, assertions {1e3 * asserted:.1f} ms: {statistics.median(ratios):.2f} % "
            f"(from {min(ratios):.2f} to {max(ratios):.2f}); by the clock {wall:.2f} s, parity {parity:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
