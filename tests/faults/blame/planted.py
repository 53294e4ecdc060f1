"""Faults planted in one layer of PyTorch each, with the wrong step: data for ``python -m tests.faults.blame``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.output_graph import OutputGraph
from torch._functorch._aot_autograd import graph_compile
from torch._inductor import config, decomposition
from torch._inductor.codegen.cpp import CppVecOverrides
from torch._inductor.fx_passes import joint_graph, post_grad
from torch._inductor.lowering import lowerings
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern
from torch.fx.passes.regional_inductor import regional_inductor

from pytest_regional import BackendSpec, region

aten = torch.ops.aten

Planted = contextlib.AbstractContextManager[Any]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: of the row.
        layers: those of a culprit that are right.
        step: part of the name of a step or a setting that is right; empty where the layer has no step.
        plant: makes the context in which the fault is there.
        program: shows it.
        shape: of its inputs, which are floats.
        inputs: how many there are.
        grad: whether they require a gradient.
        backend: the backend that compiles; ``None`` for ``inductor``.
    """

    name: str
    layers: tuple[str, ...]
    step: str
    plant: Callable[[], Planted] = field(repr=False)
    program: Callable[..., Any] = field(repr=False)
    shape: tuple[int, ...] = (8, 8)
    inputs: int = 1
    grad: bool = False
    backend: Callable[[], BackendSpec] | None = field(default=None, repr=False)


def lowered_as(operator: Any, other: Any) -> Callable[[], Planted]:
    """Lower an operator as another one is."""
    return lambda: mock.patch.dict(lowerings, {operator: lowerings[other]})


def _raises(*arguments: Any, **keywords: Any) -> Any:
    raise NotImplementedError("planted")


def decomposed_as(operator: Any, function: Callable[..., Any]) -> Callable[[], Planted]:
    """Decompose an operator into a function."""
    return lambda: mock.patch.dict(decomposition.decompositions, {operator: function})


def _exchanged(graph: torch.fx.Graph, operator: Any, other: Any) -> None:
    for node in graph.nodes:
        if node.op == "call_function" and node.target is operator:
            node.target = other


def pass_exchanges(module: Any, name: str, operator: Any, other: Any) -> Callable[[], Planted]:
    """Have a pass of PyTorch's exchange an operator, too."""

    def plant() -> Planted:
        original = getattr(module, name)

        @functools.wraps(original)
        def wrong(graph: Any, *arguments: Any, **options: Any) -> Any:
            _exchanged(getattr(graph, "graph", graph), operator, other)
            return original(graph, *arguments, **options)

        return mock.patch.object(module, name, wrong)

    return plant


def _pass_of_the_users(graph: torch.fx.Graph) -> None:
    _exchanged(graph, aten.sin.default, aten.cos.default)


@contextlib.contextmanager
def wrong_pattern() -> Iterator[None]:
    """Register a rewrite of ``sin(x) + y`` that forgets the sine."""
    patterns = post_grad.pass_patterns[1].patterns
    kept = {key: list(entries) for key, entries in patterns.items()}

    @register_graph_pattern(
        CallFunction(aten.add.Tensor, CallFunction(aten.sin.default, KeywordArg("x")), KeywordArg("y")),
        pass_dict=post_grad.pass_patterns[1],
    )
    def forget_the_sine(match: Any, x: Any, y: Any) -> None:
        match.replace_by_example(lambda x, y: x + y, [x, y])

    try:
        yield
    finally:
        patterns.clear()
        patterns.update(kept)


def vectorized_as(name: str, other: Any) -> Callable[[], Planted]:
    """Have vectorized code compute something else."""
    return lambda: mock.patch.object(CppVecOverrides, name, staticmethod(other))


def captured_wrong(operator: Any, other: Any) -> Callable[[], Planted]:
    """Have Dynamo hand over a graph in which an operator is exchanged."""

    def plant() -> Planted:
        original = OutputGraph.call_user_compiler

        def wrong(self: Any, gm: Any, *arguments: Any, **options: Any) -> Any:
            _exchanged(gm.graph, operator, other)
            gm.recompile()
            return original(self, gm, *arguments, **options)

        return mock.patch.object(OutputGraph, "call_user_compiler", wrong)

    return plant


