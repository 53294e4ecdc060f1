"""Copies of captured graphs."""

from __future__ import annotations

import copy

import torch
import torch.fx

from pytest_regional._torch.pytree import quietly
from pytest_regional.reference.extract import called_attributes


def copy_of_graph(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a module with a graph of its own, and bodies of its own for higher-order ops; tensors are shared.

    ``copy.deepcopy`` of a module would copy constants, and the example values that Dynamo leaves in its metadata.
    """
    with quietly():
        graph = copy.deepcopy(gm.graph)
    duplicate = torch.fx.GraphModule(gm, graph, type(gm).__name__)
    duplicate.meta = dict(gm.meta)
    for path, body in called_attributes(duplicate).items():
        owner, _, name = path.rpartition(".")
        setattr(duplicate.get_submodule(owner), name, copy_of_graph(body))
    return duplicate
