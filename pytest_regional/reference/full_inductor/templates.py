"""What one op is decomposed into: traced alone, once for all nodes that are alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.fx
from torch.fx.node import map_arg

from pytest_regional._torch.full_inductor import trace_op
from pytest_regional._torch.region_compile import is_symbolic

Template: TypeAlias = torch.fx.GraphModule


@dataclass
class Templates:
    """The graphs that ops of a table are decomposed into, by op, constants and fake values.

    Attributes:
        table: op to its decomposition.
        traced: how many traces there were.
    """

    table: Mapping[Any, Callable[..., Any]]
    fake_mode: Any
    traced: int = 0
    _known: dict[Any, Template | None] = field(default_factory=dict)

    def of(self, node: torch.fx.Node) -> Template | None:
        """Return the graph for ``node``, whose placeholders are its inputs; None where the op stays as it is."""
        values = [source.meta.get("val") for source in node.all_input_nodes]
        if node.target not in self.table or not all(map(_is_plain, values)) or _makes_new_symbols(node):
            return None
        key = (node.target, _constants(node), tuple(map(_signature, values)))
        if key not in self._known:
            self._known[key] = self._trace(node, values)
        return self._known[key]

    def _trace(self, node: torch.fx.Node, values: Sequence[Any]) -> Template | None:
        self.traced += 1
        template: Template = trace_op(_call_of(node), values, self.table, self.fake_mode)
        ops = [other.target for other in _ops(template)]
        return None if ops == [node.target] else template


def _call_of(node: torch.fx.Node) -> Callable[..., Any]:
    inputs: Any = node.all_input_nodes
    target: Any = node.target

    def call(*values: Any) -> Any:
        by_node = dict(zip(inputs, values, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), by_node.__getitem__)
        return target(*args, **kwargs)

    return call


def _ops(template: Template) -> Iterator[torch.fx.Node]:
    return (node for node in template.graph.nodes if node.op not in ("placeholder", "output"))


def _is_plain(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, bool, int, float, complex)) or is_symbolic(value)


def _makes_new_symbols(node: torch.fx.Node) -> bool:
    """Return whether sizes of the result depend on data: a second trace would give them other symbols."""
    return bool(node.meta.get("unbacked_bindings"))


def _constants(node: torch.fx.Node) -> str:
    """Return the arguments as text, inputs by their number."""
    numbers = {source: _Input(number) for number, source in enumerate(node.all_input_nodes)}
    return repr(map_arg((node.args, node.kwargs), numbers.__getitem__))


@dataclass(frozen=True)
class _Input:
    number: int


def _signature(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return type(value), str(value)
    sizes = str((tuple(value.shape), value.stride(), value.storage_offset()))
    bits = value.is_conj(), value.is_neg(), value.requires_grad
    return type(value), value.dtype, value.device, value.layout, sizes, bits
