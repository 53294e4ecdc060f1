"""Programs whose compiles are measured, and a pass that is slow for some of them."""

from __future__ import annotations

import time

import torch

from pytest_regional import region


def plain(x):
    with region("first"):
        y = x.sin() @ x
    with region("second"):
        return y.relu() + 1


def equal(x):
    with region("first"):
        y = x.sin() @ x
    with region("second"):
        return y.relu() + 1


def marked(x):
    """Hold the operator for which the passes below are slow."""
    with region("first"):
        y = x.tan() @ x
    with region("second"):
        return y.relu() + 1


class SlowForTan:
    """A pass that takes a while on graphs with ``tan``, be they Dynamo's or AOTAutograd's."""

    def __call__(self, graph):
        if any("tan" in str(node.target) for node in graph.nodes):
            time.sleep(0.2)

    def uuid(self):
        return "slow for tan"


class SlowPass(SlowForTan, torch._inductor.custom_graph_pass.CustomGraphPass):
    """The same, in the form that Inductor takes."""
