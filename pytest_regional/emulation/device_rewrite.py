"""Graphs of AOTAutograd's, moved from the CPU to the described GPU.

The graph is copied. Its values (``meta["val"]``) become fake CUDA tensors of the same fake mode, which share storages
as the CPU's do: Inductor's passes decide by that which buffers may be written in place. Device arguments follow, and
constants are copied to the device where they are used.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from pytest_regional._torch.fx_graphs import clone_graph, leaves_of, map_leaves
from pytest_regional._torch.operators import is_higher_order_op, is_user_kernel, schema_of
from pytest_regional._torch.tracing import (
    current_fake_mode,
    detect_fake_mode,
    dispatch_mode,
    is_fake_tensor,
    new_fake_mode,
    storage_key,
    without_dispatch_modes,
)
from pytest_regional.emulation.device_mock import DeviceMock
from pytest_regional.emulation.memory import Memory

CUDA = torch.device("cuda", 0)
_VALUES = ("val", "example_value", "eager_input_vals")
"""Where nodes keep values: the last holds arguments as they were traced, and bodies of operators are lowered for it."""

_LIFTS = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default)


def on_gpu(argument: Any) -> Any:
    """Return the described GPU for the CPU as a ``torch.device``, and anything else as it is."""
    return CUDA if isinstance(argument, torch.device) and argument.type == "cpu" else argument


_UNDEFINED = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
) | {"prims::empty_strided"}


def holds_undefined_values(gm: Any) -> bool:
    """Say whether a graph makes tensors that it does not fill: copying them, to overwrite the copy, is no fault.

    What is made for a kernel that the user wrote, and for nothing else, is to be filled by that kernel.
    """
    for node in _nodes_of(gm):
        schema = schema_of(node.target)
        if schema is not None and schema.name in _UNDEFINED and not all(map(is_user_kernel, node.users)):
            return True
    return False


def retarget(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Return a copy of ``gm`` and of its example inputs that live on the described GPU.

    To be called while that GPU is mocked: fake tensors ask for their device.
    """
    leaves = (leaf for node in _nodes_of(gm) for name in _VALUES for leaf in leaves_of(node.meta.get(name)))
    values = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    mode = detect_fake_mode(list(inputs)) or current_fake_mode() or detect_fake_mode(values) or new_fake_mode()
    move = _Move(mode, [*values, *inputs])
    moved = clone_graph(gm)
    for module in moved.modules():
        if isinstance(module, torch.fx.GraphModule):
            move.graph(module)
    return moved, [move.value(value) for value in inputs]


def _nodes_of(gm: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


class _Move:
    """The move of one graph with all that is nested in it: one fake mode, one map of storages."""

    def __init__(self, fake_mode: Any, values: Iterable[Any]) -> None:
        self._fake_mode = fake_mode
        # The map holds storages by address, which may be used anew once a value dies.
        self._alive = [value for value in values if isinstance(value, torch.Tensor)]
        seen = {id(value): storage_key(value) for value in self._alive}
        self._shared = {key for key, count in Counter(seen.values()).items() if key is not None and count > 1}
        self._bases: dict[Any, torch.Tensor] = {}
        self._moved: dict[int, torch.Tensor] = {}

    def value(self, value: Any) -> Any:
        """Return a fake CUDA tensor for each CPU tensor in ``value``; all else as it is."""
        return map_leaves(self._leaf, value)

    def _leaf(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return value
        known = self._moved.get(id(value))
        if known is None:
            mode = value.fake_mode if is_fake_tensor(value) else self._fake_mode
            with mode, torch.no_grad():
                known = self._moved[id(value)] = self._made(value)
            self._alive.append(value)
        return known

    def _made(self, value: torch.Tensor) -> torch.Tensor:
        """Return a fake CUDA tensor like ``value``, offset included: code generation asks it for alignment."""
        offset = value.storage_offset()
        if storage_key(value) not in self._shared and isinstance(offset, int) and offset == 0:
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=CUDA)
        key = storage_key(value), value.dtype
        if key not in self._bases:
            elements = value.untyped_storage().nbytes() // value.element_size()
            self._bases[key] = torch.empty(elements, dtype=value.dtype, device=CUDA)
        return self._bases[key].as_strided(value.size(), value.stride(), offset)

    def graph(self, gm: torch.fx.GraphModule) -> None:
        """Move the nodes of one graph."""
        for node in list(gm.graph.nodes):
            if node.op == "get_attr" and isinstance(getattr(gm, str(node.target), None), torch.Tensor):
                continue
            for name in _VALUES:
                if name in node.meta:
                    node.meta[name] = self.value(node.meta[name])
            node.meta.pop("tensor_meta", None)
            if node.op == "call_function":
                node.args = torch.fx.node.map_aggregate(node.args, on_gpu)
                node.kwargs = torch.fx.node.map_aggregate(node.kwargs, on_gpu)
        for node in gm.graph.find_nodes(op="get_attr"):
            self._constant(gm, node)
        gm.recompile()

    def _constant(self, gm: torch.fx.GraphModule, node: torch.fx.Node) -> None:
        """Copy a constant to the device, after the op that makes a fresh tensor of it.

        Before that op there is no fake tensor to copy; numbers (no dimensions) may stay where they are.
        """
        constant = getattr(gm, str(node.target), None)
        if not isinstance(constant, torch.Tensor) or constant.dim() == 0 or constant.device.type != "cpu":
            return
        for lifted in self._lifts_of(gm.graph, node, constant):
            with gm.graph.inserting_after(lifted):
                copied = gm.graph.call_function(torch.ops.prims.device_put.default, (lifted, CUDA))
            copied.meta["val"] = self.value(lifted.meta["val"])
            users = [user for user in lifted.users if user is not copied]
            for user in users:
                user.replace_input_with(lifted, copied)

    def _lifts_of(self, graph: torch.fx.Graph, node: torch.fx.Node, constant: torch.Tensor) -> list[torch.fx.Node]:
        lifts = [user for user in node.users if user.target in _LIFTS]
        others = [user for user in node.users if user not in lifts]
        if others:
            with graph.inserting_after(node):
                lifts.append(graph.call_function(_LIFTS[0], (node,)))
            for user in others:
                user.replace_input_with(node, lifts[-1])
        for lift in lifts:
            with self._fake_mode:
                lift.meta["val"] = torch.empty_strided(constant.size(), constant.stride(), dtype=constant.dtype)
        return lifts


CPU = torch.device("cpu")
_OTHER_LAYOUT = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)
_WRITE_ONLY = (
    "copy_",
    "fill_",
    "zero_",
    "normal_",
    "uniform_",
    "random_",
    "bernoulli_",
    "exponential_",
    "_foreach_copy_",
)


