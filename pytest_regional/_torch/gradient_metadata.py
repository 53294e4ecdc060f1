"""What AOTAutograd notes about the ops of a backward: which forward op each is a gradient of."""

from __future__ import annotations

from typing import Any

from pytest_regional._torch.annotations import ANNOTATION
from pytest_regional._torch.pass_values import is_backward_node, is_gradient_sum


def autograd_number(node: Any) -> int | None:
    """``meta["seq_nr"]``: which autograd node was the newest when an op was traced, or runs while a gradient is.

    An op that makes one autograd node bears the number of its gradients. Checked on torch 2.11, 2.13 and 2.15.
    """
    number = node.meta.get("seq_nr")
    return number if isinstance(number, int) else None


def stack_of(node: Any) -> str | None:
    """``meta["stack_trace"]``: the user's lines; a gradient has those of its forward op (2.11 to 2.15)."""
    return node.meta.get("stack_trace") or None


def has_lost_its_forward_op(node: Any) -> bool:
    """Return whether ``node`` is a gradient for which AOTAutograd found no forward op to copy metadata from.

    ``copy_fwd_metadata_to_bw_nodes`` writes ``meta["fwd_nn_module_stack"]`` wherever it finds one, and passes over sums
    of gradients (2.11 to 2.15).
    """
    if not is_backward_node(node) or is_gradient_sum(node):
        return False
    return "fwd_nn_module_stack" not in node.meta and autograd_number(node) is not None


def annotate_like(node: Any, forward: Any) -> None:
    """Give ``node`` the region annotation of ``forward``, as AOTAutograd would; other annotations stay as they are."""
    node.meta["custom"] = {**node.meta.get("custom", {}), ANNOTATION: forward.meta["custom"][ANNOTATION]}


#: Ours, next to PyTorch's: partitioners copy ``meta`` into the backward (2.11 to 2.15).
_OF_OUTER_VALUE = "regional_gradient_of_outer_value"


def mark_gradient_of_outer_value(gradient_sum: Any) -> None:
    """Note that a sum of gradients is the gradient of a value that an op outside of the region made."""
    gradient_sum.meta[_OF_OUTER_VALUE] = True


def is_gradient_of_outer_value(gradient_sum: Any) -> bool:
    """Return whether :func:`mark_gradient_of_outer_value` was called for the sum."""
    return bool(gradient_sum.meta.get(_OF_OUTER_VALUE, False))
