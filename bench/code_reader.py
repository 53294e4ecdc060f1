"""What reading generated code costs compared with the compile, for ``rows.reading``.

Two programs, forward and backward, compiled whole by Inductor with fresh caches in every round: a transformer block,
and a chain of matrix products, for which Inductor writes no kernel and runs no C++ compiler: the smallest compile to
compare with. Seconds are CPU seconds of this process, without the C++ compiler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from pytest_regional._torch import inductor
from pytest_regional.harness.codegen import events_of
from pytest_regional.harness.observe import observer
from pytest_regional.harness.record import GeneratedCode
from pytest_regional.testing import regional


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
    places = ((inductor, "_fused"), (observer, "origins_of"))
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
        code = r.run(compiled, x, as_is=True).code
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
