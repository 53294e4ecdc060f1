"""Make an eager program compute in float64 throughout, also where it names a lower precision itself.

Widening the inputs alone is not enough: ``x.float()`` inside an RMSNorm would narrow the values in the middle, the
float64 run would carry the same rounding as the eager one, and the tolerance earned from their distance would be too
tight. Under :func:`float64_everywhere` such casts go to float64, those that a backward makes or recomputes as well.
Autocast needs no care: it leaves float64 alone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pytest_regional._torch.backward_engine import backwards_inside
from pytest_regional.harness.parity_state import LOW_PRECISION_TO_ANCHOR

_CASTS = {
    torch.Tensor.float: torch.Tensor.double,
    torch.Tensor.half: torch.Tensor.double,
    torch.Tensor.bfloat16: torch.Tensor.double,
    torch.Tensor.cfloat: torch.Tensor.cdouble,
}
_NAMED = {
    torch.Tensor.float: torch.float32,
    torch.Tensor.half: torch.float16,
    torch.Tensor.bfloat16: torch.bfloat16,
    torch.Tensor.cfloat: torch.complex64,
    torch.Tensor.double: torch.float64,
    torch.Tensor.cdouble: torch.complex128,
}
_BACKWARDS = frozenset({torch.autograd.backward, torch.autograd.grad, torch.Tensor.backward})
#: What a wide tensor of unknown origin is taken to be in the program's own precision.
_USUAL = {torch.float64: torch.float32, torch.complex128: torch.complex64}


class _WideCasts(TorchFunctionMode):  # type: ignore[misc]
    """Replaces every low-precision dtype among a torch function's arguments by float64 or complex128.

    A cast that changes the dtype makes a copy, which may be written to. In float64 it changes nothing and would return
    its argument: so the dtype that each value has in the program's own precision is kept beside it, and where that
    changes, the argument is copied. An input of float64 is taken for one of float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self._own = WeakTensorKeyDictionary()
        self._off = threading.local()

    @contextmanager
    def again(self) -> Iterator[None]:
        """Be active in a backward although the mode, which handles the call of it, is off meanwhile."""
        off, self._off.now = getattr(self._off, "now", False), False
        try:
            with self if off else nullcontext():
                yield
        finally:
            self._off.now = off

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_dynamo_compiling() or func not in _BACKWARDS:
            return self._handle(func, args, kwargs)
        self._off.now = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._off.now = False

    def _handle(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        named = kwargs or {}
        wide_args = [_wide(argument) for argument in args]
        result = _CASTS.get(func, func)(*wide_args, **{name: _wide(value) for name, value in named.items()})
        if torch.compiler.is_dynamo_compiling():
            # Eager loops and conditions are traced, this function with them, but no dictionary of tensors can be.
            # Their bodies write to nothing.
            return result
        given = [value for value in [*args, *named.values()] if isinstance(value, torch.Tensor)]
        asked = self._asked(func, args, named)
        if asked is None:
            own = functools.reduce(torch.promote_types, map(self._own_dtype, given)) if given else None
        else:
            own = asked
            if result is args[0] and self._own_dtype(result) != asked:
                result = result.clone()
        self._note(result, own, given)
        return result

    def _asked(self, func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> torch.dtype | None:
        """Return the dtype that a cast asks for; None for all that is no cast."""
        if func in _NAMED:
            return _NAMED[func]
        if func not in (torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as):
            return None
        for value in [*args[1:], *named.values()]:
            if isinstance(value, torch.dtype):
                return value
            if isinstance(value, torch.Tensor):
                return self._own_dtype(value)
        return None

    def _own_dtype(self, tensor: torch.Tensor) -> torch.dtype:
        own: torch.dtype = self._own.get(tensor) or _USUAL.get(tensor.dtype, tensor.dtype)
        return own

    def _note(self, result: Any, own: torch.dtype | None, given: Sequence[torch.Tensor]) -> None:
        for value in result if isinstance(result, (tuple, list)) else (result,):
            # What is written in place keeps the dtype that it has.
            known = not isinstance(value, torch.Tensor) or any(value is one for one in given)
            if own is not None and not known and value.dtype in _USUAL:
                self._own[value] = own


def _wide(argument: Any) -> Any:
    return LOW_PRECISION_TO_ANCHOR.get(argument, argument) if isinstance(argument, torch.dtype) else argument


@contextmanager
def float64_everywhere() -> Iterator[None]:
    """Run the body with float64 as default dtype and with every cast to a lower precision going to float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        casts = _WideCasts()
        with casts, backwards_inside(casts.again):
            yield
    finally:
        torch.set_default_dtype(default)
