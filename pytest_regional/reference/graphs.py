"""Copies of graphs: a compiler changes the graph it is given, and whoever gave it may want to compile it again."""

from __future__ import annotations

import torch.fx

from pytest_regional.reference.extract import called_attributes


def copied(gm: torch.fx.GraphModule, done: dict[int, torch.fx.GraphModule] | None = None) -> torch.fx.GraphModule:
    """Copy graph and metadata of ``gm`` and of the bodies it calls, each once; tensors and constants are shared."""
    done = {} if done is None else done
    if id(gm) in done:
        return done[id(gm)]
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta = dict(gm.graph.output_node().meta)
    new = done[id(gm)] = torch.fx.GraphModule(gm, graph, type(gm).__name__)
    new.meta = dict(gm.meta)
    for path, body in called_attributes(gm).items():
        owner, _, name = path.rpartition(".")
        setattr(new.get_submodule(owner), name, copied(body, done))
    return new
