"""What graph passes ask of the (fake) values that tracing left, without adding guards."""

from __future__ import annotations

from typing import Any

from . import symbol


def known_equal(first: Any, second: Any) -> bool:
    """Return whether two sizes are equal whatever their symbols are; False where that is not known.

    ``torch.fx.experimental.symbolic_shapes.statically_known_true`` adds no guard (2.11 to 2.15).
    """
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    return bool(symbol("torch.fx.experimental.symbolic_shapes", "statically_known_true")(first == second))


def is_backward_node(node: Any) -> bool:
    """Return whether AOTAutograd marked a node of a joint graph as made while gradients were computed.

    ``meta["partitioner_tag"]`` and, for sums of gradients, ``meta["is_gradient_acc"]`` (2.11 to 2.15).
    """
    return bool(node.meta.get("partitioner_tag") == "is_backward")


def is_gradient_sum(node: Any) -> bool:
    """Return whether ``node`` adds up gradients of several users, and so belongs to no single forward op."""
    return bool(node.meta.get("is_gradient_acc", False))
