"""Small graphs, and compilers that need no Inductor."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.fx

ATEN = torch.ops.aten


def annotate_node(node, mark):
    node.meta["custom"] = {"compile_with_inductor": mark}
    return node


def chain(word):
    """Build a chain of ``sin``: ``u`` unannotated, ``T`` in the default region, others in regions of that name."""
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for letter in word:
        value = graph.call_function(ATEN.sin.default, (value,))
        if letter != "u":
            annotate_node(value, 0 if letter == "T" else {"inductor_region": letter})
    graph.output((value,))
    return torch.fx.GraphModule({}, graph)


def diamond(lines, outputs=None):
    """Build a graph from lines of ``name letter argument...``; an op takes one argument (sin) or two (add)."""
    graph = torch.fx.Graph()
    values = {"x": graph.placeholder("x")}
    for line in lines:
        name, letter, *arguments = line.split()
        op = ATEN.sin.default if len(arguments) == 1 else ATEN.add.Tensor
        node = graph.create_node("call_function", op, tuple(values[a] for a in arguments), {}, name=name)
        values[name] = annotate_node(node, {"inductor_region": letter}) if letter != "u" else node
    used = {argument for line in lines for argument in line.split()[2:]}
    last = outputs or [name for name in values if name not in used and name != "x"]
    graph.output(tuple(values[name] for name in last))
    return torch.fx.GraphModule({}, graph)


@dataclass
class InterpretedCompiler:
    """Compiles nothing and remembers what it was asked: the region runs as FX wrote it."""

    requests: list = field(default_factory=list)

    def __call__(self, request):
        self.requests.append(request)
        return request.module

    @property
    def ops(self):
        return [
            [node.target for node in request.module.graph.nodes if node.op == "call_function"]
            for request in self.requests
        ]
