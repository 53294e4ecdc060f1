"""Operators that generated code calls instead of a kernel of its own: they run on the CPU, and memory is watched."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pytest_regional._torch.region_compile import is_higher_order_op, new_fake_mode, without_dispatch_modes
from pytest_regional.emulation.memory import Memory
from pytest_regional.emulation.pretence import Pretence
from pytest_regional.emulation.retarget import CUDA

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


class OperatorsOnCpu(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Active while generated code runs: operators meant for the GPU run on the CPU, where the tensors are.

    Args:
        memory: told what operators write, and asked about what they read.
        pretence: of the GPU whose layouts convolutions promised.
    """

    supports_higher_order_operators = True

    def __init__(self, memory: Memory, pretence: Pretence) -> None:
        super().__init__()
        self._memory = memory
        self._pretence = pretence

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run ``func`` on the CPU."""
        args, kwargs = tree_map(_on_cpu, (args, dict(kwargs or {})))
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
        with self._pretence.held():
            strides = _gpu_strides(func, _described(args), _described(tuple(kwargs.items())))
        leaves = iter(strides)
        return tree_map(lambda leaf: _restrided(leaf, next(leaves)), result)


def _on_cpu(value: Any) -> Any:
    return CPU if isinstance(value, torch.device) and value.type == "cuda" else value


def _accesses(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the tensors that a call of ``func`` writes and those whose values it reads."""
    written: list[Any] = []
    read: list[Any] = []
    for argument, is_written, is_read in _arguments(func):
        value = args[argument] if isinstance(argument, int) and argument < len(args) else kwargs.get(str(argument))
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)] if value is not None else []
        written += tensors if is_written else []
        read += tensors if is_read else []
    return written, read


@functools.cache
def _arguments(func: Any) -> tuple[tuple[int | str, bool, bool], ...]:
    """Return positions and names of the arguments of ``func`` with whether it writes and whether it reads them."""
    found: list[tuple[int | str, bool, bool]] = []
    # Neither do views read values, nor does ``set_``, with which this package itself makes tensors.
    views = func.is_view or func._schema.name == "aten::set_"
    write_only = func._schema.name.rpartition("::")[2] in _WRITE_ONLY
    for position, argument in enumerate(func._schema.arguments):
        written = not views and argument.alias_info is not None and argument.alias_info.is_write
        read = not views and not (written and (argument.is_out or write_only))
        found += [(position, written, read), (argument.name, written, read)]
    return tuple(found)


def _described(value: Any) -> Any:
    """Return arguments in a form that can be hashed: tensors by dtype, shape and strides."""
    if isinstance(value, torch.Tensor):
        return _Description(value.dtype, tuple(value.shape), tuple(value.stride()))
    return tuple(map(_described, value)) if isinstance(value, (tuple, list)) else value


class _Description(tuple[Any, Any, Any]):
    """Dtype, shape and strides of a tensor."""

    def __new__(cls, *parts: Any) -> _Description:
        return super().__new__(cls, parts)


@functools.lru_cache(maxsize=1024)
def _gpu_strides(func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, ...]:
    with without_dispatch_modes(), new_fake_mode():
        result = func(*_fake(args), **dict(_fake(kwargs)))
    return tuple(leaf.stride() if isinstance(leaf, torch.Tensor) else None for leaf in tree_leaves(result))


def _fake(value: Any) -> Any:
    if isinstance(value, _Description):
        dtype, shape, strides = value
        return torch.empty_strided(shape, strides, dtype=dtype, device=CUDA)
    return [_fake(item) for item in value] if isinstance(value, tuple) else value


def _restrided(leaf: Any, strides: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.stride() == strides:
        return leaf
    return torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype).copy_(leaf)
