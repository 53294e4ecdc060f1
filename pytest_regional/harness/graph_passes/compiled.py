"""``run_pass``: stage ``graph``, where passes run on a given graph, and the stages inside a compile."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch.fx

from pytest_regional._base.text import unknown_name
from pytest_regional._torch.config import INDUCTOR, config_values
from pytest_regional._torch.dynamo import original_of
from pytest_regional._torch.fx_graphs import preserve_node_meta, trace_to_aten
from pytest_regional.harness.graph_passes.recorder import (
    GRAPH,
    STAGES,
    GraphAssertionError,
    GraphPassError,
    PassGraphs,
    PassUnderTest,
    Place,
    Recorder,
    Stage,
    graph_passes,
    inductor_pass,
    note,
    require_valid,
    snapshot,
)
from pytest_regional.harness.graph_passes.result import PassRun
from pytest_regional.harness.parity.check import ParityCheck
from pytest_regional.harness.parity.compare import ParityError, ParityReport, check_program, compare
from pytest_regional.harness.parity.execution import execute
from pytest_regional.harness.parity.tolerance import Noise

if TYPE_CHECKING:
    from pytest_regional.harness.options import CompileOptions
    from pytest_regional.harness.regional import Regional


_NUMBERS = itertools.count()


@dataclass(frozen=True)
class CompiledProgram:
    """A program that is compiled and run with passes, each time anew; ``options`` are without the passes."""

    regional: Regional
    program: Any
    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    backward: Any
    options: CompileOptions
    passes: tuple[PassUnderTest, ...]
    stage: Stage

    def recorder(self, *, twice: bool = False) -> Recorder:
        """Return a recorder that knows which graph of this harness's compile it stands in."""
        return Recorder(self.passes, self.stage, self._place, twice, self._ran)

    def compile(self, options: CompileOptions, eager_regions: frozenset[str] = frozenset()) -> Any:
        """Compile as if the program had never been compiled."""
        return self.regional._compile_with(never_compiled(self.program), options, eager_regions)

    def options_with(self, recorder: Recorder, options: CompileOptions | None = None) -> CompileOptions:
        """Return options that hold ``recorder`` in its setting."""
        options, setting = options or self.options, self.stage.setting
        configured = options.inductor_configs.get(setting, config_values(INDUCTOR)[setting])
        other = configured or (options.pre_grad_pass if setting == "pre_grad_custom_pass" else None)
        if other:
            raise GraphPassError(
                f"{setting} holds {other!r} already, and run_pass would replace it: give run_pass a list of both passes"
            )
        if setting == "pre_grad_custom_pass":
            return replace(options, pre_grad_pass=inductor_pass(recorder))
        return replace(options, inductor_configs={**options.inductor_configs, setting: inductor_pass(recorder)})

    def execute(self, recorder: Recorder) -> None:
        """Compile and run once with ``recorder`` in its setting; what a pass raised is raised as it was."""
        compiled = self.compile(self.options_with(recorder))
        how: dict[str, Any] = {"backward": self.backward, "seed": self.regional.seed, "state_of": self.program}
        run = execute(compiled, self.inputs, kwargs=self.kwargs, **how)
        for record in recorder.records:
            record.live = record.graphs.after  # the compile is over: its own graphs may go
        if recorder.failure is not None:
            raise recorder.failure
        if run.exception is not None:
            ran = ", ".join(str(one.place) for one in recorder.graphs) or "no graph yet"
            note(
                run.exception,
                f"run_pass: {recorder.names} (stage {self.stage.name!r}) had run on {ran}; see whether it fails "
                f"without the pass",
            )
            raise run.exception
        self.require_ran(recorder)

    def require_ran(self, recorder: Recorder) -> None:
        """Raise :class:`GraphAssertionError` when no graph came by."""
        if not recorder.graphs:
            raise GraphAssertionError(
                f"{recorder.names} never ran at stage {self.stage.name!r} with backend {self.regional.backend!r}: no "
                f"graph reached Inductor's {self.stage.setting}. A backend that compiles regions compiles annotated "
                f"operators alone (use pytest_regional.region(...) in the program); one that does not use Inductor "
                f"has no such stage (try stage='graph'); and "
                f"use_{self.stage.name.removesuffix('_pre').removesuffix('_post')}_passes or its kind may be off."
            )

    def _place(self) -> Place:
        frame = self.regional.observer.innermost()
        region = ", ".join(dict.fromkeys(name for name, _ in frame.regions)) if frame.kind == "region" else None
        if frame.graph is not None:
            return Place(frame.graph.kind, region)
        return Place("dynamo" if self.stage.name == "pre_grad" else "joint", region)

    def _ran(self, one: PassUnderTest, graph: torch.fx.Graph) -> None:
        # A counting pass tells the observer itself.
        if self.stage.name == "pre_grad" and not getattr(one.given, "counts_itself", False):
            self.regional.observer.pass_ran(one.name, graph=graph)

    def again(self) -> Sequence[PassGraphs]:
        """Compile with every pass run twice, where its second run has the same surroundings as the first."""
        recorder = self.recorder(twice=True)
        self.execute(recorder)
        found = ((record.graphs, record.again) for record in recorder.records)
        return [PassGraphs(*graphs.place, graphs.after, again) for graphs, again in found if again is not None]

    def numerics(self, level: str, rtol: float | None, atol: float | None, backward: Any) -> ParityReport:
        """Compare the program compiled with the passes with eager; when it differs, say whether they are to blame."""
        recorder = self.recorder()
        how: dict[str, Any] = {"level": level, "rtol": rtol, "atol": atol, "kwargs": self.kwargs}
        how["backward"] = self.backward if backward is None else backward
        report = PassParity(self.regional, self.program, self.inputs, self, recorder, **how).run()
        self.require_ran(recorder)
        self.regional._parity_reports.append(report)
        return report


