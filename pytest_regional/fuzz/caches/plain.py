"""Programs as functions of a module: their traces can be stored, as those of generated functions cannot."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class PlainProgram:
    """One of the programs without collectives, and two more ops, so that no other program has its graph.

    Attributes:
        kind: which program.
        region: the id of the region; None leaves its ops unannotated.
        configs: of the region.
        rows: the size of the input's first dimension.
        training: whether gradients are asked for.
    """

    kind: str
    region: str | None
    configs: tuple[tuple[str, Any], ...]
    rows: int
    training: bool

    def inputs(self, device: str, seed: int) -> tuple[torch.Tensor, ...]:
        """Return the input, drawn from ``seed``."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(self.rows, 4, generator=generator).to(device).requires_grad_(self.training),)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        """Run it."""
        y = self._marked(self._part(x)) if self.kind == "shorter region" else self._within(x)
        return (y.cos() + 2,)

    def _part(self, x: torch.Tensor) -> torch.Tensor:
        with _mark(self):
            return x * x

    def _marked(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def _within(self, x: torch.Tensor) -> torch.Tensor:
        with _mark(self):
            y = x @ x.T if self.kind == "product" else x * x
        if self.kind == "constants":
            return y + y.new_tensor([1.0, 2.0, 3.0, 4.0]) + 0.3
        if self.kind == "cut off":
            y = y[:5].flatten()
        with _mark(self):
            return y.sin()

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The program as a method with code of its own: Dynamo then compiles no two programs as one function.

        Their code is equal, so that stored traces are not told apart by it.
        """
        body = type(self).__call__
        return types.MethodType(types.FunctionType(body.__code__.replace(), body.__globals__, body.__name__), self)


def _mark(program: PlainProgram) -> contextlib.AbstractContextManager[Any]:
    from pytest_regional._region import region

    if program.region is None:
        return contextlib.nullcontext()
    return region(program.region, configs=dict(program.configs))


__all__ = ["PlainProgram"]