def traced_wrong() -> Planted:
    """Have AOTAutograd exchange an operator in graphs without a backward."""
    original = graph_compile.aot_dispatch_base_graph

    def wrong(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        gm = result[0] if isinstance(result, tuple) else result
        _exchanged(gm.graph, aten.sin.default, aten.cos.default)
        gm.recompile()
        return result

    return mock.patch.object(graph_compile, "aot_dispatch_base_graph", wrong)


def around_regions(left: Callable[[Any], Any]) -> Callable[[], BackendSpec]:
    """Return a backend that compiles regions as PyTorch's does, and does something to what the graph returns."""

    def backend(gm: Any, inputs: Any) -> Any:
        with torch.fx.traceback.preserve_node_meta():
            compiled = aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)
        return lambda *arguments: left(compiled(*arguments))

    return lambda: BackendSpec("planted", lambda: backend)


def _forget(results: Any) -> Any:
    torch._dynamo.reset()
    return results


def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def in_regions(x: torch.Tensor) -> torch.Tensor:
    with region("first"):
        a = x.exp() + 1
    with region("second"):
        return a.cos() + x.sin()


def two_outputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with region("m"):
        a = x * 2
        return a, a.sin()


def _nothing() -> Planted:
    return contextlib.nullcontext()


_sin, _cos = aten.sin.default, aten.cos.default

