"""Saved activations are freed as early as behind PyTorch's ``regional_inductor``."""

import operator
import sys
import weakref

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor as pytorchs_regional_inductor
from torch.fx.traceback import annotate

from pytest_regional.reference import regional_inductor

MARK = {"compile_with_inductor": 0}


def program(x, y):
    h = torch.sin(x)
    with annotate(MARK):
        h = h @ y
    h = torch.sin(h)
    with annotate(MARK):
        h = h @ y
    return torch.sin(h)


def leaves():
    return [torch.randn(4, 4, requires_grad=True) for _ in range(2)]


class Watched:
    """A compiled graph that notes, whenever one of its ops runs, how many of its inputs are alive."""

    def __init__(self, gm):
        self._gm = gm
        self._inputs = []
        self._boxed_call = True  # of the instance: what wraps it copies its dictionary
        self.alive = []
        for node in gm.graph.nodes:
            # ``contiguous`` checks the strides of what the forward saved.
            if node.op == "call_function" and node.target not in (operator.getitem, torch.ops.aten.contiguous.default):
                node.target = self._watched(node.target)
        gm.recompile()

    def _watched(self, target):
        def call(*args, **kwargs):
            self.alive.append(sum(reference() is not None for reference in self._inputs))
            return target(*args, **kwargs)

        call.__name__ = "call"
        return call

    def __call__(self, arguments):
        self._inputs = [weakref.ref(value) for value in arguments]
        self.held_by_list_alone = sum(sys.getrefcount(arguments[i]) == 2 for i in range(len(arguments)))
        result = self._gm(arguments)
        self.left_over = list(arguments)
        return result


def backward_of_program(function):
    graphs = []

    def compile_graph(gm, example_inputs):
        graphs.append(Watched(function(gm, *example_inputs)))
        return graphs[-1]

    backend = aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)
    compiled = torch.compile(program, backend=backend, fullgraph=True)
    inputs = leaves()
    compiled(*inputs).sum().backward()
    return graphs[-1]


def test_backward_frees_activations_as_early_as_pytorchs():
    ours = backward_of_program(regional_inductor)
    torch._dynamo.reset()
    pytorchs = backward_of_program(pytorchs_regional_inductor)
    assert len(ours.alive) == len(pytorchs.alive)
    assert all(mine <= theirs for mine, theirs in zip(ours.alive, pytorchs.alive, strict=True))
    assert ours.alive[-1] < ours.alive[0]


def test_backward_gets_a_list_that_alone_holds_activations_and_empties_it():
    watched = backward_of_program(regional_inductor)
    assert watched.held_by_list_alone >= 1
    assert watched.left_over == []


def test_an_unboxed_graph_keeps_activations_longer():
    """Shows that the watch can fail: the same graph with the ordinary calling convention."""

    def unboxed(gm, *example_inputs):
        gm = regional_inductor(gm, *example_inputs)
        gm.graph.set_codegen(torch.fx.graph.CodeGen())
        gm.recompile()
        return Unboxed(gm)

    class Unboxed:
        def __init__(self, gm):
            self._gm = gm
            self.graph = gm.graph

        def recompile(self):
            self._gm.recompile()

        def __call__(self, arguments):
            return self._gm(*arguments)

    watched = backward_of_program(unboxed)
    assert watched.alive[-1] == watched.alive[0]
    assert watched.left_over != []


@pytest.mark.parametrize("word", ["annotated", "plain"])
def test_inference_empties_its_list(word):
    graphs = []

    def fn(x):
        if word == "plain":
            return x.sin().cos()
        with annotate(MARK):
            return x @ x

    def compile_graph(gm, example_inputs):
        graphs.append(Watched(regional_inductor(gm, *example_inputs)))
        return graphs[-1]

    torch.compile(fn, backend=aot_autograd(fw_compiler=compile_graph))(torch.randn(3, 3))
    assert graphs[0].left_over == []