@dataclass
class PassParity(ParityCheck):
    """Parity of the program compiled with passes, and the blame laid on them or taken off them."""

    tested: CompiledProgram
    recorder: Recorder
    searchable: ClassVar[bool] = False  # passes would run again

    def _compile(self, eager_regions: frozenset[str] = frozenset()) -> Any:
        options = replace(self.tested.options, fallback_random=True)
        return self.tested.compile(self.tested.options_with(self.recorder, options), eager_regions)

    def _blame(self, first: Any, second: Any) -> str:
        names = self.recorder.names
        plain = self.tested.compile(replace(self.tested.options, fallback_random=True))
        if self._both_agree(plain, first, second):
            return f"the pass {names}: compiled without it the program agrees with eager"
        return f"not the pass {names} alone: compiled without it the program differs from eager as well"


def never_compiled(program: Any) -> Callable[..., Any]:
    """Return ``program`` as a function that Dynamo has never seen.

    Dynamo keeps what it compiled, and what it learned of sizes, by code object: a program that is run under ten passes
    would otherwise hit the recompile limit.
    """
    if not isinstance(program, types.FunctionType):
        return never_compiled(lambda *inputs, **kwargs: program(*inputs, **kwargs))
    code = program.__code__.replace(co_name=f"{program.__code__.co_name}_{next(_NUMBERS)}")
    copied = types.FunctionType(code, program.__globals__, program.__name__, program.__defaults__, program.__closure__)
    copied.__kwdefaults__ = program.__kwdefaults__
    return copied


