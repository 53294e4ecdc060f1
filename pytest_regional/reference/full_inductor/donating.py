"""Which inputs of a backward graph Inductor may write its results into, and what becomes of them if it runs twice."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.donation import backward_keeps_graph, compiled_fx_graph, donate_nothing, donating
from pytest_regional._torch.region_compile import storage_key


def donating_what_nobody_shares(gm: torch.fx.GraphModule) -> contextlib.AbstractContextManager[Sequence[int]]:
    """Donate no input that another one is a view of; the context is the indices of what is donated.

    AOTAutograd looks for views among the forward's inputs and outputs, and not among saved values. Without Inductor's
    passes on the joint graph, a value and its ``detach`` are both saved: overwriting one of them overwrites both.
    """
    keys = [storage_key(node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")]
    counts = Counter(keys)
    return donating(lambda index: counts[keys[index]] == 1)


def able_to_run_again(compiled: Callable[..., Any], donated: Sequence[int]) -> Callable[..., Any]:
    """Make a compiled backward leave what it was donated alone where its graph is kept.

    AOTAutograd decides when a backward first runs, and refuses to keep the graph later. A backward that is compiled
    ahead has to be right for both.
    """
    if isinstance(compiled, compiled_fx_graph()):
        compiled.__class__ = RunsAgain
        compiled.donated = tuple(donated)
        donate_nothing()  # AOTAutograd need not guard it
    return compiled


class RunsAgain(compiled_fx_graph()):  # type: ignore[misc]
    """Inductor's backward, which overwrites copies where the graph is kept. In every other way it is what it was.

    Attributes:
        donated: the indices of the inputs that the generated code may write into.
    """

    donated: tuple[int, ...]

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the backward, which empties ``inputs``."""
        if self.donated and backward_keeps_graph():
            for index in self.donated:
                inputs[index] = _copy(inputs[index])
        return super().__call__(inputs)


def _copy(value: Any) -> Any:
    """Copy a tensor with its memory, so that gaps and overlaps stay."""
    if not isinstance(value, torch.Tensor):
        return value
    memory = value.untyped_storage().clone()
    return value.new_empty(0).set_(memory, value.storage_offset(), value.size(), value.stride())
