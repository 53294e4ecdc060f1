"""Functional collectives as they stand in ATen graphs."""

from __future__ import annotations

from typing import Any

NAMESPACE = "_c10d_functional"
"""Namespace of the functional collectives that AOTAutograd leaves in a graph (2.11 to 2.15)."""


def group_name(group: Any) -> str:
    """Return the name of a collective's process group: it is given by name, or as a ``ProcessGroup`` (2.11 to 2.15)."""
    return str(getattr(group, "group_name", group))
