"""A pre-grad pass for Inductor that puts ``silu(x)`` in the place of ``x * sigmoid(x)``."""

from .fusion import FuseSiLU

__all__ = ["FuseSiLU"]
