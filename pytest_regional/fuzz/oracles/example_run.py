"""What an oracle is, and the error of a violated one; and one program on one backend, run for all of them."""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.fx
from torch.fx.traceback import get_current_meta

from pytest_regional._base.errors import RegionalError, RegionalRuntimeError
from pytest_regional._torch import tracing
from pytest_regional._torch.config import INDUCTOR, patched_config
from pytest_regional._torch.dynamo import aot_eager_backend, aot_eager_within, never_compiled
from pytest_regional._torch.fx_graphs import (
    clone_alone,
    forget_sources,
    is_graph_module,
    takes_one_list,
    trace_functional,
)
from pytest_regional._torch.inductor import is_boxed
from pytest_regional.fuzz.graph_capture import DYNAMO_EVERY, compiled_on_first_call, needs_dynamo
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import value_ranges
from pytest_regional.fuzz.model.program import Program, Region, Scope, Step
from pytest_regional.fuzz.model.source import defined
from pytest_regional.fuzz.oracles.watching import Watched, watching
from pytest_regional.fuzz.settings import COMPILED, INTERPRETED
from pytest_regional.harness.blame.culprit import Culprit
from pytest_regional.harness.counters import Event
from pytest_regional.harness.options import CompileOptions
from pytest_regional.harness.parity.check import KeptResults
from pytest_regional.harness.parity.compare import Mismatch, ParityReport, check_program, compare
from pytest_regional.harness.parity.execution import Execution, execute
from pytest_regional.harness.parity.inputs import Form
from pytest_regional.harness.parity.precision import precision_of
from pytest_regional.harness.parity.tolerance import Exactness, Noise, NoiseSource
from pytest_regional.harness.pre_grad_passes import counting_pass
from pytest_regional.harness.record import GeneratedCode, GeneratedSource
from pytest_regional.harness.regional import Regional


class OracleViolationError(RegionalError, AssertionError):
    """A program violates an oracle on a backend.

    Attributes:
        oracle: name of the oracle, a key of ``ORACLES``.
        stage: ``"compile"``, ``"run"``, ``"backward"`` or ``"restart"``.
        detail: what was seen, in sentences.
        region: the region to blame, where one is known.
        origin: what makes two failures the same defect; neither numbers nor addresses are in it.
        program: source of the program.
        without_backend: whether the same goes wrong with AOTAutograd alone (``aot_eager``), which compiles nothing:
            then it is a defect of capture, and no backend can help it. Told for ``compiles`` and ``parity``.
        culprit: the step of the compile that is to blame; of what a campaign found, once it is reduced.
        sources: the code that was generated for the program.
    """

    without_backend = False
    culprit: Culprit | None = None
    sources: Sequence[GeneratedSource] = ()

    def __init__(
        self, oracle: str, stage: str, detail: str, *, origin: str, region: str | None = None, program: str = ""
    ) -> None:
        self.oracle, self.stage, self.detail, self.origin = oracle, stage, detail, origin
        self.region, self.program = region, program
        super().__init__(oracle, stage, detail)

    def __str__(self) -> str:
        blame = f"\nregion to blame: {self.region}" if self.region else ""
        if self.without_backend:
            blame += "\nAOTAutograd alone fails alike (aot_eager): the backend is not to blame"
        shown = f"\n\n{self.program}" if self.program else ""
        return f"oracle {self.oracle!r} is violated ({self.stage}): {self.detail}{blame}{shown}"


def kinds_of(mismatches: Iterable[Mismatch]) -> str:
    """Return what differs, and of what, without saying which or by how much: ``"stride of grad, value of output"``."""
    found = {f"{mismatch.kind} of {_subject(mismatch.where)}" for mismatch in mismatches}
    return ", ".join(sorted(found))


_SUBJECTS = ("grad", "output", "input", "buffer", "backward", "forward", "random state")


def _subject(where: str) -> str:
    second = "second call" if where.startswith("second call") else ""
    plain = where.partition(": ")[2] if second else where
    subject = next((word for word in _SUBJECTS if plain.startswith(word)), "rest")
    return f"{subject} ({second})" if second else subject


