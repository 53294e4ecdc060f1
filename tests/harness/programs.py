"""Small programs and backends for the harness's own tests.

A region that holds nothing but a matrix product is an extern call to Inductor: code is generated, no C++ is compiled,
and the test takes a fraction of a second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.traceback import annotate


def in_region(name: str, **configs: Any) -> Any:
    """Annotate as PyTorch spells it."""
    value: dict[str, Any] = {"inductor_region": name}
    if configs:
        value["inductor_configs"] = configs
    return annotate({"compile_with_inductor": value})


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One region ``product`` between eager ops."""
    with in_region("product"):
        h = x @ w
    return torch.sin(h)


def two_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Regions ``first`` and ``second`` with an eager op between."""
    with in_region("first"):
        h = x @ w
    h = torch.tanh(h)
    with in_region("second"):
        h = h @ w
    return h.cos()


def unannotated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """No region."""
    return torch.sin(x @ w)


def pair(regional: Any, n: int = 4, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs for the programs above."""
    return regional.randn(n, 8, **options), regional.randn(8, 8, **options)
