"""Backpropagate through a program that ran on the caller's own inputs."""

from __future__ import annotations

from typing import Any

from pytest_regional._torch.pytree import flatten_with_path
from pytest_regional.harness.execution import cotangents_for


def backpropagate(output: Any, backward: Any, *, seed: int) -> None:
    """Backpropagate from ``output`` as ``backward`` says (see :meth:`Regional.run`); gradients land in ``.grad``.

    Raises:
        CotangentError: cotangents that do not fit the outputs.
    """
    import torch

    if backward is False or not torch.is_grad_enabled():
        return
    leaves = [leaf for _, leaf in flatten_with_path(output)[0]]
    differentiable = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if callable(backward):
        torch.autograd.backward([backward(output)])
    elif differentiable:
        torch.autograd.backward(differentiable, cotangents_for(differentiable, backward, seed))