@dataclass(frozen=True)
class Oracle:
    """Something that holds for every program on every backend that declares what it needs.

    Attributes:
        name: what errors, findings and tables call it.
        summary: one sentence.
        check: raises :class:`OracleViolationError` where an example run violates it, and :class:`NoClaim` where it says
            nothing about the example.
        modes: in which modes it can be checked.
        requires: capabilities of a backend without which it is not demanded.
        every: where oracles are not chosen by name, one program in so many is checked against it; more than 1 for
            oracles that compile once more, and 0 for those that are checked by name alone.
        place: in the order of checks. Oracles of caches look for what the first compile stored, so that those which
            begin with empty caches come later.
        fails_in_capture: whether a defect of AOTAutograd violates it on each backend, which is then not to blame;
            ``compiles`` and ``parity`` tell so in another way.
        after_parity: whether it compares further calls with eager, and says nothing new where the first one differs.
        scripted: whether a short script of one or two calls can show a violation.
    """

    name: str
    summary: str
    check: Callable[[ExampleRun], None] = field(repr=False)
    modes: tuple[str, ...] = COMPILED
    requires: tuple[str, ...] = ()
    every: int = 1
    place: int = 0
    fails_in_capture: bool = False
    after_parity: bool = False
    scripted: bool = False


class NoClaim(RegionalError):
    """An oracle says nothing about this program on this backend; the message is the reason."""


@dataclass(frozen=True)
class CheckResult:
    """What :func:`check` found where no oracle is violated.

    Attributes:
        oracles: names of the oracles that were checked and hold.
        skipped: names of the others, with reasons.
        seconds: how long all took.
        spent: the seconds of each oracle; ``"compile"`` is what they share.
        known: violated oracles that the caller knew of.
    """

    oracles: tuple[str, ...]
    skipped: Mapping[str, str]
    seconds: float
    spent: Mapping[str, float] = field(default_factory=dict, compare=False)
    known: tuple[OracleViolationError, ...] = ()


@dataclass(frozen=True, eq=False)
class ExpectedResults:
    """One set of inputs, with what eager and float64 make of it.

    ``noise`` measures what rounding does to eager; None where bits are compared. ``strides`` says whether those of
    results are to be eager's.
    """

    inputs: tuple[torch.Tensor, ...]
    eager: Execution
    fp64: Execution | None
    noise: NoiseSource | None = None
    strides: bool = True

    def compared(self, execution: Execution, exact: Mapping[str, Exactness] | None = None) -> ParityReport:
        """Return how ``execution`` differs from eager; ``exact`` as in :func:`compare`."""
        report = compare(self.eager, execution, self.fp64, noise=self.noise, exact=exact or {})
        kept = tuple(one for one in report.mismatches if self.strides or one.kind != "stride")
        return replace(report, mismatches=kept)


@dataclass(frozen=True, eq=False)
class Run:
    """One compile of the program and two calls of what came of it.

    Attributes:
        executions: of the first and the second call; the second has other inputs and may not compile.
        watched: the graphs and partitions that were compiled.
        events: what moved counters during the first call; ``later`` is the same for the second.
        code: what was generated.
        overwritten: what of the first call's results holds something else after the second.
        compiled: the compiled program.
    """

    executions: tuple[Execution, ...]
    watched: Watched
    events: tuple[Event, ...]
    later: tuple[Event, ...]
    code: GeneratedCode
    overwritten: tuple[Mismatch, ...] = ()
    compiled: Any = None

    @property
    def error(self) -> Exception | None:
        """What the first call raised."""
        return self.executions[0].exception


