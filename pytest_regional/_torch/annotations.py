"""Node metadata and ``torch.fx.traceback`` (public names with private behaviour)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from pytest_regional._torch import symbol

ANNOTATION = "compile_with_inductor"
REGION_ID = "inductor_region"
REGION_CONFIGS = "inductor_configs"
REGION_AFTER = "inductor_after"


def region_mark(node: Any) -> tuple[bool, Any]:
    """Return whether ``node.meta["custom"]`` asks for Inductor, and the value it asks with.

    The layout is written by ``torch.fx.traceback.annotate`` and read by PyTorch's regional_inductor. Checked on torch
    2.11, 2.13 and 2.15. Placeholders may carry the annotation of their first user, so they never count.
    """
    if node.op in ("placeholder", "output"):
        return False, None
    custom = node.meta.get("custom")
    if not isinstance(custom, dict) or ANNOTATION not in custom:
        return False, None
    return True, custom[ANNOTATION]


def preserve_node_meta(enable: bool = True) -> AbstractContextManager[None]:
    """``torch.fx.traceback.preserve_node_meta``: whether new nodes inherit the current metadata (2.11 to 2.15)."""
    manager: AbstractContextManager[None] = symbol("torch.fx.traceback", "preserve_node_meta")(enable)
    return manager
