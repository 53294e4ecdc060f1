"""Make an eager program compute in float64 throughout, also where it names a lower precision itself.

Widening the inputs alone is not enough: ``x.float()`` inside an RMSNorm would narrow the values in the middle, the
float64 run would carry the same rounding as the eager one, and the tolerance earned from their distance would be too
tight. Under :func:`float64_everywhere` such casts go to float64. Autocast needs no care: it leaves float64 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_regional.harness.parity_state import LOW_PRECISION_TO_ANCHOR

_CASTS = {
    torch.Tensor.float: torch.Tensor.double,
    torch.Tensor.half: torch.Tensor.double,
    torch.Tensor.bfloat16: torch.Tensor.double,
    torch.Tensor.cfloat: torch.Tensor.cdouble,
}


class _WideCasts(TorchFunctionMode):  # type: ignore[misc]
    """Replaces every low-precision dtype among a torch function's arguments by float64 or complex128."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        wide_args = [_wide(argument) for argument in args]
        return _CASTS.get(func, func)(*wide_args, **{name: _wide(value) for name, value in (kwargs or {}).items()})


def _wide(argument: Any) -> Any:
    return LOW_PRECISION_TO_ANCHOR.get(argument, argument) if isinstance(argument, torch.dtype) else argument


@contextmanager
def float64_everywhere() -> Iterator[None]:
    """Run the body with float64 as default dtype and with every cast to a lower precision going to float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _WideCasts():
            yield
    finally:
        torch.set_default_dtype(default)