class ExampleRun:
    """One program on one backend.

    Args:
        regional: the harness.
        program: what is checked.
        mode: in which mode it is checked.
        blame: whether parity looks for the region to blame, which compiles several times.
        checks_boundary: whether the first call compares the values at boundaries with what the graph says.
        form: how inputs that use one storage use it.
        alone: whether AOTAutograd alone compiles the program, in place of the backend.
    """

    def __init__(
        self,
        regional: Regional,
        program: Program,
        mode: str,
        *,
        blame: bool = True,
        checks_boundary: bool = False,
        form: Form = "own",
        alone: bool = False,
    ) -> None:
        self.regional, self.program, self.mode = regional, program, mode
        self.blame, self.checks_boundary, self.form, self.alone = blame, checks_boundary, form, alone

    def of(self, program: Program, *, form: Form | None = None) -> ExampleRun:
        """Return the run of another program, or with inputs in another form, by what compiles this one."""
        form = form or self.form
        return ExampleRun(self.regional, program, self.mode, blame=False, form=form, alone=self.alone)

    # Eager

    @cached_property
    def expected(self) -> tuple[ExpectedResults, ExpectedResults]:
        """Two sets of inputs with their eager and float64 runs.

        Raises:
            BadProgramError: the program fails in eager.
        """
        first, second = (self.program.inputs(self.regional.device, seed) for seed in (1, 2))
        return self.expected_of(self.program.function, first), self.expected_of(self.program.function, second)

    def expected_of(self, fn: Any, inputs: tuple[torch.Tensor, ...]) -> ExpectedResults:
        """Return what eager and float64 make of ``fn``, the program or something around it.

        Raises:
            BadProgramError: it fails in eager.
        """
        with self.regional.observer.paused():
            eager = self.execute(fn, inputs, keep=True)
            check_program(eager)
            precision = precision_of(self.regional._spec)
            if precision is not None:
                with never_compiled(tracing=False):  # Dynamo would trace past the rounding, and keep what it traced
                    eager.coarse = self.execute(fn, inputs, precision=precision)
            fp64 = self.execute(fn, inputs, fp64=True)

        def rounded_otherwise(seed: int) -> Execution:
            with self.regional.observer.paused():
                return self.execute(fn, inputs, rounding=seed)

        noise = Noise.source_of_executions(eager, rounded_otherwise)
        return ExpectedResults(inputs, eager, fp64, noise, strides=self.regional._looks_at_strides)

    def execute(self, fn: Any, inputs: tuple[torch.Tensor, ...], *, fp64: bool = False, **more: Any) -> Execution:
        """Run ``fn`` once as the program says: backpropagated through, or without gradients."""
        with contextlib.nullcontext() if self.trains else torch.no_grad():
            return execute(
                fn,
                inputs,
                backward=None if self.trains else False,
                seed=self.regional.seed,
                state_of=self.program.function,
                fp64=fp64,
                form=self.form,
                **more,
            )

    @cached_property
    def trains(self) -> bool:
        """Whether the program is backpropagated through."""
        return self.program.trains

    @cached_property
    def fake_disagreement(self) -> str:
        """What :meth:`fake_disagreement_on` returns for the first inputs."""
        return self.fake_disagreement_on(self.expected[0].inputs)

    def fake_disagreement_on(self, inputs: tuple[torch.Tensor, ...]) -> str:
        """Return which operator makes other strides in eager than on fake tensors; empty where none does.

        The graph is traced with fake tensors, so no backend sees eager's strides then. It is traced without writes
        (``uniform_`` becomes ``uniform``), so the program runs a second time without them. Some operators, such as the
        gradient of a dropout, are AOTAutograd's own, so its graphs run as well.
        """
        plain = self.program.function
        with self.regional.observer.paused(), tracing.fakes_checked():
            error = self.execute(plain, inputs).exception
            if not tracing.is_fake_disagreement(error):  # whatever else was refused there
                # Inputs that are views can make PyTorch wait for itself here: ``is_leaf`` asks for the gradient's
                # function, which is made anew by the view's operators, which are traced, and ask ``is_leaf``.
                functional = tracing.without_writes(plain)
                error = execute(functional, inputs, backward=False, state_of=plain, form="storage").exception
        if not tracing.is_fake_disagreement(error):
            with self.regional.observer.paused(), patched_config(INDUCTOR, {"fallback_random": True}):
                backend = aot_eager_within(self.program.partitioner or "min_cut", tracing.fakes_checked)
                traced = torch.compile(plain, backend=backend, dynamic=self.program.dynamic, fullgraph=True)
                error = self.execute(traced, inputs).exception
        return " ".join(str(error).split())[:200] if tracing.is_fake_disagreement(error) else ""

    # Compiled

    #: Whether Dynamo or AOTAutograd takes part, which may be to blame.
    captured = True

    def start_over(self) -> None:
        """Forget what was compiled before."""
        self.regional._reset(keep_code=True)

    @cached_property
    def cold(self) -> Run:
        """The program compiled with nothing in any cache, called twice."""
        _ = self.expected
        self.start_over()
        return self.run(self.program, checks_boundary=self.checks_boundary)

    def run(
        self,
        program: Program,
        *,
        calls: int = 2,
        checks_boundary: bool = False,
        pass_uuid: str | None = None,
        around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda compiled: compiled,
    ) -> Run:
        """Compile ``program`` as things are and call it, with ``around`` it, on the inputs of ``expected``."""
        observer = self.regional.observer
        compiled = around(self.compile(program, pass_uuid or self.pass_uuid))
        mark, sources = observer.log.mark(), len(observer.sources)
        names = sorted({name for region in program.regions for name, _ in region.configs})
        interpreted = self.mode in INTERPRETED
        with watching(
            self.regional, checks_boundary=checks_boundary, settings=names, interpreted=interpreted
        ) as watched:
            executions = [self.execute(compiled, self.expected[0].inputs, keep=calls > 1)]
        later, code = observer.log.mark(), observer.code(sources)
        if executions[0].exception is None and calls > 1:
            with self.regional.no_compile():
                executions.append(self.execute(compiled, self.expected[1].inputs))
        events = observer.log.since(mark)
        first = later - mark
        overwritten = tuple(KeptResults.of(executions[0]).overwritten().values())
        return Run(tuple(executions), watched, events[:first], events[first:], code, overwritten, compiled)

    def compile(self, program: Program, pass_uuid: str | None = None) -> Any:
        """Return ``program`` compiled with the backend, drawing random numbers as eager does."""
        if self.alone:
            backend = aot_eager_backend(program.partitioner) if program.partitioner else "aot_eager"
            return torch.compile(program.function, backend=backend, dynamic=program.dynamic, fullgraph=True)
        options = self.options(program)
        if pass_uuid is not None:
            options = replace(options, pre_grad_pass=counting_pass(pass_uuid), pre_grad_pass_timing="late")
        # Dynamo captures one program in so many though it need not.
        turn = zlib.crc32(self.program.identity.encode()) % DYNAMO_EVERY == 0
        if self.mode != "graph" or needs_dynamo(program) or turn:
            return self.regional._compile_with(program.function, options)
        return compiled_on_first_call(
            program,
            lambda gm, inputs: self.regional._compile_graph(gm, inputs, options),
            lambda: self.regional._compile_with(program.function, options),
        )

    def options(self, program: Program) -> CompileOptions:
        """Return how ``program`` is compiled: as it says, drawing random numbers as eager does."""
        options = replace(self.regional._options, fallback_random=True)
        return replace(options, dynamic=program.dynamic, partitioner=program.partitioner)

    @cached_property
    def pass_uuid(self) -> str | None:
        """The uuid of the pre-grad pass, which changes nothing, that all compiles have; None where none can be."""
        spec = self.regional._spec
        wanted = ("regions", "outer_cache", "pre_grad_passes", "pre_grad_timing")
        return "first" if all(map(spec.supports, wanted)) else None

    def report(self, call: int, run: Run | None = None) -> ParityReport:
        """Return how the call differs from eager."""
        expected, execution = self.expected[call], (run or self.cold).executions[call]
        return expected.compared(execution, self.exact)

    @cached_property
    def exact(self) -> Mapping[str, Exactness]:
        """The outputs and inputs of which every correct compile computes the same values, by their names in reports."""
        known = {
            number: Exactness(value_range.zeros)
            for number, value_range in value_ranges(self.program).items()
            if value_range.exact
        }
        inputs = {f"input {index}": known.get(index) for index in range(len(self.program.arguments))}
        outputs = {f"output[{place}]": known.get(number) for place, number in enumerate(self.program.outputs)}
        return {name: exactness for name, exactness in {**inputs, **outputs}.items() if exactness is not None}

    def violation(
        self, oracle: str, stage: str, detail: str, *, origin: str, region: str | None = None
    ) -> OracleViolationError:
        """Return the error that says that this program violates an oracle."""
        return OracleViolationError(oracle, stage, detail, origin=origin, region=region, program=self.program.source)

    def events(self, *counters: str) -> Iterator[Event]:
        """Yield what moved one of ``counters`` in the first call."""
        return (event for event in self.cold.events if event.counter in counters)


