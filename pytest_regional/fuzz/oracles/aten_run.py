"""One program in mode ``aten``: its ATen graph, handed to the backend's graph pass, and run beside the graph itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule

from pytest_regional._torch.config import INDUCTOR, config_values
from pytest_regional._torch.fx_graphs import forget_sources
from pytest_regional.fuzz.aten_graphs import AtenGraph, aten_graph_of, call
from pytest_regional.fuzz.graph_capture import NotCapturedError
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles.example_run import ExampleRun, ExpectedResults, Run
from pytest_regional.fuzz.oracles.oracle import NoClaim
from pytest_regional.fuzz.oracles.watching import watching
from pytest_regional.harness.parity.compare import ParityReport, compare
from pytest_regional.harness.parity.execution import Execution, execute
from pytest_regional.harness.record import GeneratedCode

#: So many graph modules keep the code that tracebacks show: a campaign makes hundreds a second.
_REMEMBERED = 512


class AtenRun(ExampleRun):
    """One program whose ATen graph the backend's graph pass gets, without Dynamo and AOTAutograd.

    What it returns is compared, bit by bit, with the graph that was handed over, interpreted.
    """

    captured = False

    @cached_property
    def trains(self) -> bool:
        """Whether it is backpropagated through: the graph has no backward."""
        return False

    @cached_property
    def expected(self) -> tuple[ExpectedResults, ExpectedResults]:
        """The inputs, with what the graph makes of them before the backend has seen it.

        Raises:
            NoClaim: the program has no such graph.
        """
        graph = self._graph
        eager = _untouched(graph.module, graph.inputs, self.regional.seed)
        if eager.exception is not None:
            raise NoClaim(f"the graph itself fails: {type(eager.exception).__name__}: {eager.exception}")
        found = ExpectedResults(graph.inputs, eager, None)
        return found, found

    def start_over(self) -> None:
        """Forget what was compiled before: regions that are alike are shared within a program only."""
        if self.regional._spec.forget is not None:
            self.regional._spec.forget()
        forget_sources(_REMEMBERED)

    def run(
        self,
        program: Program,
        *,
        calls: int = 1,
        checks_boundary: bool = False,
        pass_uuid: str | None = None,
        around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda compiled: compiled,
    ) -> Run:
        """Hand the graph of ``program`` over, and call the result once."""
        gm = self._graph.annotated(program)
        names = sorted({name for region in program.regions for name, _ in region.configs})
        before = config_values(INDUCTOR) if names else {}
        with watching(self.regional, checks_boundary=checks_boundary, settings=names, interpreted=True) as watched:
            execution = self._executed(gm)
        after = config_values(INDUCTOR) if names else {}
        return Run((execution,), watched, (), (), GeneratedCode(), before, after)

    def _executed(self, gm: GraphModule) -> Execution:
        try:
            compiled = self.regional._compile_aten_graph(gm, self._graph.values)
        except Exception as error:  # noqa: BLE001 - whatever the backend raises is a result to be judged
            return Execution(exception=error)
        return self.execute(lambda *given: call(compiled, given), self._graph.inputs)

    @cached_property
    def _graph(self) -> AtenGraph:
        try:
            return aten_graph_of(self.program)
        except NotCapturedError as why:
            raise NoClaim(f"it has no ATen graph here: {why}") from why

    def report(self, call: int, run: Run | None = None) -> ParityReport:
        """Return in which bits the call differs."""
        return compare(self.expected[0].eager, (run or self.cold).executions[call], level="bitwise")


@functools.lru_cache(maxsize=4)
def _untouched(gm: GraphModule, inputs: tuple[torch.Tensor, ...], seed: int) -> Execution:
    """Return what a graph computes that no backend has seen; the variants of a program share it."""
    with torch.no_grad():
        return execute(gm, inputs, backward=False, seed=seed, state_of=call)  # its constants are no state


__all__ = ["AtenRun"]
