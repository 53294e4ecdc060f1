"""Custom pre-grad passes: run once on the whole Dynamo graph, never once more for each region."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.fx

from pytest_regional._torch.region_compile import inductor_config


def run_pre_grad_passes(gm: torch.fx.GraphModule) -> None:
    """Apply the passes in Inductor's ``pre_grad_custom_pass`` to Dynamo's graph, in order and in place."""
    passes = inductor_config().pre_grad_custom_pass
    if passes is None:
        return
    for custom in passes if isinstance(passes, list | tuple) else [passes]:
        custom(gm.graph)
    gm.graph.lint()
    gm.recompile()


@contextlib.contextmanager
def pre_grad_passes_done() -> Iterator[None]:
    """Keep Inductor from running the passes again while regions of the same graph compile."""
    with inductor_config().patch(pre_grad_custom_pass=None):
        yield
