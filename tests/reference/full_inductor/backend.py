"""``full_inductor`` behind AOTAutograd, as a backend that the harness can judge; and graphs to look at."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter

import torch
import torch.fx
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_regional import BackendSpec, Capabilities
from pytest_regional._torch.dynamo import aot_autograd
from pytest_regional._torch.fx_graphs import preserve_node_meta
from pytest_regional.reference import FullInductor
from pytest_regional.testing import regional

EAGER_RANDOM = {"fallback_random": True}


@dataclasses.dataclass
class Backend:
    """Compiles with ``compiler`` and keeps copies of the graphs that it was given; ``change`` comes first."""

    compiler: FullInductor
    partitioner: str = "default"
    change: object = None
    seen: list = dataclasses.field(default_factory=list)

    def __call__(self, gm, inputs):
        split = {"default": default_partition, "min_cut": min_cut_rematerialization_partition}[self.partitioner]
        compilers = {"fw_compiler": self._compile, "bw_compiler": self._compile}
        with preserve_node_meta():
            return aot_autograd(**compilers, partition_fn=split, keep_inference_input_mutations=True)(gm, inputs)

    def _compile(self, gm, inputs):
        if self.change:
            self.change(gm)
        self.seen.append(gm)
        return self.compiler(gm, inputs)


@contextlib.contextmanager
def harness(partitioner="default", change=None, **settings):
    """Give the harness; ``made.backend_object`` is the backend, and random numbers are those of eager."""
    backend = Backend(FullInductor(configs={**EAGER_RANDOM, **settings}), partitioner, change)
    with regional(BackendSpec("full", lambda: backend, Capabilities())) as made:
        made.backend_object = backend
        yield made


def traced(fn, *inputs, mode="fake"):
    return make_fx(fn, tracing_mode=mode)(*inputs)


def ops(gm):
    """Count the ops of a graph by name."""
    return Counter(str(node.target) for node in gm.graph.nodes if node.op == "call_function")


def run(compiled, *inputs):
    """Call a boxed function, which has to empty its list."""
    values = list(inputs)
    result = compiled(values)
    assert values == []
    return result


def node_named(gm, name):
    return next(node for node in gm.graph.nodes if node.name == name)


def custom_op(name):
    """Return an operator of one tensor that nobody can take apart, with a backward."""

    @torch.library.custom_op(f"full_inductor_tests::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    op.register_fake(torch.empty_like)
    op.register_autograd(
        lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    return op
