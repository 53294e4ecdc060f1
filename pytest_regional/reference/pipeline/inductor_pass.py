"""A pipeline in one of Inductor's own settings, such as ``post_grad_custom_post_pass``."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch.fx

from pytest_regional._torch.inductor import custom_graph_pass_base
from pytest_regional.reference.pass_protocol import InvalidPassError, PassFailedError
from pytest_regional.reference.pipeline.pass_forms import checked_kind
from pytest_regional.reference.pipeline.pass_pipeline import PassPipeline


def as_inductor_pass(pipeline: PassPipeline, graph: str | None = None) -> Any:
    """Return a ``CustomGraphPass`` that runs ``pipeline`` and has its uuid, which is part of Inductor's keys.

    Without the pipeline's uuid the pass has none, and Inductor caches no graph that it ran on.

    Args:
        pipeline: passes that change their graph in place; none of them terminal.
        graph: the kind of graph to run as; by default ``backward`` if the graph takes tangents, ``forward`` if it takes
            AOTAutograd's primals, else ``inference``. In a setting for the joint graph, pass ``joint``.

    Raises:
        InvalidPassError: a pipeline with a terminal pass.
        PipelineError: an unknown kind of graph.
    """
    if graph is not None:
        checked_kind(graph)
    if pipeline.terminal:
        raise InvalidPassError(
            f"{pipeline!r} ends with a terminal pass, and Inductor continues with the graph: disable that pass."
        )

    class InductorPass(custom_graph_pass_base()):  # type: ignore[misc]
        """Runs a pipeline on Inductor's graph."""

        name = pipeline.name

        def __call__(self, fx_graph: torch.fx.Graph) -> None:
            _run(pipeline, fx_graph, graph or kind_of(fx_graph))

        def uuid(self) -> Hashable | None:
            uuid = pipeline.uuid()
            return None if uuid is None else (uuid, graph)

        def __reduce__(self) -> Any:
            return as_inductor_pass, (pipeline, graph)

    return InductorPass()


def kind_of(graph: torch.fx.Graph) -> str:
    """Return the kind of graph from AOTAutograd's input names; a joint graph looks like a backward one."""
    names = [str(node.target) for node in graph.find_nodes(op="placeholder")]
    if any(name.startswith("tangents_") for name in names):
        return "backward"
    return "forward" if any(name.startswith("primals_") for name in names) else "inference"


def _run(pipeline: PassPipeline, graph: torch.fx.Graph, kind: str) -> None:
    gm = graph.owning_module
    if gm is None:
        raise InvalidPassError(f"{pipeline!r} was given a graph without a GraphModule, which its passes need.")
    example_inputs = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    if pipeline.run(gm, example_inputs, kind) is not gm or gm.graph is not graph:
        raise PassFailedError(
            f"{pipeline!r}, on the {kind} graph, made another GraphModule, which Inductor would drop: its passes have "
            f"to change the graph in place.",
            pipeline.name,
            kind,
        )
