"""Have the float64 run of a program draw what its eager run drew, so that it can be the anchor of a tolerance.

Generators give other numbers for other dtypes. So the numbers are recorded, operator by operator, and given back: where
the same operators draw in the same order. What an operator computes of its input as well (a fused dropout, attention)
is no number that could be given back; such a program has no anchor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: What of a result no gradient flows through, and no rounding of an input shows in.
_DRAWING = frozenset(
    {
        *("bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_"),
        *("poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random_", "randperm"),
        "uniform_",
    }
)


def draws(func: Any) -> bool:
    """Say whether ``func`` is an operator whose result is random and nothing else."""
    name = func._schema.name.removeprefix("aten::") if isinstance(func, torch._ops.OpOverload) else ""
    return name in _DRAWING and func._schema.is_mutable == name.endswith("_")


class BesideCompilers(TorchDispatchMode):  # type: ignore[misc]
    """A mode under which eager loops and conditions, which Dynamo traces, go on as without; what they draw is not seen.

    Without the two answers Dynamo would refuse the frames of the program for the rest of the process (2.11 to 2.15).
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return that a compile under the mode is to be done as without it."""
        return True


class RecordedDraws(BesideCompilers):
    """Keeps what is drawn while it is active, in ``drawn``."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if draws(func):
            self.drawn.append(made.detach().clone())
        return made


class RepeatedDraws(BesideCompilers):
    """Gives ``drawn`` in place of what would be drawn, in float64 where it is of floating point.

    What does not fit is drawn anew; ``left`` holds what nobody asked for.
    """

    def __init__(self, drawn: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.left = deque(drawn)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not draws(func) or not self.left:
            return func(*args, **(kwargs or {}))
        wide = self.left.popleft()
        if wide.is_floating_point():
            wide = wide.double()
        if not func._schema.is_mutable:
            return wide
        return args[0].copy_(wide) if args[0].shape == wide.shape else func(*args, **(kwargs or {}))


__all__ = ["BesideCompilers", "RecordedDraws", "RepeatedDraws", "draws"]
