"""Passes and graphs for tests of the pipeline."""

from __future__ import annotations

import types

import torch
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


def declared(name, **declarations):
    """Return a pass that does nothing, with these declarations."""

    class Declared:
        def __call__(self, gm, example_inputs):
            return None

    made = Declared()
    made.__dict__.update(name=name, **declarations)
    return made


def note(name, seen=None):
    """Return a plain function called ``name`` that notes its name in ``seen``."""

    def function(gm, example_inputs):
        if seen is not None:
            seen.append(name)

    return types.FunctionType(function.__code__, function.__globals__, name, None, function.__closure__)


def relu_for_clamp(gm, example_inputs):
    """Put relu in the place of clamp_min."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.clamp_min.default):
        node.target, node.args = aten.relu.default, node.args[:1]


def block(x, w):
    return (x @ w).clamp_min(0) @ w


def traced(function=block, *inputs):
    """Trace ``function`` to ATen, on fake tensors."""
    return make_fx(function, tracing_mode="fake")(*(inputs or (torch.randn(4, 8), torch.randn(8, 8))))
