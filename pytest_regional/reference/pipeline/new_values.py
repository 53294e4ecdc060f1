"""``meta["val"]`` of nodes that a pass added: who runs later (partitioners, compilers) wants it of every node."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch.fx
from torch.fx.node import map_arg

from pytest_regional._errors import RegionalError
from pytest_regional._torch.operators import returns_nothing
from pytest_regional._torch.pytree import flatten, map_leaves
from pytest_regional._torch.tracing import as_fake, fake_execution, fake_mode_of, unbacked_bindings


class NodeWithoutValueError(RegionalError, RuntimeError):
    """An op that fails on the values of its arguments; the cause is chained.

    Attributes:
        node: the node that calls it.
    """

    def __init__(self, node: torch.fx.Node, cause: Exception) -> None:
        self.node = node
        super().__init__(
            f"node {node.name!r} calls {node.target} on {node.args}, which fails on their values: "
            f"{type(cause).__name__}: {cause}"
        )


def names_without_value(gm: torch.fx.GraphModule) -> frozenset[str]:
    """Return the names of the nodes of ``gm`` that tracing left no value of."""
    return frozenset(node.name for node in gm.graph.nodes if "val" not in node.meta)


def fill_values(gm: torch.fx.GraphModule, left_out: Collection[str] = ()) -> None:
    """Give nodes that call a function, and have no value, what it returns for the values of their arguments.

    The ops run in the fake mode of the graph's values. Left alone are nodes whose names are ``left_out``, those with
    an argument that has no value, graphs that no fake mode belongs to, and bodies of higher-order ops.

    Raises:
        NodeWithoutValueError: an op fails.
    """
    new = [node for node in gm.graph.nodes if _lacks_value(node) and node.name not in left_out]
    fake_mode = fake_mode_of(_values(gm)) if new else None
    if fake_mode is not None:
        with fake_execution(fake_mode):
            for node in new:
                _fill(node, fake_mode)


def _lacks_value(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and "val" not in node.meta and not returns_nothing(node.target)


def _values(gm: torch.fx.GraphModule) -> Iterator[Any]:
    return (leaf for node in gm.graph.nodes for leaf in flatten(node.meta.get("val"))[0])


def _fill(node: torch.fx.Node, fake_mode: Any) -> None:
    values = {one: _value(one, fake_mode) for one in node.all_input_nodes}
    if any(value is None for value in values.values()):
        return
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    try:
        result = node.target(*args, **kwargs)
    except Exception as error:
        raise NodeWithoutValueError(node, error) from error
    if result is not None:
        node.meta["val"] = result
        bindings = unbacked_bindings(fake_mode, result)
        if bindings:
            node.meta["unbacked_bindings"] = bindings


def _value(node: torch.fx.Node, fake_mode: Any) -> Any:
    """Return what stands for ``node`` in a call; a tensor on its own, so that ``t_`` and its kind change no other."""
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = operator.attrgetter(str(node.target))(_owner(node))
    if isinstance(value, torch.nn.Module):
        return value
    return map_leaves(lambda one: as_fake(one, fake_mode).detach() if isinstance(one, torch.Tensor) else one, value)


def _owner(node: torch.fx.Node) -> torch.nn.Module:
    owner = node.graph.owning_module
    return torch.nn.Module() if owner is None else owner
