"""The reference backend without its outer cache, and with a fault planted into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from pytest_regional import BackendSpec, declared
from pytest_regional._torch.dynamo import aot_autograd
from pytest_regional._torch.fx_graphs import preserve_node_meta
from pytest_regional._torch.inductor import artifact_behind
from pytest_regional.backends.adapters import OUTER_CACHE, PRE_GRAD_PASSES, without
from pytest_regional.reference import regional_inductor

Edit = Callable[[torch.fx.GraphModule], None]


_CAPABILITIES = declared(**without((*PRE_GRAD_PASSES, *OUTER_CACHE), "it is small"))


def faulty(edit: Edit | None = None, finish: Edit | None = None, **options: Any) -> BackendSpec:
    """Return a backend that lets ``edit`` change each graph before it is compiled, and ``finish`` the result."""

    def compile_graph(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        if edit is not None:
            edit(gm)
        compiled = regional_inductor(gm, *inputs, **options)
        if finish is not None:
            finish(compiled)
            compiled.recompile()
        return compiled

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        with preserve_node_meta():
            return aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)(gm, inputs)

    return BackendSpec("faulty", lambda: backend, _CAPABILITIES())


def operator_nodes(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Return the calls of operators, in order."""
    return [node for node in gm.graph.nodes if node.op == "call_function"]


def annotate_as(node: torch.fx.Node, **mark: Any) -> None:
    """Give ``node`` another annotation."""
    node.meta["custom"] = {**node.meta.get("custom", {}), "compile_with_inductor": mark}


def around_calls(change: Callable[[Any], Any]) -> Edit:
    """Return an edit that passes every output of every compiled region through ``change``."""

    def wrapped(target: Any) -> Any:
        def call(*arguments: Any) -> Any:
            return tuple(change(result) for result in target(*arguments))

        call.__wrapped__ = target
        return call

    def edit(gm: torch.fx.GraphModule) -> None:
        for node in gm.graph.nodes:
            if artifact_behind(node.target) is not None:
                node.target = wrapped(node.target)

    return edit
