"""One program in mode ``aten``: its ATen graph, handed to the backend's graph pass, and run beside the graph itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from pytest_regional._torch.config import INDUCTOR, config_values
from pytest_regional.fuzz.aten_graphs import AtenGraph, aten_graph_of, call, unannotated
from pytest_regional.fuzz.graph_capture import NotCapturedError
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles.example_run import ExampleRun, ExpectedResults, Run
from pytest_regional.fuzz.oracles.oracle import NoClaim
from pytest_regional.fuzz.oracles.watching import watching
from pytest_regional.harness.parity.compare import ParityReport, compare
from pytest_regional.harness.parity.execution import Execution
from pytest_regional.harness.record import GeneratedCode


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
        graph = self._graph(unannotated)
        eager = self.execute(graph.module, graph.inputs)
        if eager.exception is not None:
            raise NoClaim(f"the graph itself fails: {type(eager.exception).__name__}: {eager.exception}")
        found = ExpectedResults(graph.inputs, eager, None)
        return found, found

    def start_over(self) -> None:
        """Forget what was compiled before: regions that are alike are shared within a program only."""
        if self.regional._spec.forget is not None:
            self.regional._spec.forget()

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
        graph = self._graph(aten_graph_of)
        names = sorted({name for region in program.regions for name, _ in region.configs})
        before = config_values(INDUCTOR) if names else {}
        with watching(self.regional, checks_boundary=checks_boundary, settings=names, interpreted=True) as watched:
            execution = self._executed(graph)
        after = config_values(INDUCTOR) if names else {}
        return Run((execution,), watched, (), (), GeneratedCode(), before, after)

    def _executed(self, graph: AtenGraph) -> Execution:
        try:
            compiled = self.regional._compile_aten_graph(graph.module, graph.values)
        except Exception as error:  # noqa: BLE001 - whatever the backend raises is a result to be judged
            return Execution(exception=error)
        return self.execute(lambda *given: call(compiled, given), self.expected[0].inputs)

    def _graph(self, make: Callable[[Program], AtenGraph]) -> AtenGraph:
        try:
            return make(self.program)
        except NotCapturedError as why:
            raise NoClaim(f"it has no ATen graph here: {why}") from why

    def report(self, call: int, run: Run | None = None) -> ParityReport:
        """Return in which bits the call differs."""
        return compare(self.expected[0].eager, (run or self.cold).executions[call], level="bitwise")


__all__ = ["AtenRun"]
