"""Node metadata and ``torch.fx.traceback`` (public names with private behaviour)."""

from __future__ import annotations

import functools
import re
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


def misspelt_marks(node: Any) -> list[str]:
    """Return the annotation's keys that are most likely meant to be :data:`ANNOTATION`; the layout is as above."""
    custom = node.meta.get("custom")
    if node.op in ("placeholder", "output") or not isinstance(custom, dict):
        return []
    return [key for key in custom if isinstance(key, str) and is_misspelt(key)]


@functools.cache
def is_misspelt(key: str) -> bool:
    """Say whether ``key`` is :data:`ANNOTATION` in another case or with other separators, or two letters from it.

    Keys of others are theirs: one that holds the whole word and more (``no_compile_with_inductor``) is none of ours.
    """
    if key == ANNOTATION:
        return False
    letters, meant = (re.sub(r"[^a-z0-9]", "", name.lower()) for name in (key, ANNOTATION))
    if meant in letters:
        return len(letters) - len(meant) <= 1
    return abs(len(letters) - len(meant)) <= 2 and _edits(letters, meant) <= 2


def _edits(one: str, other: str) -> int:
    """Return the Levenshtein distance of two words."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above, row = row, [i]
        for j, another in enumerate(other, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != another)))
    return row[-1]


def preserve_node_meta(enable: bool = True) -> AbstractContextManager[None]:
    """``torch.fx.traceback.preserve_node_meta``: whether new nodes inherit the current metadata (2.11 to 2.15)."""
    manager: AbstractContextManager[None] = symbol("torch.fx.traceback", "preserve_node_meta")(enable)
    return manager
