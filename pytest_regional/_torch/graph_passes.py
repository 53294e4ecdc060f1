"""What running graph passes outside a production compile needs: tracing, copies of graphs, Inductor's pass classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_regional._torch import private_module, symbol


def inference_aware_pass_base() -> Any:
    """Return ``CustomInferenceAwareGraphPass``, whose calls get ``is_inference`` (2.12 to 2.15), ``None`` on 2.11."""
    module = private_module("torch._inductor.custom_graph_pass")
    return getattr(module, "CustomInferenceAwareGraphPass", None)


def graph_module_pass_base() -> Any:
    """Return Inductor's ``CustomGraphModulePass``, which takes a ``GraphModule`` (2.11 to 2.15)."""
    return symbol("torch._inductor.custom_graph_pass", "CustomGraphModulePass")


def pattern_matcher_pass() -> Any:
    """Return ``torch._inductor.pattern_matcher.PatternMatcherPass``, which applies to a graph (2.11 to 2.15)."""
    return symbol("torch._inductor.pattern_matcher", "PatternMatcherPass")


def trace_to_aten(function: Callable[..., Any], inputs: tuple[Any, ...], *, dynamic: bool) -> Any:
    """Trace with ``torch.fx.experimental.proxy_tensor.make_fx`` on fake tensors (2.11 to 2.15).

    Nothing is functionalized or decomposed. Parameters and other captured tensors become attributes of the result.
    """
    make_fx = symbol("torch.fx.experimental.proxy_tensor", "make_fx")
    mode = "symbolic" if dynamic else "fake"
    return make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=True)(*inputs)


def codegen_of(graph: Any) -> Any:
    """Return what a ``torch.fx.Graph`` generates its code with: ``Graph._codegen`` (2.11 to 2.15)."""
    return graph._codegen


def rename_node(node: Any, name: str) -> None:
    """Give ``node`` a name whatever its graph's namespace says: ``Node._rename`` (2.11 to 2.15)."""
    if node.name != name:
        node._rename(name)


def higher_order_operator() -> Any:
    """``torch._ops.HigherOrderOperator``, the type of ``cond``, ``control_deps`` and their kind (2.11 to 2.15)."""
    return symbol("torch._ops", "HigherOrderOperator")


def operator_types() -> tuple[Any, Any]:
    """``torch._ops.OpOverload`` and ``torch._ops.OpOverloadPacket`` (2.11 to 2.15)."""
    return symbol("torch._ops", "OpOverload"), symbol("torch._ops", "OpOverloadPacket")


def load_control_deps() -> Any:
    """Import and return the operator ``control_deps``, which its module registers (2.11 to 2.15)."""
    return symbol("torch._inductor.fx_passes.control_dependencies", "control_deps")
