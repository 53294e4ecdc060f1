"""Backends as other people write them around ``regional_inductor``, and what they count."""

from __future__ import annotations

import contextlib
import functools
from unittest import mock

import torch
import torch._inductor
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from pytest_regional.reference import regional_inductor


def through_pickle(gm, *example_args, **options):
    """Compile, and hand on what ``GraphPickler`` makes of the result under a fresh tracing context."""
    data = GraphPickler.dumps(regional_inductor(gm, *example_args, **options))
    with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        loaded = GraphPickler.loads(data, detect_fake_mode(example_args))
    loaded.recompile()
    return loaded


def user_backend(pickled=False, **options):
    """``aot_autograd`` with ours where PyTorch's function stood: both compilers take ``(gm, example_inputs)``."""
    function = functools.partial(through_pickle if pickled else regional_inductor, **options)

    def compile_graph(gm, example_inputs):
        return function(gm, *example_inputs)

    return aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)


def compile_for_user(fn, dynamic=None, **options):
    return torch.compile(fn, backend=user_backend(**options), fullgraph=True, dynamic=dynamic)


@contextlib.contextmanager
def counted_compiles():
    """Patch ``torch._inductor.standalone_compile`` as people do; yields one list of op names for each call."""
    calls = []
    original = torch._inductor.standalone_compile

    def counting(gm, *args, **kwargs):
        calls.append([str(node.target) for node in gm.graph.nodes if node.op == "call_function"])
        return original(gm, *args, **kwargs)

    with mock.patch("torch._inductor.standalone_compile", side_effect=counting):
        yield calls


def values_and_gradients(fn, *inputs):
    """Run ``fn`` forward and, where an input asks for it, backward, on fresh leaves."""
    leaves = [value.detach().clone().requires_grad_(value.requires_grad) for value in inputs]
    output = fn(*leaves)
    output.sum().backward()
    return output.detach(), [leaf.grad for leaf in leaves]
