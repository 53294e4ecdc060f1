"""Graphs with functional collectives, written line by line, and the order of their nodes."""

from __future__ import annotations

import operator

import torch
import torch.distributed  # registers the functional collectives
import torch.fx

from pytest_regional._torch.tracing import new_fake_mode, propagate_fake_values

ATEN = torch.ops.aten
C10D = torch.ops._c10d_functional
WORLD = 8
BIG, SMALL = (16, 16), (2, 16)


class Builder:
    """Adds nodes of two shapes, ``BIG`` and ``SMALL`` (a shard of it), to a graph."""

    def __init__(self):
        self.graph = torch.fx.Graph()
        self.inputs = []

    def input(self, shape, name=None):
        node = self.graph.placeholder(name or f"x{len(self.inputs)}")
        self.inputs.append(shape)
        return node

    def op(self, target, *args, name=None):
        return self.graph.create_node("call_function", target, args, {}, name=name)

    def gather(self, shard, group="0", name=None):
        return self.op(C10D.all_gather_into_tensor.default, shard, WORLD, group, name=name)

    def scatter(self, whole, group="0", name=None):
        return self.op(C10D.reduce_scatter_tensor.default, whole, "sum", WORLD, group, name=name)

    def reduce(self, value, group="0", name=None):
        return self.op(C10D.all_reduce.default, value, "sum", group, name=name)

    def gather_together(self, shards, group="0", name=None):
        start = self.op(C10D.all_gather_into_tensor_coalesced.default, list(shards), WORLD, group, name=name)
        return start, [self.op(operator.getitem, start, i) for i in range(len(shards))]

    def wait(self, started, name=None):
        return self.op(C10D.wait_tensor.default, started, name=name)

    def mm(self, a, b, name=None):
        return self.op(ATEN.mm.default, a, b, name=name)

    def sin(self, a, name=None):
        return self.op(ATEN.sin.default, a, name=name)

    def add(self, a, b, name=None):
        return self.op(ATEN.add.Tensor, a, b, name=name)

    def module(self, *outputs):
        """Return the module, each node with its fake value."""
        self.graph.output(tuple(outputs))
        gm = torch.fx.GraphModule({}, self.graph)
        mode = new_fake_mode()
        propagate_fake_values(gm, [mode.from_tensor(value) for value in self.values()], mode)
        return gm

    def values(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator) for shape in self.inputs]


def names(gm):
    """Return the names of what a graph calls, in order; attributes and other inputs left out."""
    return [node.name for node in gm.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]


def node(gm, name):
    return next(one for one in gm.graph.nodes if one.name == name)


def fsdp_chain(layers=3):
    """Gather, wait, product for each layer, then a scatter whose result is only returned, and one more product."""
    b = Builder()
    x = b.input(BIG, "x")
    shards = [b.input(SMALL, f"w{i}") for i in range(layers)]
    for i, shard in enumerate(shards):
        gathered = b.wait(b.gather(shard, name=f"ag{i}"), name=f"wait{i}")
        x = b.mm(x, gathered, name=f"mm{i}")
    scattered = b.wait(b.scatter(x, name="rs"), name="wait_rs")
    last = b.mm(x, x, name="last")
    return b, b.module(scattered, last)