FAULTS = (
    Fault("lowering_of_sin", ("lowering",), "aten.sin.", lowered_as(_sin, _cos), sine),
    Fault(
        "lowering_of_tanh",
        ("lowering",),
        "aten.tanh.",
        lowered_as(aten.tanh.default, aten.sigmoid.default),
        lambda x: x.tanh() * 2,
    ),
    Fault(
        "lowering_of_maximum",
        ("lowering",),
        "aten.maximum.",
        lowered_as(aten.maximum.default, aten.minimum.default),
        lambda x, y: torch.maximum(x, y).sin(),
        inputs=2,
    ),
    Fault(
        "lowering_of_amax",
        ("lowering",),
        "aten.amax.",
        lowered_as(aten.amax.default, aten.amin.default),
        lambda x: x.exp().amax(-1) + 1,
    ),
    Fault(
        "lowering_of_atan2",
        ("lowering",),
        "aten.atan2.",
        lowered_as(aten.atan2.default, aten.maximum.default),
        lambda x, y: torch.atan2(x, y) + x,
        inputs=2,
    ),
    Fault("lowering_in_backward", ("lowering",), "aten.sin.", lowered_as(_sin, _cos), lambda x: x.cos() * 2, grad=True),
    Fault(
        "lowering_in_a_region",
        ("lowering",),
        "aten.sin.",
        lowered_as(_sin, _cos),
        in_regions,
        backend=lambda: "reference",
    ),
    Fault("lowering_raises", ("lowering",), "aten.sin.", lambda: mock.patch.dict(lowerings, {_sin: _raises}), sine),
    Fault(
        "decomposition_of_silu",
        ("decomposition",),
        "aten.silu.",
        decomposed_as(aten.silu.default, lambda x: x / (1 + x.exp())),
        lambda x: F.silu(x) * 2,
    ),
    Fault(
        "decomposition_of_hardswish",
        ("decomposition",),
        "aten.hardswish.",
        decomposed_as(aten.hardswish.default, lambda x: x * (x + 3).clamp(0, 6) / 5),
        lambda x: F.hardswish(x) + 1,
    ),
    Fault(
        "decomposition_of_lerp",
        ("decomposition",),
        "aten.lerp.",
        decomposed_as(aten.lerp.Scalar, lambda a, b, w: a + w * (a - b)),
        lambda x, y: torch.lerp(x, y, 0.3) + 1,
        inputs=2,
    ),
    Fault(
        "decomposition_in_backward",
        ("decomposition",),
        "aten.tanh_backward.",
        decomposed_as(aten.tanh_backward.default, lambda g, y: g * (1 - y)),
        lambda x: x.tanh() * 2,
        grad=True,
    ),
    Fault(
        "decomposition_raises",
        ("decomposition",),
        "aten.hardswish.",
        decomposed_as(aten.hardswish.default, _raises),
        lambda x: F.hardswish(x) + 1,
    ),
    Fault(
        "joint_pass",
        ("pass",),
        "constant_fold_uniform_value",
        pass_exchanges(joint_graph, "constant_fold_uniform_value", _sin, _cos),
        sine,
    ),
    Fault(
        "post_grad_pass",
        ("pass",),
        "remove_assert_ops",
        pass_exchanges(post_grad, "remove_assert_ops", _sin, _cos),
        sine,
    ),
    Fault(
        "pass_under_another_name",
        ("pass",),
        "group_batch_fusion_passes",
        pass_exchanges(post_grad, "group_batch_fusion_passes", _sin, _cos),
        sine,
    ),
    Fault(
        "pass_raises",
        ("pass",),
        "remove_assert_ops",
        lambda: mock.patch.object(post_grad, "remove_assert_ops", _raises),
        sine,
    ),
    Fault(
        "pass_of_the_users",
        ("pass",),
        "_pass_of_the_users",
        lambda: config.patch(post_grad_custom_post_pass=_pass_of_the_users),
        sine,
    ),
    Fault(
        "pass_in_a_region",
        ("pass",),
        "remove_assert_ops",
        pass_exchanges(post_grad, "remove_assert_ops", _sin, _cos),
        in_regions,
        backend=lambda: "reference",
    ),
    Fault("rewrite", ("rewrite",), "forget_the_sine", wrong_pattern, lambda x: x.sin() + x),
    Fault(
        "rewrite_in_a_larger_program",
        ("rewrite",),
        "forget_the_sine",
        wrong_pattern,
        lambda x: F.silu(x.sin() + x).sum(-1),
    ),
    Fault("vectorized_sine", ("codegen",), "vectorized", vectorized_as("sin", CppVecOverrides.cos), sine),
    Fault(
        "vectorized_maximum",
        ("codegen",),
        "vectorized",
        vectorized_as("maximum", CppVecOverrides.minimum),
        lambda x, y: torch.maximum(x, y).sin(),
        inputs=2,
    ),
    Fault(
        "vectorized_negation",
        ("codegen",),
        "vectorized",
        vectorized_as("neg", lambda x: f"{x}.abs()"),
        lambda x: (-x).exp(),
    ),
    Fault(
        "vectorized_code_does_not_compile",
        ("codegen",),
        "vectorized",
        vectorized_as("sin", lambda x: f"{x}.no_such_sine()"),
        sine,
    ),
    Fault("dynamo", ("dynamo",), "", captured_wrong(torch.sin, torch.cos), lambda x: torch.sin(x) + 1),
    Fault(
        "dynamo_with_regions",
        ("dynamo",),
        "",
        captured_wrong(torch.sin, torch.cos),
        lambda x: torch.sin(in_regions(x)),
        backend=lambda: "reference",
    ),
    Fault("aot_autograd", ("aot_autograd",), "", traced_wrong, sine),
    Fault(
        "backend_negates",
        ("backend",),
        "",
        _nothing,
        in_regions,
        backend=around_regions(lambda left: [-one for one in left]),
    ),
    Fault(
        "backend_detaches",
        ("backend",),
        "",
        _nothing,
        two_outputs,
        grad=True,
        backend=around_regions(lambda left: (left[0].detach(), *left[1:])),
    ),
    Fault("backend_forgets", ("backend",), "", _nothing, in_regions, backend=around_regions(_forget)),
    Fault("backend_raises_at_run_time", ("backend",), "", _nothing, in_regions, backend=around_regions(_raises)),
)
"""The faults; the first wrong one of several operators of a name is any of them."""
