"""One program in mode ``aten``: its ATen graph, handed to the backend's graph pass, and run beside the graph itself."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.fx
from torch.fx import GraphModule
from torch.fx.traceback import get_current_meta

from pytest_regional._torch.config import INDUCTOR, config_values
from pytest_regional._torch.fx_graphs import (
    clone_alone,
    forget_sources,
    is_graph_module,
    takes_one_list,
    trace_functional,
)
from pytest_regional._torch.inductor import is_boxed
from pytest_regional._torch.tracing import new_fake_mode
from pytest_regional.fuzz.graph_capture import NotCapturedError, needs_dynamo
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Context, Program, Region, Scope, Step
from pytest_regional.fuzz.model.source import defined
from pytest_regional.fuzz.oracles.example_run import ExampleRun, ExpectedResults, Run
from pytest_regional.fuzz.oracles.oracle import NoClaim
from pytest_regional.fuzz.oracles.watching import watching
from pytest_regional.harness.parity.compare import ParityReport, compare
from pytest_regional.harness.parity.execution import Execution, execute
from pytest_regional.harness.record import GeneratedCode

#: The key that annotations of regions have in the metadata of nodes.
_KEY = "compile_with_inductor"

#: So many traces are kept: variants of a program are checked one after the other.
_KEPT = 4


@dataclass(frozen=True, eq=False)
class AtenGraph:
    """A graph and what to call it with.

    Attributes:
        module: the graph; it computes without gradients, and writes to its inputs at its end.
        values: fake inputs, of the mode that its metadata is of.
        inputs: real inputs.
        numbered: whether statements bear their numbers in place of their annotations.
    """

    module: torch.fx.GraphModule
    values: tuple[Any, ...]
    inputs: tuple[torch.Tensor, ...]
    numbered: bool

    def annotated(self, program: Program) -> torch.fx.GraphModule:
        """Return a copy with the annotations of ``program``, which a backend may consume."""
        module = clone_alone(self.module)
        for node in module.graph.nodes if self.numbered else ():
            custom = node.meta.pop("custom", None)
            if custom and (annotation := annotation_of(program.steps[_number_of(custom)].scope)):
                node.meta["custom"] = dict(annotation)
        return module


def aten_graph_of(program: Program) -> AtenGraph:
    """Return the graph of ``program``, which all programs share that differ from it in annotations alone.

    It is traced once, without AOTAutograd, each statement under an annotation that bears its number. The graph of
    another of these programs is a copy, with the annotations of its own statements in place of the numbers.

    Raises:
        NotCapturedError: the program cannot be traced in this way; says why.
    """
    if any(step.blocks for step in program.steps):
        found = _traced_as_it_is(program)
    else:
        found = _numbered(program.arguments, tuple(map(_without_regions, program.steps)), program.outputs)
    if isinstance(found, NotCapturedError):
        raise found
    return found


@functools.lru_cache(maxsize=_KEPT)
def _numbered(
    arguments: tuple[TensorInput, ...], steps: tuple[Step, ...], outputs: tuple[int, ...]
) -> AtenGraph | NotCapturedError:
    """Return the graph of a program, each node annotated with the number of its statement."""
    numbered = (replace(step, scope=(*step.scope, Region(number))) for number, step in enumerate(steps))
    return _traced(Program(arguments, tuple(numbered), outputs, training=False), numbered=True)


@functools.lru_cache(maxsize=_KEPT)
def _traced_as_it_is(program: Program) -> AtenGraph | NotCapturedError:
    return _traced(program, numbered=False)


def _traced(program: Program, *, numbered: bool) -> AtenGraph | NotCapturedError:
    if why := needs_dynamo(program):
        return NotCapturedError(why)
    inputs = tuple(value.detach() for value in program.inputs("cpu", 1))
    mode = new_fake_mode()
    fakes = tuple(mode.from_tensor(value, static_shapes=True) for value in inputs)
    try:
        with mode, torch.no_grad():
            module = trace_functional(program.function, fakes)
    except Exception as error:  # noqa: BLE001 - a program that cannot be traced is told apart, whatever the reason
        return NotCapturedError(f"it cannot be traced: {type(error).__name__}: {error}")
    return AtenGraph(module, fakes, inputs, numbered)


def _without_regions(step: Step) -> Step:
    return replace(step, scope=tuple(context for context in step.scope if isinstance(context, Context)))


def _number_of(custom: dict[str, Any]) -> int:
    return int(custom[_KEY]["inductor_region"])


@functools.lru_cache(maxsize=1024)
def annotation_of(scope: Scope) -> dict[str, Any]:
    """Return what nodes made in ``scope`` bear as ``custom`` in their metadata."""
    with contextlib.ExitStack() as stack:
        for context in scope:
            if isinstance(context, Region) or context.kind == "tag":
                stack.enter_context(eval(context.source, defined(())))
        return dict(get_current_meta().get("custom") or {})


def call(compiled: Any, inputs: Sequence[Any]) -> Any:
    """Call what a graph pass returned."""
    one_list = takes_one_list(compiled) if is_graph_module(compiled) else is_boxed(compiled)
    return compiled(list(inputs)) if one_list else compiled(*inputs)


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


__all__ = ["AtenGraph", "AtenRun", "annotation_of", "aten_graph_of", "call"]
