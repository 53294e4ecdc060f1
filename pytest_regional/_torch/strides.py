"""Strides, exact ones and symbolic ones, in an FX graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_regional._torch import symbol
from pytest_regional._torch.region_compile import is_symbolic


def copy_to_strides() -> Any:
    """``torch.ops.prims.copy_strided``: copies a tensor into new memory of given strides (2.11, 2.13, 2.15)."""
    return symbol("torch.ops", "prims").copy_strided.default


def equal_for_sure(one: Any, other: Any) -> bool:
    """Return whether two sizes are equal whatever their symbols are; no guard is added.

    ``torch.fx.experimental.symbolic_shapes.statically_known_true`` (2.11 to 2.15).
    """
    return bool(symbol("torch.fx.experimental.symbolic_shapes", "statically_known_true")(one == other))


def node_for_number(graph: Any, value: Any, symbols: Mapping[str, Any]) -> Any:
    """Write the computation of ``value`` into ``graph``, at its insertion point; a plain number is returned as it is.

    ``torch.utils._sympy.interp.sympy_interp`` with ``PythonReferenceAnalysis`` (2.11 to 2.15), as PyTorch writes its
    own run-time assertions.

    Args:
        graph: An FX graph.
        value: A number, maybe symbolic.
        symbols: The nodes that bear symbols, by name.

    Raises:
        KeyError: ``value`` holds a symbol that is not among ``symbols``.
    """
    if not is_symbolic(value):
        return value
    tracer = symbol("torch.fx.proxy", "GraphAppendingTracer")(graph)
    proxies = {
        one: symbol("torch.fx", "Proxy")(symbols[str(one)], tracer=tracer) for one in value.node.expr.free_symbols
    }
    analysis = symbol("torch.utils._sympy.reference", "PythonReferenceAnalysis")
    result = symbol("torch.utils._sympy.interp", "sympy_interp")(analysis, proxies, value.node.expr)
    return getattr(result, "node", result)
