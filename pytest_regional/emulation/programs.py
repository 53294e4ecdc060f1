"""What programs may do under emulation that PyTorch's front end, or Triton, refuses where there is no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pytest_regional._torch import emulated_device as places
from pytest_regional.emulation.user_kernels import user_kernels_interpreted

if TYPE_CHECKING:
    from pytest_regional.emulation.backend import Emulation

REFUSED_BY_FRONT_END = {
    "For combine_mode='pointwise', all input tensors need to be on CUDA or XPU": (
        "associative_scan(combine_mode='pointwise'): before torch 2.15 its Python front end refuses CPU tensors, which "
        "those of an emulated GPU are"
    )
}
"""What PyTorch says when it refuses a program before there is a graph, and what that means under emulation."""


@contextlib.contextmanager
def programs_on_gpu(emulation: Emulation) -> Iterator[None]:
    """Let programs train flex attention, and call kernels of their own on CPU tensors, eager and compiled."""
    replacements = {
        "has_triton": lambda original: lambda *args, **kwargs: True,
        # It costs 20 ms a compile or more, for a figure that is logged.
        "guard_timing": lambda original: lambda *args, **kwargs: 0.0,
        "flex_device": lambda original: _any_device,
        "flex_options": _options_of_gpu,
    }
    with places.replaced(places.PROGRAM_PLACES, replacements), user_kernels_interpreted(emulation):
        yield


def _any_device(query: Any, key: Any, value: Any) -> None:
    return None


def _options_of_gpu(original: Callable[..., Any]) -> Callable[..., Any]:
    # Dynamo traces this function: it must stay plain.
    def options_of_gpu(
        query: Any, key: Any, value: Any, return_lse: bool, kernel_options: Any, return_aux: Any = None
    ) -> Any:
        import torch

        options = original(query, key, value, return_lse, kernel_options, return_aux)
        if not options["OUTPUT_LOGSUMEXP"]:
            # PyTorch leaves it out on a CPU, where flex attention does not train.
            options["OUTPUT_LOGSUMEXP"] = torch.is_grad_enabled()
        return options

    return options_of_gpu