# Mode ``aten``: the ATen graph of a program, handed to the backend's graph pass, and run beside the graph itself

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
            if custom and (annotation := annotation_of(program.steps[int(custom[_KEY]["inductor_region"])].scope)):
                node.meta["custom"] = dict(annotation)
        return module


def aten_graph_of(program: Program) -> AtenGraph:
    """Return the graph of ``program``, which all programs share that differ from it in annotations alone.

    It is traced once, without AOTAutograd, each statement under an annotation that bears its number. The graphs
    of the other programs are copies of it, in which each program's annotations replace the numbers.

    Raises:
        RegionalRuntimeError: the program cannot be traced in this way; says why.
    """
    if any(step.blocks for step in program.steps):
        found = _traced(program, numbered=False)
    else:
        steps = tuple(replace(step, scope=step.contexts) for step in program.steps)
        found = _numbered(program.arguments, steps, program.outputs)
    if isinstance(found, RegionalRuntimeError):
        raise found
    return found


def _numbered(
    arguments: tuple[TensorInput, ...], steps: tuple[Step, ...], outputs: tuple[int, ...]
) -> AtenGraph | RegionalRuntimeError:
    """Return the graph of a program, each node annotated with the number of its statement."""
    numbered = (replace(step, scope=(*step.scope, Region(number))) for number, step in enumerate(steps))
    return _traced(Program(arguments, tuple(numbered), outputs, training=False), numbered=True)


