"""``regional.run_pass``: choose the stage, and run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch.fx

from pytest_regional._torch.compiled_callables import original_of
from pytest_regional.harness.call_errors import refuse_keywords
from pytest_regional.harness.graph_passes.compiled import Trial, run_in_compile
from pytest_regional.harness.graph_passes.forms import graph_passes
from pytest_regional.harness.graph_passes.given_graph import run_on_graph
from pytest_regional.harness.graph_passes.result import PassRun
from pytest_regional.harness.graph_passes.stages import GRAPH, stage_named

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional


def run_pass(
    regional: Regional,
    passes: Any,
    program: Any,
    inputs: tuple[Any, ...],
    *,
    stage: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool | None = None,
    inductor_configs: dict[str, Any] | None = None,
    backward: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> PassRun:
    """As :meth:`Regional.run_pass`."""
    refuse_keywords("run_pass", unknown)
    is_graph = isinstance(program, torch.fx.Graph | torch.fx.GraphModule)
    where = stage_named(("graph" if is_graph else "post_grad") if stage is None else stage)
    ready = graph_passes(passes, where)
    options = regional.options.override(dynamic=dynamic, fullgraph=fullgraph, inductor_configs=inductor_configs)
    if where is GRAPH:
        # A test of passes on bare graphs compiles nothing by design, and each result knows whether it is vacuous.
        regional.passes_on_graphs += 1
        how: dict[str, Any] = {"kwargs": kwargs, "dynamic": bool(options.dynamic), "seed": regional.seed}
        return run_on_graph(passes, ready, program, inputs, **how)
    if isinstance(program, torch.fx.Graph) or not callable(program):
        raise TypeError(
            f"stage {where.name!r} compiles a function or module, not {type(program).__name__}: a graph itself is for "
            f"stage 'graph'"
        )
    return run_in_compile(
        passes, ready, Trial(regional, original_of(program), inputs, options, where, kwargs or {}), backward
    )
