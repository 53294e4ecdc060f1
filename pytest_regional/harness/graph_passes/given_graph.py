"""Stage ``graph``: the passes are called on a graph itself, and nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from pytest_regional._torch.annotations import preserve_node_meta
from pytest_regional._torch.graph_passes import trace_to_aten
from pytest_regional.harness.execution import execute
from pytest_regional.harness.graph_passes.errors import GraphPassError
from pytest_regional.harness.graph_passes.forms import GraphPass
from pytest_regional.harness.graph_passes.recorder import PassGraphs, Place, Recorder, require_valid
from pytest_regional.harness.graph_passes.result import PassRun
from pytest_regional.harness.graph_passes.snapshot import snapshot
from pytest_regional.harness.graph_passes.stages import GRAPH
from pytest_regional.harness.parity import ParityError, ParityReport, check_program, compare
from pytest_regional.harness.parity_noise import Noise

PLACE = Place("graph")


def run_on_graph(
    given: Any,
    passes: tuple[GraphPass, ...],
    program: Any,
    inputs: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: bool,
    seed: int,
) -> PassRun:
    """Run ``passes`` on ``program``: a graph (module), changed as the passes change it, or a function to be traced."""
    keywords = dict(kwargs or {})
    if keywords and callable(program) and not isinstance(program, torch.fx.GraphModule):
        # A traced graph takes its inputs in order; the keyword arguments are its last ones.
        program, inputs, keywords = by_position(program, tuple(keywords)), (*inputs, *keywords.values()), {}
    module = graph_module_of(program, inputs, dynamic=dynamic)
    require_valid(module, "the graph given to run_pass is invalid before any pass ran", GRAPH)
    recorder = Recorder(passes, GRAPH, lambda: PLACE)
    recorder.run(module)
    rerun = GivenGraph(passes, recorder.graphs[0], inputs, seed, keywords)
    return PassRun(recorder.graphs, given, passes, GRAPH, rerun)


def by_position(program: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """Return ``program`` as a function whose last positional arguments are its keyword arguments ``names``."""

    def call(*inputs: Any) -> Any:
        first = len(inputs) - len(names)
        return program(*inputs[:first], **dict(zip(names, inputs[first:], strict=True)))

    return call


def graph_module_of(program: Any, inputs: tuple[Any, ...], *, dynamic: bool) -> torch.fx.GraphModule:
    """Return ``program`` as a graph module: itself, the module around a graph, or what tracing makes of a function."""
    if isinstance(program, torch.fx.GraphModule):
        return program
    if isinstance(program, torch.fx.Graph):
        return program.owning_module or torch.fx.GraphModule(torch.nn.Module(), program)
    if not callable(program):
        raise TypeError(f"run_pass needs a torch.fx.Graph, a GraphModule, a function or a module, not {program!r}")
    with preserve_node_meta():
        traced: torch.fx.GraphModule = trace_to_aten(program, inputs, dynamic=dynamic)
    return traced


@dataclass(frozen=True)
class GivenGraph:
    """Asks the passes again, on the graph that they left."""

    passes: tuple[GraphPass, ...]
    graphs: PassGraphs
    inputs: tuple[Any, ...]
    seed: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def again(self, graphs: Sequence[PassGraphs]) -> Sequence[PassGraphs]:
        """Run the passes on a copy of their own result."""
        recorder = Recorder(self.passes, GRAPH, lambda: PLACE)
        recorder.run(snapshot(self.graphs.after, copy_values=True))
        return recorder.graphs

    def numerics(self, level: str, rtol: float | None, atol: float | None, backward: Any) -> ParityReport:
        """Compare the graph after the passes with the graph before, on the inputs."""
        self._require_inputs()
        before = self._execute(self.graphs.before, backward)
        check_program(before)
        anchor = self._execute(self.graphs.before, backward, anchor=True) if level == "close" else None
        after = self._execute(self.graphs.after, backward)

        noise = Noise.source_of_executions(
            before, lambda seed: self._execute(self.graphs.before, backward, rounding=seed)
        )
        how: dict[str, Any] = {"level": level, "rtol": rtol, "atol": atol, "label": "the graph after the pass"}
        report = compare(before, after, anchor, noise=noise, **how)
        if not report.ok:
            names = ", ".join(one.name for one in self.passes)
            blame = f"the pass {names} ('eager' is the graph before it, 'compiled' the graph after it)"
            raise ParityError(report, blame) from after.exception
        return report

    def _execute(self, module: torch.fx.GraphModule, backward: Any, **options: Any) -> Any:
        return execute(module, self.inputs, kwargs=self.kwargs, backward=backward, seed=self.seed, **options)

    def _require_inputs(self) -> None:
        wanted = len(self.graphs.before.graph.find_nodes(op="placeholder"))
        if wanted and not self.inputs and not self.kwargs:
            raise GraphPassError(
                f"assert_same_numerics needs inputs to run the graph on (it takes {wanted}): "
                f"run_pass(pass, graph, *inputs)"
            )