def run_on_graph(
    given: Any,
    passes: tuple[PassUnderTest, ...],
    program: Any,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool,
    seed: int,
) -> PassRun:
    """Run ``passes`` on ``program``: a graph (module), changed as the passes change it, or a function to be traced."""
    if isinstance(program, torch.fx.GraphModule):
        module = program
    elif isinstance(program, torch.fx.Graph):
        module = program.owning_module or torch.fx.GraphModule(torch.nn.Module(), program)
    elif callable(program):
        # A traced graph takes its inputs in order; the keyword arguments are its last ones.
        first, names = len(inputs), tuple(kwargs)

        def by_position(*given: Any) -> Any:
            return program(*given[:first], **dict(zip(names, given[first:], strict=True)))

        inputs, kwargs = (*inputs, *kwargs.values()), {}
        with preserve_node_meta():
            module = trace_to_aten(by_position if names else program, inputs, dynamic=dynamic)
    else:
        raise TypeError(f"run_pass needs a torch.fx.Graph, a GraphModule, a function or a module, not {program!r}")
    require_valid(module, "the graph given to run_pass is invalid before any pass ran", GRAPH)
    recorder = Recorder(passes, GRAPH, lambda: Place("graph"))
    recorder.run(module)
    return PassRun(recorder.graphs, given, passes, GRAPH, GivenGraph(passes, recorder.graphs[0], inputs, seed, kwargs))


@dataclass(frozen=True)
class GivenGraph:
    """Runs the passes again, on their own result."""

    passes: tuple[PassUnderTest, ...]
    graphs: PassGraphs
    inputs: tuple[Any, ...]
    seed: int
    kwargs: Mapping[str, Any]

    def again(self) -> Sequence[PassGraphs]:
        """Run the passes on a copy of their own result."""
        recorder = Recorder(self.passes, GRAPH, lambda: Place("graph"))
        recorder.run(snapshot(self.graphs.after, copy_values=True))
        return recorder.graphs

    def numerics(self, level: str, rtol: float | None, atol: float | None, backward: Any) -> ParityReport:
        """Compare the graph after the passes with the graph before, on the inputs."""
        wanted = len(self.graphs.before.graph.find_nodes(op="placeholder"))
        if wanted and not self.inputs and not self.kwargs:
            raise GraphPassError(
                f"assert_same_numerics needs inputs to run the graph on (it takes {wanted}): "
                f"run_pass(pass, graph, *inputs)"
            )

        def run(module: torch.fx.GraphModule, **options: Any) -> Any:
            return execute(module, self.inputs, kwargs=self.kwargs, backward=backward, seed=self.seed, **options)

        before = run(self.graphs.before)
        check_program(before)
        fp64 = run(self.graphs.before, fp64=True) if level == "close" else None
        after = run(self.graphs.after)
        noise = Noise.source_of_executions(before, lambda seed: run(self.graphs.before, rounding=seed))
        how: dict[str, Any] = {"level": level, "rtol": rtol, "atol": atol, "label": "the graph after the pass"}
        report = compare(before, after, fp64, noise=noise, **how)
        if not report.ok:
            names = ", ".join(one.name for one in self.passes)
            blame = f"the pass {names} ('eager' is the graph before it, 'compiled' the graph after it)"
            raise ParityError(report, blame) from after.exception
        return report


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
) -> PassRun:
    """As :meth:`Regional.run_pass`."""
    is_graph = isinstance(program, torch.fx.Graph | torch.fx.GraphModule)
    name = ("graph" if is_graph else "post_grad") if stage is None else stage
    if not isinstance(name, str) or name not in STAGES:
        raise GraphPassError(unknown_name("stage", name, STAGES))
    where = STAGES[name]
    ready = graph_passes(passes, where)
    options = regional._options.override(dynamic=dynamic, fullgraph=fullgraph, inductor_configs=inductor_configs)
    if where is GRAPH:
        # A test of passes on bare graphs compiles nothing by design, and each result knows whether it is vacuous.
        regional._passes_on_graphs += 1
        how: dict[str, Any] = {"dynamic": bool(options.dynamic), "seed": regional.seed}
        return run_on_graph(passes, ready, program, inputs, kwargs or {}, **how)
    if isinstance(program, torch.fx.Graph) or not callable(program):
        raise TypeError(
            f"stage {where.name!r} compiles a function or module, not {type(program).__name__}: a graph itself is for "
            f"stage 'graph'"
        )
    compiled = CompiledProgram(
        regional, original_of(program), inputs, kwargs or {}, backward, options, passes=ready, stage=where
    )
    recorder = compiled.recorder()
    compiled.execute(recorder)
    return PassRun(recorder.graphs, passes, ready, where, compiled)
