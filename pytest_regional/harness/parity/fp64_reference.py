"""Make an eager program compute in float64 throughout, also where it names a lower precision itself.

Widening the inputs alone is not enough: ``x.float()`` inside an RMSNorm would narrow the values in the middle, the
float64 run would carry the same rounding as the eager one, and the tolerance earned from their distance would be too
tight. Under :func:`float64_everywhere` such casts go to float64, those that a backward makes or recomputes as well.
Autocast needs no care: it leaves float64 alone.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pytest_regional._torch import fx_graphs
from pytest_regional._torch.aot_autograd import backwards_inside
from pytest_regional._torch.operators import written_arguments
from pytest_regional._torch.tracing import dispatch_mode, with_memory
from pytest_regional.harness.parity.state import LOW_PRECISION_TO_FP64

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
    its argument: so the dtype that each value has in the program's own precision is kept with it, and where that
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
    return LOW_PRECISION_TO_FP64.get(argument, argument) if isinstance(argument, torch.dtype) else argument


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


@dataclass(frozen=True)
class Precision:
    """One precision.

    Attributes:
        name: as of ``BackendSpec.precision``.
        dtype: the dtype whose range it has, and for bfloat16, float16 and float32 its values.
        eps: the spacing of its numbers above 1.
        usual: the dtype whose defaults of ``torch.testing.assert_close`` are those of this precision.
    """

    name: str
    dtype: torch.dtype
    eps: float
    usual: torch.dtype

    def is_coarser_than(self, dtype: torch.dtype) -> bool:
        """Say whether a tensor of floating or complex ``dtype`` holds more than this precision computes."""
        return bool(dtype.is_floating_point or dtype.is_complex) and torch.finfo(dtype).eps < self.eps

    def round(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` with each number rounded to this precision, in the dtype that it had."""
        if tensor.is_complex():
            return torch.view_as_complex(self.round(torch.view_as_real(tensor.resolve_conj())))
        if self.name != "tf32":
            return tensor.to(self.dtype).to(tensor.dtype)
        bits = tensor.float().contiguous().view(torch.int32)
        # To nearest, ties to even, at the thirteenth of the 23 bits of a float32's fraction.
        rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
        return torch.where(tensor.isfinite(), rounded.view(torch.float32), tensor.float()).to(tensor.dtype)


PRECISIONS = {
    "bfloat16": Precision("bfloat16", torch.bfloat16, 2.0**-7, torch.bfloat16),
    "float16": Precision("float16", torch.float16, 2.0**-10, torch.float16),
    "tf32": Precision("tf32", torch.float32, 2.0**-10, torch.float16),
    "float32": Precision("float32", torch.float32, 2.0**-23, torch.float32),
}


def precision_of(spec: Any) -> Precision | None:
    """Return the precision that a backend's specification names for this machine, or None."""
    name = spec.computes_in()
    return None if name is None else PRECISIONS[name]


class _RoundsOperands(dispatch_mode()):  # type: ignore[misc]
    """Rounds what every operator reads, and what it writes to; one of higher order is a single operator."""

    # Without it flex_attention, in the middle of a trace of Dynamo's, ends in an error (2.13 and 2.15).
    supports_higher_order_operators = True

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self._precision = precision

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "is_view", False):
            return func(*with_memory(func, args), **named)
        written = [leaf for leaf in fx_graphs.flatten(written_arguments(func, args, named))[0] if _is_tensor(leaf)]
        keep = {id(tensor) for tensor in written}
        rounded_args, rounded_named = fx_graphs.map_leaves(lambda leaf: self._rounded(leaf, keep), (args, named))
        result = func(*with_memory(func, rounded_args), **rounded_named)
        for tensor in written:
            if self._precision.is_coarser_than(tensor.dtype):
                tensor.copy_(self._precision.round(tensor))
        return result

    def _rounded(self, leaf: Any, keep: set[int]) -> Any:
        plain = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and id(leaf) not in keep
        if not plain or not self._precision.is_coarser_than(leaf.dtype):
            return leaf
        return _like(leaf, self._precision.round(leaf))


def _like(original: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` with the strides of ``original``, which operators look at."""
    if values.stride() == original.stride() or any(stride == 0 for stride in original.stride()):
        return values
    return torch.empty_strided(original.shape, original.stride(), dtype=values.dtype, device=values.device).copy_(
        values
    )


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def rounding_to(precision: Precision) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which eager code, a backward that is run in it included, computes in ``precision``."""
    mode: contextlib.AbstractContextManager[Any] = _RoundsOperands(precision)
    return mode
