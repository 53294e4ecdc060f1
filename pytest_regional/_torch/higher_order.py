"""Higher-order operators that have no public name yet: loops, scans and maps over graphs.

Each function returns the operator itself: Dynamo must not trace the look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_regional._torch import symbol


def while_loop() -> Callable[..., Any]:
    """``torch._higher_order_ops.while_loop(condition, body, carried)`` (2.11 to 2.15)."""
    function: Callable[..., Any] = symbol("torch._higher_order_ops", "while_loop")
    return function


def scan() -> Callable[..., Any]:
    """``torch._higher_order_ops.scan(combine, initial, elements)``, along the first dimension (2.11 to 2.15)."""
    function: Callable[..., Any] = symbol("torch._higher_order_ops", "scan")
    return function


def map_over() -> Callable[..., Any]:
    """``torch._higher_order_ops.map(function, elements, *arguments)``, along the first dimension (2.11 to 2.15)."""
    function: Callable[..., Any] = symbol("torch._higher_order_ops", "map")
    return function
