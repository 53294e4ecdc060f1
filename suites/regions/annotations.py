"""Annotations as PyTorch spells them, and small graphs made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.traceback import annotate


def in_region(name: str, **configs: Any) -> annotate:
    """Annotate what follows as region ``name`` with Inductor settings ``configs``."""
    value: dict[str, Any] = {"inductor_region": name}
    if configs:
        value["inductor_configs"] = configs
    return annotate({"compile_with_inductor": value})


def chain(pattern: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a chain of matrix products, one for each letter: T stands in the default region, u outside."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for letter in pattern:
            if letter == "T":
                with annotate({"compile_with_inductor": 0}):
                    x = x @ w
            else:
                x = (x @ w).tanh()
        return x

    return program
