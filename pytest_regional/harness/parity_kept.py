"""Results that a later call must leave alone: outputs and gradients of a first call, looked at again after a second.

A backend that keeps its output buffers and writes to them again (as CUDA graphs do) returns right values each time, and
spoils those it returned before. Nothing but a second look at the first results can show it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pytest_regional.harness.execution import Execution
from pytest_regional.harness.parity_captured import Captured, dense_value
from pytest_regional.harness.parity_report import Mismatch
from pytest_regional.harness.parity_state import raw_bytes, same_bytes


@dataclass(frozen=True, eq=False)
class KeptResults:
    """The live results of one call, beside the copies that were taken of them when they were returned.

    An execution gives them when it was made with ``keep=True``.
    """

    pairs: tuple[tuple[str, torch.Tensor, Captured], ...]

    @classmethod
    def of(cls, execution: Execution) -> KeptResults:
        """Return what ``execution`` returned: outputs, gradients, and its inputs as it left them."""
        captured = {**execution.inputs_after, **execution.grads}
        captured.update((path, leaf) for path, leaf in execution.outputs if isinstance(leaf, Captured))
        pairs = ((name, live, captured.get(name)) for name, live in execution.live.items())
        return cls(tuple((name, live, copy) for name, live, copy in pairs if copy is not None))

    def overwritten(self) -> dict[str, Mismatch]:
        """Return, by name, what holds other bytes now than when it was returned."""
        found = ((name, _difference(live, copy)) for name, live, copy in self.pairs)
        return {name: Mismatch(name, "overwritten", detail) for name, detail in found if detail}


def _difference(live: torch.Tensor, copy: Captured) -> str:
    """Say how ``live`` differs from its copy; empty where it does not."""
    try:
        now = dense_value(live)
    except RuntimeError as error:  # PyTorch's own CUDA graphs refuse to read what a later run has overwritten.
        return f"cannot be read any more: {str(error).strip().splitlines()[0][:300]}. {_ADVICE}"
    if same_bytes(now, copy.value):
        return ""
    if now.shape != copy.value.shape or now.dtype != copy.value.dtype:
        return f"was {copy.dtype} {list(copy.shape)} when returned, is {now.dtype} {list(now.shape)} now. {_ADVICE}"
    differs = (raw_bytes(now) != raw_bytes(copy.value)).any(dim=1)
    first = int(differs.nonzero()[0, 0])
    values = [f"{tensor.reshape(-1)[first].item()!r:.30}" for tensor in (copy.value, now)]
    index = [int(i) for i in torch.unravel_index(torch.tensor(first), now.shape)] if now.dim() else []
    return (
        f"{int(differs.sum())} of {differs.numel()} elements changed after they were returned, first at {index}: "
        f"{values[0]} then, {values[1]} after another call. {_ADVICE}"
    )


_ADVICE = (
    "The backend writes to memory that it gave to the caller; it has to return fresh memory or a copy, or to disclaim "
    "results_kept"
)

__all__ = ["KeptResults"]
