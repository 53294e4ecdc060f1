"""Hand every region the symbols that its inputs' sizes are made of.

An input of size ``2*s0`` tells Inductor nothing about ``s0``, and PyTorch's own backend fails on it. Here such a
symbol is passed along as one more (integer) input, taken from whatever bears it in the outer graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.region_compile import free_symbols, is_symbolic, plain_symbol
from pytest_regional.reference.extract import ExtractedRegion, RegionInput


@dataclass(frozen=True)
class _Bearer:
    """A value of the outer graph that is a symbol, or whose size in one dimension is."""

    node: torch.fx.Node
    dimension: int | None
    value: Any


def pass_missing_symbols(gm: torch.fx.GraphModule, regions: Sequence[ExtractedRegion]) -> None:
    """Extend ``regions`` and their calls in ``gm`` by the symbols that no input of theirs is equal to."""
    calls = {region.call: region for region in regions}
    bearers: dict[str, _Bearer] = {}
    made: dict[str, torch.fx.Node] = {}
    for node in list(gm.graph.nodes):
        if node in calls:
            for symbol in _missing_symbols(calls[node]):
                if symbol in bearers:
                    _pass_symbol(calls[node], symbol, bearers[symbol], made)
        for symbol, bearer in _borne_by(node):
            bearers.setdefault(symbol, bearer)


def nodes_of_symbols(
    graph: torch.fx.Graph, symbols: Collection[str], bearers: Iterable[torch.fx.Node]
) -> dict[str, torch.fx.Node]:
    """Return a node for each of ``symbols`` that ``bearers`` bear; sizes are taken at the graph's insertion point."""
    found: dict[str, torch.fx.Node] = {}
    for node in bearers:
        for symbol, bearer in _borne_by(node):
            if symbol in symbols and symbol not in found:
                found[symbol] = node if bearer.dimension is None else _size_node(graph, bearer)
    return found


def _missing_symbols(region: ExtractedRegion) -> list[str]:
    values = [border.meta.get("val") for border in region.inputs]
    bound = {symbol for value in values for symbol, _, _ in _plain_sizes(value)}
    needed = {str(symbol) for value in values if value is not None for symbol in free_symbols(value)}
    return sorted(needed - bound)


def _borne_by(node: torch.fx.Node) -> Iterator[tuple[str, _Bearer]]:
    if node.op in ("placeholder", "call_function"):
        for symbol, dimension, value in _plain_sizes(node.meta.get("val")):
            yield symbol, _Bearer(node, dimension, value)


def _plain_sizes(value: Any) -> Iterator[tuple[str, int | None, Any]]:
    """Yield the symbols that ``value`` is, or has as a size, with the dimension."""
    sizes: Mapping[int | None, Any] = {}
    if is_symbolic(value):
        sizes = {None: value}
    elif isinstance(value, torch.Tensor):
        sizes = dict(enumerate(value.shape))
    for dimension, size in sizes.items():
        symbol = plain_symbol(size)
        if symbol is not None:
            yield symbol, dimension, size


def _pass_symbol(region: ExtractedRegion, symbol: str, bearer: _Bearer, made: dict[str, torch.fx.Node]) -> None:
    call = region.call
    if symbol not in made:
        with call.graph.inserting_before(call):
            made[symbol] = bearer.node if bearer.dimension is None else _size_node(call.graph, bearer)
    call.args = (*call.args, made[symbol])
    region.inputs.append(RegionInput(f"size_{symbol}", None, {"val": bearer.value}))


def _size_node(graph: torch.fx.Graph, bearer: _Bearer) -> torch.fx.Node:
    size = graph.call_function(torch.ops.aten.sym_size.int, (bearer.node, bearer.dimension))
    size.meta["val"] = bearer.value
    return size
