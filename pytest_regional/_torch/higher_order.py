"""Higher-order operators that have no public name yet: loops, scans, maps, and options of nested compile regions.

Each function returns the operator itself: Dynamo must not trace the look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pytest_regional._torch import private_module, symbol


def while_loop() -> Callable[..., Any]:
    """``torch._higher_order_ops.while_loop(condition, body, carried)`` (2.11 to 2.15)."""
    function: Callable[..., Any] = symbol("torch._higher_order_ops", "while_loop")
    return function


def scan() -> Callable[..., Any]:
    """``torch._higher_order_ops.scan(combine, initial, elements)``, along the first dimension (2.11 to 2.15)."""
    function: Callable[..., Any] = symbol("torch._higher_order_ops", "scan")
    return function


def associative_scan() -> Callable[..., Any]:
    """``torch._higher_order_ops.associative_scan(combine, elements, dim, combine_mode=...)`` (2.11 to 2.15)."""
    function: Callable[..., Any] = symbol("torch._higher_order_ops", "associative_scan")
    return function


def map_over() -> Callable[..., Any]:
    """``torch._higher_order_ops.map(function, elements, *arguments)``, along the first dimension (2.11 to 2.15)."""
    function: Callable[..., Any] = symbol("torch._higher_order_ops", "map")
    return function


def nested_region_options(**compilers: Callable[..., Any]) -> Any:
    """``torch._higher_order_ops.invoke_subgraph.NestedCompileRegionOptions`` (2.11 to 2.15).

    ``fw_compiler`` and ``bw_compiler`` take the body and its (fake) inputs.
    """
    return symbol("torch._higher_order_ops.invoke_subgraph", "NestedCompileRegionOptions")(**compilers)


def with_nested_region_options() -> AbstractContextManager[Any]:
    """Allow these options: ``torch._dynamo.config.enable_invoke_subgraph_regional_compile`` (2.11 to 2.15)."""
    config = private_module("torch._dynamo.config")
    patch: AbstractContextManager[Any] = config.patch(enable_invoke_subgraph_regional_compile=True)
    return patch


def is_user_kernel(node: Any) -> bool:
    """Say whether a node starts a Triton kernel that the user wrote.

    ``triton_kernel_wrapper_functional`` and ``triton_kernel_wrapper_mutation`` of
    ``torch._higher_order_ops.triton_kernel_wrap`` (2.11 to 2.15).
    """
    names = "triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation"
    return any(node.target is symbol("torch._higher_order_ops.triton_kernel_wrap", name) for name in names)
