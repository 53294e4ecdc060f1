"""Precisions that a backend computes in although the program's own is finer: bfloat16 on a CPU, tf32 on a GPU.

Such a backend is as exact as its precision allows, and no tolerance earned in the program's precision would let it
pass. What its precision costs this program is measured: eager runs once more with the operands of each operator
rounded to it, and :mod:`~pytest_regional.harness.tolerance` takes the error of that run for eager's where it is larger.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_regional._torch import pytree
from pytest_regional._torch.pass_values import written_arguments


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


class _RoundsOperands(TorchDispatchMode):  # type: ignore[misc]
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
            return func(*args, **named)
        written = [leaf for leaf in pytree.flatten(written_arguments(func, args, named))[0] if _is_tensor(leaf)]
        keep = {id(tensor) for tensor in written}
        rounded_args, rounded_named = pytree.map_leaves(lambda leaf: self._rounded(leaf, keep), (args, named))
        result = func(*rounded_args, **rounded_named)
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


__all__ = ["PRECISIONS", "Precision", "precision_of", "rounding_to"]
