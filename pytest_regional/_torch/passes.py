"""Inductor's custom graph passes."""

from __future__ import annotations

from typing import Any

from pytest_regional._torch import private_module, symbol
from pytest_regional._torch.region_compile import inductor_config


def custom_graph_pass_base() -> Any:
    """Return Inductor's ``CustomGraphPass``, the class whose ``uuid()`` enters cache keys (2.11 to 2.15)."""
    return symbol("torch._inductor.custom_graph_pass", "CustomGraphPass")


def other_custom_pass_bases() -> tuple[type, ...]:
    """Return the bases of passes that take something else than a graph, as pre-grad passes do.

    ``CustomGraphModulePass`` takes a ``GraphModule`` (2.11 to 2.15), ``CustomInferenceAwareGraphPass`` a second
    argument (2.12 and later); the latter is a ``CustomGraphPass`` all the same.
    """
    module = private_module("torch._inductor.custom_graph_pass")
    names = ("CustomGraphModulePass", "CustomInferenceAwareGraphPass")
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


def configured_pre_grad_passes() -> Any:
    """Return Inductor's ``pre_grad_custom_pass``, or ``None`` where ``use_pre_grad_passes`` is off (2.11 to 2.15)."""
    config = inductor_config()
    return config.pre_grad_custom_pass if config.use_pre_grad_passes else None


def configured_pre_grad_timing() -> object:
    """Return Inductor's ``pre_grad_pass_timing`` (2.12 and later), ``"default"`` where torch has none (2.11)."""
    return getattr(inductor_config(), "pre_grad_pass_timing", "default")


def sort_topologically(graph: Any) -> None:
    """Move nodes behind their inputs, as Inductor does after its pre-grad passes.

    ``torch._inductor.pattern_matcher.stable_topological_sort`` (2.11 to 2.15); a cycle is an ``AssertionError``.
    """
    symbol("torch._inductor.pattern_matcher", "stable_topological_sort")(graph)
