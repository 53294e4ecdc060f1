"""A backend that compiles annotated regions with XLA, and what pytest-regional is told of it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch.fx.traceback
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.split_module import split_module

from pytest_regional import BackendSpec, GraphCapabilities, report_region, supported, unsupported

jax.config.update("jax_enable_x64", True)  # without it float64 becomes float32, int64 int32
aten = torch.ops.aten

#: Operators that XLA compiles; the rest of a region stays eager. Results get the dtypes of PyTorch's trace.
TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(aten, name).default: getattr(jnp, name) for name in ["abs", "cos", "exp", "log", "sin", "sqrt", "tanh"]},
    **{getattr(aten, name).default: getattr(jax.nn, name) for name in ["relu", "sigmoid", "silu"]},
    aten.neg.default: jnp.negative,
    aten.add.Tensor: jnp.add,
    aten.sub.Tensor: jnp.subtract,
    aten.mul.Tensor: jnp.multiply,
    aten.div.Tensor: jnp.divide,
    aten.pow.Tensor_Scalar: jnp.power,
    aten.gt.Scalar: jnp.greater,
    aten.where.self: jnp.where,
    aten.t.default: jnp.transpose,
    aten.permute.default: jnp.transpose,
    aten.cat.default: jnp.concatenate,
    aten.mm.default: jnp.matmul,
    aten.bmm.default: jnp.matmul,
    aten.addmm.default: lambda bias, x, y: bias + x @ y,
    aten.sum.default: jnp.sum,
    aten.sum.dim_IntList: lambda x, dim, keep=False: jnp.sum(x, tuple(dim) or None, keepdims=keep),
    aten.mean.dim: lambda x, dim, keep=False: jnp.mean(x, tuple(dim) or None, keepdims=keep),
    aten._softmax.default: lambda x, dim, half_to_float: jax.nn.softmax(x, dim),
    aten._softmax_backward_data.default: lambda g, y, dim, dtype: y * (g - jnp.sum(g * y, dim, keepdims=True)),
    aten.gelu.default: lambda x: jax.nn.gelu(x, approximate=False),
    aten.tanh_backward.default: lambda g, y: g * (1 - y * y),
    aten.sigmoid_backward.default: lambda g, y: g * y * (1 - y),
    aten.silu_backward.default: lambda g, x: jax.vjp(jax.nn.silu, x)[1](g)[0],
    aten.threshold_backward.default: lambda g, x, threshold: jnp.where(x <= threshold, 0, g),
}


class Translated(torch.fx.Interpreter):
    """Runs a part of a region in JAX."""

    def run_node(self, node: torch.fx.Node) -> Any:
        """Return the value of a node."""
        if node.op != "call_function":
            return super().run_node(node)
        args, _ = self.fetch_args_kwargs_from_env(node)
        return TRANSLATIONS[node.target](*args).astype(str(node.meta["val"].dtype).removeprefix("torch."))


def compile_region(part: torch.fx.GraphModule) -> Callable[..., Any]:
    """Compile a part of a region; its results get the strides that PyTorch traced the rest of the graph with."""
    returned, run = part.graph.output_node().args[0], jax.jit(Translated(part).run)

    def result(node: torch.fx.Node, value: jax.Array) -> torch.Tensor:
        traced = node.meta["val"]
        return torch.empty_strided(traced.shape, traced.stride(), dtype=traced.dtype).copy_(torch.from_dlpack(value))

    def compiled(*inputs: torch.Tensor) -> Any:
        values = run(*(jax.dlpack.from_dlpack(value.detach().contiguous()) for value in inputs))
        return tuple(map(result, returned, values)) if isinstance(returned, tuple) else result(returned, values)

    return compiled


def region_of(node: torch.fx.Node) -> str | None:
    """Return the annotation, as text, of an operator that XLA compiles: in the table, and with numbers for sizes."""
    values = [value.meta.get("val") for value in (node, *node.all_input_nodes)]
    fixed = all(isinstance(v, torch.Tensor) and all(isinstance(size, int) for size in v.shape) for v in values)
    annotation = (node.meta.get("custom") or {}).get("compile_with_inductor")
    ours = annotation is not None and node.target in TRANSLATIONS and not node.kwargs and fixed
    return repr(annotation) if ours else None


def xla(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, compile_region: Any = compile_region) -> Any:
    """Compile Dynamo's graph: ``torch.compile(model, backend=xla)``."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        runs = [(region, list(run)) for region, run in itertools.groupby(nodes, region_of)]
        number_of = {node: number for number, (_, run) in enumerate(runs) for node in run}
        parts = [f"submod_{number}" for number, (region, _) in enumerate(runs) if region]
        graph = split_module(graph, graph, number_of.__getitem__, keep_original_order=True) if parts else graph
        for name in parts:
            compiled = compile_region(getattr(graph, name))
            delattr(graph, name)
            setattr(graph, name, compiled)
        return make_boxed_func(graph.forward)

    compilers = {"fw_compiler": compile_graph, "bw_compiler": compile_graph}
    with torch.fx.traceback.preserve_node_meta():  # annotations travel in it
        return aot_autograd(**compilers, partition_fn=min_cut_rematerialization_partition)(gm, example_inputs)


def compile_and_report(part: torch.fx.GraphModule) -> Callable[..., Any]:
    """Compile a part, and count it: pytest-regional sees by itself only what Inductor compiles."""
    report_region(part)
    return compile_region(part)


class XLACapabilities(
    GraphCapabilities,
    **dict.fromkeys(("regions", "region_ids", "region_counts", "interleaved_regions"), supported()),
    dynamic_shapes=unsupported("a shape is part of what XLA compiles; operators with symbolic sizes stay eager"),
    flex_attention=unsupported("flex_attention stays eager"),
):
    """What a backend of graphs claims, and regions."""


specification = BackendSpec(
    "xla",
    factory=lambda: functools.partial(xla, compile_region=compile_and_report),
    capabilities=XLACapabilities(),
    inductor=False,
    partitioner="min_cut",
)