@functools.lru_cache(maxsize=_KEPT)
def _traced(program: Program, *, numbered: bool) -> AtenGraph | RegionalRuntimeError:
    if why := needs_dynamo(program):
        return RegionalRuntimeError(why)
    inputs = tuple(value.detach() for value in program.inputs("cpu", 1))
    mode = tracing.new_fake_mode()
    fakes = tuple(mode.from_tensor(value, static_shapes=True) for value in inputs)
    try:
        with mode, torch.no_grad():
            module = trace_functional(program.function, fakes)
    except Exception as error:  # noqa: BLE001 - a program that cannot be traced is told apart, whatever the reason
        return RegionalRuntimeError(f"it cannot be traced: {type(error).__name__}: {error}")
    return AtenGraph(module, fakes, inputs, numbered)


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
        with watching(self.regional, checks_boundary=checks_boundary, settings=names, interpreted=True) as watched:
            try:
                compiled = self.regional._compile_aten_graph(gm, self._graph.values)
            except Exception as error:  # noqa: BLE001 - whatever the backend raises is a result to be judged
                execution = Execution(exception=error)
            else:
                execution = self.execute(lambda *given: call(compiled, given), self._graph.inputs)
        return Run((execution,), watched, (), (), GeneratedCode())

    @cached_property
    def _graph(self) -> AtenGraph:
        try:
            return aten_graph_of(self.program)
        except RegionalRuntimeError as why:
            raise NoClaim(f"it has no ATen graph here: {why}") from why

    def report(self, call: int, run: Run | None = None) -> ParityReport:
        """Return in which bits the call differs."""
        return compare(self.expected[0].eager, (run or self.cold).executions[call], level="bitwise")


@functools.lru_cache(maxsize=4)
def _untouched(gm: torch.fx.GraphModule, inputs: tuple[torch.Tensor, ...], seed: int) -> Execution:
    """Return what a graph computes that no backend has seen; the variants of a program share it."""
    with torch.no_grad():
        return execute(gm, inputs, backward=False, seed=seed, state_of=call)  # its constants are no state
