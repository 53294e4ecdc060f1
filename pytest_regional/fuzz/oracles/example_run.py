"""One program on one backend: everything that is computed once for all oracles."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from pytest_regional._torch import tracing
from pytest_regional._torch.config import INDUCTOR, config_values, patched_config
from pytest_regional._torch.dynamo import aot_eager_backend, aot_eager_within, never_compiled
from pytest_regional.fuzz.graph_capture import DYNAMO_EVERY, compiled_on_first_call, needs_dynamo
from pytest_regional.fuzz.model.building import value_ranges
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.modes import INTERPRETED
from pytest_regional.fuzz.oracles.oracle import OracleViolationError
from pytest_regional.fuzz.oracles.watching import Watched, watching
from pytest_regional.harness.counters import Event
from pytest_regional.harness.options import CompileOptions
from pytest_regional.harness.parity.check import KeptResults
from pytest_regional.harness.parity.compare import Mismatch, ParityReport, check_program, compare
from pytest_regional.harness.parity.execution import Execution, execute
from pytest_regional.harness.parity.fp64_reference import precision_of
from pytest_regional.harness.parity.inputs import Form
from pytest_regional.harness.parity.noise import Noise, NoiseSource
from pytest_regional.harness.parity.tolerance import Exactness
from pytest_regional.harness.pre_grad_passes import counting_pass
from pytest_regional.harness.record import GeneratedCode
from pytest_regional.harness.regional import Regional


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
        settings_before: Inductor's settings before the first call, and ``settings_after`` those after it; none for a
            program that names none.
    """

    executions: tuple[Execution, ...]
    watched: Watched
    events: tuple[Event, ...]
    later: tuple[Event, ...]
    code: GeneratedCode
    settings_before: Mapping[str, Any]
    settings_after: Mapping[str, Any]
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
        return self._expected(1), self._expected(2)

    def _expected(self, seed: int) -> ExpectedResults:
        return self.expected_of(self.program.function, self.program.inputs(self.regional.device, seed))

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
        self.regional.reset(keep_code=True)

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
        before = config_values(INDUCTOR) if names else {}
        interpreted = self.mode in INTERPRETED
        with watching(
            self.regional, checks_boundary=checks_boundary, settings=names, interpreted=interpreted
        ) as watched:
            executions = [self.execute(compiled, self.expected[0].inputs, keep=calls > 1)]
        later, code = observer.log.mark(), observer.code(sources)
        after = config_values(INDUCTOR) if names else {}
        if executions[0].exception is None and calls > 1:
            with self.regional.no_compile():
                executions.append(self.execute(compiled, self.expected[1].inputs))
        events = observer.log.since(mark)
        first = later - mark
        overwritten = tuple(KeptResults.of(executions[0]).overwritten().values())
        return Run(
            tuple(executions), watched, events[:first], events[first:], code, before, after, overwritten, compiled
        )

    def compile(self, program: Program, pass_uuid: str | None = None) -> Any:
        """Return ``program`` compiled with the backend, drawing random numbers as eager does."""
        if self.alone:
            backend = aot_eager_backend(program.partitioner) if program.partitioner else "aot_eager"
            return torch.compile(program.function, backend=backend, dynamic=program.dynamic, fullgraph=True)
        options = self.options(program)
        if pass_uuid is not None:
            options = replace(options, pre_grad_pass=counting_pass(pass_uuid), pre_grad_pass_timing="late")
        if self.mode != "graph" or self._needs_dynamo(program):
            return self.regional._compile_with(program.function, options)
        return compiled_on_first_call(
            program,
            lambda gm, inputs: self.regional._compile_graph(gm, inputs, options),
            lambda: self.regional._compile_with(program.function, options),
        )

    def _needs_dynamo(self, program: Program) -> bool:
        """Return whether Dynamo captures ``program`` in mode ``graph``: it has to, or it is the turn of this one."""
        return bool(needs_dynamo(program)) or zlib.crc32(self.program.identity.encode()) % DYNAMO_EVERY == 0

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
