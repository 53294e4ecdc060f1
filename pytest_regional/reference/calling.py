"""How the outer graph calls a compiled region.

AOTAutograd wraps what Inductor compiled into layers that replay mutations and aliases, undo the merging of equal
arguments, and switch grad mode and autocast. The outer graph runs inside the same layers, so a region of plain new
values needs none of them: from the second call on Inductor's code is called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.region_compile import (
    autograd_profiler,
    inductor_callable,
    is_fake_tensor,
    is_integer,
    random_numbers_are_functional,
    storage_key,
)
from pytest_regional.reference.effects import RANDOM, effect_classes, written_arguments
from pytest_regional.reference.extract import ExtractedRegion

Compiled = Callable[..., Sequence[Any]]


def as_graph_target(compiled: Compiled, name: str, *, plain: bool) -> Compiled:
    """Wrap ``compiled`` into a plain function, which FX can print and ``GraphPickler`` finds the artifact in.

    Args:
        compiled: What the compiler made of the region.
        name: Of the region in the graph.
        plain: What ``makes_plain_values`` says of the region; kept on the function for whoever stores it.
    """
    direct = inductor_callable(compiled) if plain else None
    call = _checked_call(compiled) if direct is None else _direct_call(compiled, direct)
    call.__name__ = call.__qualname__ = name
    call.__wrapped__ = compiled  # type: ignore[attr-defined]
    call.makes_plain_values = plain  # type: ignore[attr-defined]
    return call


def _checked_call(compiled: Compiled) -> Compiled:
    def call(*arguments: Any) -> Sequence[Any]:
        return compiled(*arguments)

    return call


def _direct_call(compiled: Compiled, direct: Callable[[list[Any]], Sequence[Any]]) -> Compiled:
    # On its first call a compiled graph checks custom operators and closes its autotuning.
    is_first = True
    is_grad_enabled, profiler = torch.is_grad_enabled, autograd_profiler()

    def call(*arguments: Any) -> Sequence[Any]:
        nonlocal is_first
        if is_first or profiler._is_profiler_enabled or is_grad_enabled():
            is_first = False
            return compiled(*arguments)
        return direct(list(arguments))

    return call


def makes_plain_values(region: ExtractedRegion) -> bool:
    """Return whether ``region`` maps distinct plain values to new ones, writes to none and has no effects."""
    inputs = [border.meta.get("val") for border in region.inputs]
    results = [node.meta.get("val") for node in region.results]
    if not all(_is_plain(value) or is_integer(value) for value in inputs) or not all(map(_is_plain, results)):
        return False
    tensors = [value for value in inputs if not is_integer(value)]
    if len({id(value) for value in tensors}) < len(tensors) or region.attributes or random_numbers_are_functional():
        return False
    borrowed, made = {storage_key(value) for value in tensors}, {storage_key(value) for value in results}
    if len(made) < len(results) or not borrowed.isdisjoint(made):
        return False
    return not any(_touches(node, borrowed) for node in region.partition.nodes)


def _touches(node: torch.fx.Node, borrowed: set[int | None]) -> bool:
    """Return whether ``node`` writes to what the region was given, or acts on the world beyond random numbers."""
    written = {storage_key(argument.meta.get("val")) for argument in written_arguments(node)}
    return bool(written & {None, *borrowed} or effect_classes(node) - {RANDOM})


def _is_plain(value: Any) -> bool:
    """Tell ordinary dense tensors that no gradient flows through."""
    return is_fake_tensor(value) and value.layout is torch.strided and not value.requires_grad
