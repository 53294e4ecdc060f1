"""Inductor's custom graph passes."""

from __future__ import annotations

from typing import Any

from . import symbol


def custom_graph_pass_base() -> Any:
    """Return Inductor's ``CustomGraphPass``, the class whose ``uuid()`` enters cache keys (2.11 to 2.15)."""
    return symbol("torch._inductor.custom_graph_pass", "CustomGraphPass")
