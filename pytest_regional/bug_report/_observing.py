"""Says what a program runs and what it is given, in the words that the index of known issues uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_regional._torch.tracing import dispatch_mode, storage_key, with_memory

#: Operators of other namespaces are a user's.
_PYTORCHS = ("aten", "prims")

#: From here on the square of a number is infinite in float32.
_LARGE = 1e19


class _Functions(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Takes down the functions of ``torch``, and the methods of tensors, that a program calls."""

    def __init__(self, names: dict[str, None]) -> None:
        super().__init__()
        self._names = names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        # What stands for a property is called __get__.
        named = func.__self__.__name__ if name == "__get__" else name
        self._names[named.strip("_") if named.startswith("__") else named] = None
        return func(*args, **(kwargs or {}))


class _Kernels(dispatch_mode()):  # type: ignore[misc]
    """Takes down the operators that run: ``aten_div_Tensor_mode``, and ``custom_scale`` for one of a user's."""

    #: PyTorch refuses operators that are given a program where a mode does not say that it takes them.
    supports_higher_order_operators = True

    def __init__(self, names: dict[str, None]) -> None:
        super().__init__()
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, *name = str(func).split(".")
        known = not name or namespace in _PYTORCHS
        self._names["_".join((namespace if known else "custom", *name))] = None
        return func(*with_memory(func, args), **(kwargs or {}))


def operators_of(call: Callable[[], Any]) -> tuple[str, ...]:
    """Return the names of the operators that ``call`` runs in eager, each once, in order of first appearance.

    Raises:
        Exception: what ``call`` raises.
    """
    names: dict[str, None] = {}
    with _Kernels(names), _Functions(names):
        call()
    return tuple(names)


def features_of(tensors: Sequence[torch.Tensor], *, dynamic: bool) -> frozenset[str]:
    """Return the features of a call, as :mod:`pytest_regional.fuzz.features` names those of a fuzzed program.

    Args:
        tensors: what it is given, and the parameters of its model.
        dynamic: whether sizes are symbols.
    """
    return frozenset(_features(tensors, dynamic))


def _features(tensors: Sequence[torch.Tensor], dynamic: bool) -> Iterator[str]:
    yield from (f"dtype:{tensor.dtype}".replace("torch.", "") for tensor in tensors)
    memories = [key for tensor in tensors if (key := storage_key(tensor)) is not None]
    if len(set(memories)) < len(memories):
        yield "input:alias"
    if dynamic:
        yield "dynamic"
    if any(tensor.requires_grad for tensor in tensors):
        yield "training"
    for tensor in tensors:
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            continue
        values = tensor.detach().double()
        if (values.abs() > _LARGE).any():
            yield "large"
        if (~values.isfinite() | (values == 0) & values.signbit()).any():
            yield "input:edges"