class OperatorsOnCpu(dispatch_mode()):  # type: ignore[misc]  # torch is untyped here
    """Active while generated code runs: operators meant for the GPU run on the CPU, where the tensors are.

    Args:
        memory: told what operators write, and asked about what they read.
        device_mock: of the GPU whose layouts convolutions promised.
    """

    supports_higher_order_operators = True

    def __init__(self, memory: Memory, device_mock: DeviceMock) -> None:
        super().__init__()
        self._memory = memory
        self._device_mock = device_mock

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run ``func`` on the CPU."""
        args, kwargs = map_leaves(_on_cpu, (args, dict(kwargs or {})))
        if is_higher_order_op(func):
            return func(*args, **kwargs)
        written, read = _accesses(func, args, kwargs)
        for tensor in read:
            self._memory.check_initialised(tensor, str(func))
        result = func(*args, **kwargs)
        for tensor in written:
            self._memory.mark_written(tensor)
        return self._as_promised(func, args, kwargs, result) if func in _OTHER_LAYOUT else result

    def _as_promised(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Give results the strides that the operator has on the GPU; those of a CPU kernel may differ."""
        with self._device_mock.held():
            strides = _gpu_strides(func, _described(args), _described(tuple(kwargs.items())))
        leaves = iter(strides)
        return map_leaves(lambda leaf: _restrided(leaf, next(leaves)), result)


def _on_cpu(value: Any) -> Any:
    return CPU if isinstance(value, torch.device) and value.type == "cuda" else value


def _accesses(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the tensors that a call of ``func`` writes and those whose values it reads."""
    written: list[Any] = []
    read: list[Any] = []
    for argument, is_written, is_read in _arguments(func):
        value = args[argument] if isinstance(argument, int) and argument < len(args) else kwargs.get(str(argument))
        tensors = [leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor)] if value is not None else []
        written += tensors if is_written else []
        read += tensors if is_read else []
    return written, read


@functools.cache
def _arguments(func: Any) -> tuple[tuple[int | str, bool, bool], ...]:
    """Return positions and names of the arguments of ``func`` with whether it writes and whether it reads them."""
    found: list[tuple[int | str, bool, bool]] = []
    # Neither do views read values, nor does ``set_``, with which this package itself makes tensors.
    views = func.is_view or schema_of(func).name == "aten::set_"
    write_only = schema_of(func).name.rpartition("::")[2] in _WRITE_ONLY
    for position, argument in enumerate(schema_of(func).arguments):
        written = not views and argument.alias_info is not None and argument.alias_info.is_write
        read = not views and not (written and (argument.is_out or write_only))
        found += [(position, written, read), (argument.name, written, read)]
    return tuple(found)


def _described(value: Any) -> Any:
    """Return arguments in a form that can be hashed: tensors by dtype, shape and strides."""
    if isinstance(value, torch.Tensor):
        return _Description(value.dtype, tuple(value.shape), tuple(value.stride()))
    return tuple(map(_described, value)) if isinstance(value, (tuple, list)) else value


class _Description(NamedTuple):
    """A tensor that a fake one can be made like."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _gpu_strides(func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, ...]:
    with without_dispatch_modes(), new_fake_mode():
        result = func(*_fake(args), **dict(_fake(kwargs)))
    return tuple(leaf.stride() if isinstance(leaf, torch.Tensor) else None for leaf in leaves_of(result))


def _fake(value: Any) -> Any:
    if isinstance(value, _Description):
        return torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device=CUDA)
    return [_fake(item) for item in value] if isinstance(value, tuple) else value


def _restrided(leaf: Any, strides: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.stride() == strides:
        return leaf
    return torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype).copy_(leaf)
