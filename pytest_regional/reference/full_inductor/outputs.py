"""Outputs of a graph that are different tensors stay different tensors, as AOTAutograd was told when it traced them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.fx

from pytest_regional._torch.full_inductor import fake_execution, snapshot
from pytest_regional._torch.region_compile import detect_fake_mode, storage_key


def with_outputs_apart(
    gm: torch.fx.GraphModule, change: Callable[[torch.fx.GraphModule], torch.fx.GraphModule]
) -> torch.fx.GraphModule:
    """Return ``change(gm)``, where outputs share memory with each other, or with inputs, only if they did before.

    Inductor's passes make one of ``y`` and ``y * 1``. Where both are saved for a backward that may overwrite what it
    is given, that would spoil the other, or an input of the user's.
    """
    # A node's own value is no witness afterwards: Inductor gives a node the metadata of what it replaces.
    storages = {node: _storage(node) for node in gm.graph.nodes}
    before = [_storage(output) for output in _outputs(gm)]
    gm = change(gm)
    owners = {storage: storage for storage in storages.values()}
    output = gm.graph.output_node()
    apart = []
    for result, key in zip(_outputs(gm), before, strict=True):
        now = storages.get(result, _storage(result)) if isinstance(result, torch.fx.Node) else None
        is_merged = now is not None and owners.setdefault(now, key) != key
        apart.append(_clone(gm.graph, result) if is_merged else result)
    output.args = (tuple(apart),)
    return gm


def _outputs(gm: torch.fx.GraphModule) -> Sequence[torch.fx.node.Argument]:
    outputs = gm.graph.output_node().args[0]
    assert isinstance(outputs, (tuple, list))
    return outputs


def _storage(value: torch.fx.node.Argument) -> int | None:
    return storage_key(value.meta.get("val")) if isinstance(value, torch.fx.Node) else None


def _clone(graph: torch.fx.Graph, value: torch.fx.node.Argument) -> torch.fx.Node:
    assert isinstance(value, torch.fx.Node)
    with graph.inserting_before(graph.output_node()):
        clone = graph.call_function(torch.ops.aten.clone.default, (value,))
    with fake_execution(detect_fake_mode([value.meta["val"]])):
        clone.meta["val"] = snapshot(torch.ops.aten.clone.default(value.meta["val"]))
    return clone
