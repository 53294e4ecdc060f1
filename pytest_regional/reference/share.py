"""Compile identical partitions once.

Two partitions are identical if their graphs are equal up to names: ops, arguments, the metadata of every value,
symbolic shapes, and configs. The region's id is no part of it, so 32 equal blocks cost one compile each way.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.annotations import ANNOTATION
from pytest_regional._torch.region_compile import is_graph_module, is_symbolic, storage_key
from pytest_regional.reference.compile_regions import Compiled, RegionCompiler, RegionRequest
from pytest_regional.reference.extract import attribute
from pytest_regional.reference.regions import freeze


class SharedCompiler:
    """A region compiler that hands the same callable to identical partitions.

    Its memory belongs to one compile: symbols of different shape environments may bear the same name.
    """

    def __init__(self, compiler: RegionCompiler) -> None:
        self._compiler = compiler
        self._compiled: dict[Hashable, Compiled] = {}
        self.shared: list[str] = []

    def __call__(self, request: RegionRequest) -> Compiled:
        """Compile ``request``, or return what an identical one was compiled to."""
        identity = fingerprint(request)
        if identity in self._compiled:
            self.shared.append(request.name)
        else:
            self._compiled[identity] = self._compiler(request)
        return self._compiled[identity]


def fingerprint(request: RegionRequest) -> Hashable:
    """Return what makes two requests interchangeable."""
    return request.key.configs, torch.is_grad_enabled(), _graph_token(request.module)


def _graph_token(module: torch.fx.GraphModule) -> Hashable:
    numbers = {node: number for number, node in enumerate(module.graph.nodes)}
    storages: dict[int, int] = {}
    return tuple(_node_token(module, node, numbers, storages) for node in numbers)


def _node_token(
    module: torch.fx.GraphModule,
    node: torch.fx.Node,
    numbers: Mapping[torch.fx.Node, int],
    storages: dict[int, int],
) -> Hashable:
    def numbered(value: Any) -> Any:
        return torch.fx.node.map_arg(value, lambda node: _Reference(numbers[node]))

    arguments = freeze(_plain(numbered(node.args))), freeze(_plain(numbered(node.kwargs)))
    value = _value_token(node.meta.get("val"), storages)
    return node.op, _target_token(module, node), arguments, value, _other_annotations(node)


class _Reference(int):
    """The number of a node, told apart from an integer argument by its type."""


def _plain(value: Any) -> Any:
    """Turn FX's immutable containers and slices into what ``freeze`` compares by content; symbols into their text."""
    if isinstance(value, slice):
        return "slice", _plain(value.start), _plain(value.stop), _plain(value.step)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return ("symbol", str(value)) if is_symbolic(value) else value


def _target_token(module: torch.fx.GraphModule, node: torch.fx.Node) -> Hashable:
    if node.op == "call_function":
        function: Hashable = node.target
        return function
    if node.op != "get_attr":
        return ""
    value = attribute(module, str(node.target))
    return _graph_token(value) if is_graph_module(value) else id(value)


def _other_annotations(node: torch.fx.Node) -> Hashable:
    custom = node.meta.get("custom") if node.op == "call_function" else None
    return freeze({k: v for k, v in (custom or {}).items() if k != ANNOTATION})


def _value_token(value: Any, storages: dict[int, int]) -> Hashable:
    if isinstance(value, (list, tuple)):
        return tuple(_value_token(item, storages) for item in value)
    if not isinstance(value, torch.Tensor):
        return type(value).__name__, str(value)
    storage = storage_key(value)
    alias = None if storage is None else storages.setdefault(storage, len(storages))
    return (value.dtype, str(value.device), str(value.layout), value.requires_grad, alias, _geometry(value))


def _geometry(value: torch.Tensor) -> Hashable:
    if value.layout is not torch.strided:
        return tuple(map(str, value.shape))
    return (*map(str, value.shape), "strides", *map(str, value.stride()), "at", str(value.storage_offset()))
