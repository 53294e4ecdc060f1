"""The harness: one object per test that compiles with the backend under test and sees everything that happens."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from pytest_regional._base.limits import seconds_of
from pytest_regional._base.text import DEFAULT_SEED, shown, unknown_name
from pytest_regional._torch.dynamo import guards_untimed
from pytest_regional._torch.inductor import import_compilers
from pytest_regional._torch.process_state import structured_trace_off
from pytest_regional.backends import registry
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness import isolation
from pytest_regional.harness.blame.culprit import FollowUp
from pytest_regional.harness.blame.divergence import NoGraphError, first_divergence, first_divergence_of_graphs
from pytest_regional.harness.blame.reproducing import culprit_of
from pytest_regional.harness.compile_times import MeasuresCompiles
from pytest_regional.harness.compiling import (
    CompilesWithBackend,
    FullGraph,
    annotation_errors_alone,
    backpropagate,
    full_graph_of,
    refuse_no_program,
)
from pytest_regional.harness.counters import Bound, Counters, Event, bounds_of, check_expectation
from pytest_regional.harness.devices.device import device_under_test
from pytest_regional.harness.devices.emulated import check_emulation, emulating
from pytest_regional.harness.devices.on_device import OnDevice
from pytest_regional.harness.goldens.checking import assert_golden
from pytest_regional.harness.graph_passes.compiled import run_pass
from pytest_regional.harness.inputs import InputFactories, old_name
from pytest_regional.harness.kernel_store import kernels_kept
from pytest_regional.harness.observe.trace import TraceListener
from pytest_regional.harness.options import CompileOptions, HarnessOptions
from pytest_regional.harness.parity.check import GivenParity, ParityCheck
from pytest_regional.harness.parity.report import ParityError
from pytest_regional.harness.process import NewProcesses, ProcessResult, call_in_new_process, job_for
from pytest_regional.harness.record import CompileRecord, GraphRecord
from pytest_regional.harness.training import assert_training_parity

if TYPE_CHECKING:
    from pytest_regional.backends.capabilities import Support
    from pytest_regional.harness.blame.culprit import Culprit
    from pytest_regional.harness.blame.divergence import Divergence
    from pytest_regional.harness.goldens.file import GoldensOfTest
    from pytest_regional.harness.graph_passes.result import PassRun
    from pytest_regional.harness.parity.check import ParityCheck
    from pytest_regional.harness.parity.compare import ParityReport
    from pytest_regional.harness.training import TrainingReport
    from pytest_regional.verify import Verification, Verified


class Regional(CompilesWithBackend, MeasuresCompiles, InputFactories, OnDevice):
    """Compile, compare and count with one backend on one device.

    Made by the ``regional`` fixture or by :func:`pytest_regional.testing.regional`; use it inside the context it comes
    from, which isolates and observes.

    Attributes:
        device: the ``torch.device`` under test: where its tensors live.
        device_under_test: the device by name, with the profile of an emulated GPU.
        folder: the directory of this test's compiler caches.
        seed: the seed of the random generators.
        leaks: after the end, what was left changed, and was restored.
        blame_depth: how far a failed comparison is followed up: ``"off"``, ``"region"`` or ``"deep"``.
        blame_seconds: the CPU time that a search for a culprit may take.
        culprits: what was found to be to blame for failures, under ``"deep"``.
        goldens: where the goldens of this test are; ``None`` outside of pytest.
    """

    def __init__(
        self,
        spec: BackendSpec,
        device: str,
        folder: Path,
        seed: int,
        options: CompileOptions,
        settings: HarnessOptions,
    ) -> None:
        self._spec = spec
        self.device_under_test = device_under_test(device)
        self.device = self.device_under_test.torch_device
        self.folder = folder
        self.seed = seed
        self._options = options
        self._settings = settings
        follow_up = FollowUp.of(settings.blame or "region")
        self.blame_depth, self.blame_seconds = follow_up.depth, follow_up.seconds
        self.verification: Verification | None = None
        self.culprits: list[Culprit] = []
        self._start_observing()
        self._forward_only = not spec.supports("backward")
        self._looks_again = bool(spec.supports("results_kept"))
        self._looks_at_strides = bool(spec.supports("strides"))
        self._compiled_before = spec.compiled() if spec.compiled else 0
        self._parity_reports: list[ParityReport | TrainingReport] = []
        self._passes_on_graphs = 0
        self._expected_fallbacks: list[Event] = []
        self._compared_eager: list[str] = []
        self._programs: list[Any] = []
        self.leaks: tuple[isolation.Leak, ...] = ()
        self.goldens: GoldensOfTest | None = None
        self._new_processes = NewProcesses()

    @property
    def backend(self) -> str:
        """The name of the backend under test."""
        return self._spec.name

    def supports(self, capability: str) -> Support:
        """Return whether the backend under test has ``capability``, with the reason where it does not.

        Raises:
            RegionalValueError: a name that is no capability.
        """
        return self._spec.supports(capability)

    @property
    def spec(self) -> BackendSpec:
        """The specification of the backend under test: its capabilities, variants, and graph pass."""
        return self._spec

    if not TYPE_CHECKING:  # for mypy and editors they are not there

        def __getattr__(self, name: str) -> Any:
            """Return a name that earlier versions had; gone with 1.0."""
            return old_name(self, name)

    @property
    def counters(self) -> Counters:
        """The counters moved since the test began."""
        return self.observer.log.counters()

    # Compiling

    def compile(
        self,
        fn: Any,
        *,
        dynamic: bool | None = None,
        fullgraph: bool | None = None,
        pre_grad_pass: Any = None,
        pre_grad_pass_timing: str | None = None,
        inductor_configs: dict[str, Any] | None = None,
    ) -> Any:
        """Return ``fn`` (a function or module) compiled with the backend under test.

        A program that ``torch.compile`` returned is unwrapped first; for a module compiled in place, a function is
        returned. Options that are left out come from the ``regional_compile`` marker. The Inductor settings hold while
        this program and its backward compile, and no longer.

        Raises:
            RegionalValueError: an option that does not exist, or not in this torch.
        """
        refuse_no_program("compile", fn)
        options = self._options.override(
            dynamic=dynamic,
            fullgraph=fullgraph,
            pre_grad_pass=pre_grad_pass,
            pre_grad_pass_timing=pre_grad_pass_timing,
            inductor_configs=inductor_configs,
        )
        return self._compile_with(fn, options)

    # Running

    def run(
        self,
        fn: Any,
        *inputs: Any,
        backward: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        as_is: bool = False,
    ) -> CompileRecord:
        """Compile ``fn``, call it on ``inputs`` and report what happened.

        Args:
            fn: a function or module.
            inputs: its arguments, used as they are: in-place changes and ``.grad`` are visible afterwards.
            backward: ``None`` backpropagates random cotangents through every output that requires grad; ``False`` does
                not; a callable gets the output and returns the scalar to call ``backward()`` on.
            kwargs: its keyword arguments, by name.
            as_is: call ``fn`` as it is: it is compiled already.

        Raises:
            AnnotationError: the backend does not understand an annotation of the program.
        """
        refuse_no_program("run", fn)
        compiled = fn if as_is else self.compile(fn)
        observer = self.observer
        marks = observer.log.mark(), len(observer.graphs), len(observer.sources)
        listener = TraceListener(observer)
        with observer.listened_to_by(listener):
            with annotation_errors_alone():
                output = compiled(*inputs, **(kwargs or {}))
            backpropagate(output, backward, seed=self.seed)
        return CompileRecord(
            output,
            observer.graph_records(marks[1]),
            observer.code(marks[2]),
            observer.log.counters(marks[0]),
            listener.finished(),
        )

    def assert_golden(
        self,
        fn: Any,
        *inputs: Any,
        facts: Iterable[str] | None = None,
        name: str = "",
        backward: Any = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> CompileRecord:
        """Assert that a compile does what the test's golden says; see ``docs/goldens.md``.

        The golden is in ``__goldens__`` next to the test's file; ``pytest --regional-update`` writes it.

        Args:
            fn: a function or module, which is compiled with empty caches and called as by :meth:`run`; or what
                :meth:`run` returned, without inputs.
            inputs: its arguments.
            facts: which facts the golden holds: ``regions``, ``ops``, ``order``, ``passes`` (these four by default),
                ``fusions``, ``memory``, ``key``.
            name: tells several goldens of one test apart.
            backward: as :meth:`run`.
            kwargs: the program's keyword arguments, by name.

        Returns:
            the record of the run.

        Raises:
            GoldenError: the facts that differ, in sentences, or there is no golden.
            GoldenFileError: the file is damaged; the message names the line.
            RegionalValueError: two goldens of the test have one name, a name that is no fact, or a record in which
                nothing was compiled.
            RegionalRuntimeError: outside of a test that pytest runs.
        """
        given = {"backward": backward, "kwargs": kwargs}
        options = {key: value for key, value in given.items() if value is not None}
        return assert_golden(self, fn, inputs, facts=facts, name=name, **options)

    def assert_parity(
        self,
        fn: Any,
        *inputs: Any,
        backward: Any = None,
        level: str = "close",
        rtol: float | None = None,
        atol: float | None = None,
        compiled: Callable[[Any], Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        raises: type[Exception] | None = None,
        ignore_state: str | Sequence[str] = (),
        output_edges: bool = False,
    ) -> ParityReport:
        """Assert that the compiled program is numerically the same as eager, forward and backward.

        Also compared are, with calls of their own: inputs of one storage as views of one tensor and as tensors that are
        no views; in an autocast, a backward inside of it; and, of a program that draws, the backend's own random
        numbers (by distribution: a correct program fails with a probability of at most 1e-9).

        Args:
            fn: a function or module.
            inputs: its arguments; they are copied, so the program may mutate them.
            backward: as :meth:`run`; where the backend disclaims ``backward``, ``None`` compares inference only.
            level: ``"close"`` (element by element, against a float64 reference), ``"dtype"``
                (``torch.testing.assert_close`` defaults) or ``"bitwise"``.
            rtol: relative tolerance that replaces the level's.
            atol: absolute tolerance that replaces the level's.
            compiled: a function that compiles ``fn`` in place of :meth:`compile`, such as a pipeline.
            kwargs: the program's keyword arguments, by name; copied like ``inputs``.
            raises: an exception that eager raises; the compiled program, which is called once, must then raise one of
                the same class, be it wrapped by a compiler. Nothing else is compared.
            ignore_state: names of Python state that is not compared (``"notes"`` stands for all that is in it, too);
                it is put back after each run all the same.
            output_edges: whether to compare the gradient of each output with respect to each other one as well, which
                is lost behind AOTAutograd: there all outputs come from one node of autograd's graph.

        Raises:
            NotRefusedError: ``raises`` is given, and the program runs in eager.
            ParityError: what differs, where, by how much, and which region is to blame.
            BadProgramError: the program fails in eager, otherwise than ``raises`` says.
            AnnotationError: the backend does not understand an annotation of the program.
        """
        refuse_no_program("assert_parity", fn)
        options: dict[str, Any] = {
            "backward": backward,
            "level": level,
            "rtol": rtol,
            "atol": atol,
            "kwargs": dict(kwargs or {}),
            "raises": raises,
            "ignore_state": (ignore_state,) if isinstance(ignore_state, str) else tuple(ignore_state),
            "output_edges": output_edges,
        }
        if compiled:
            check: ParityCheck = GivenParity(self, fn, inputs, compiled=compiled, **options)
        else:
            check = ParityCheck(self, fn, inputs, **options)
        try:
            report = check.run()
        except ParityError as error:
            self._parity_reports.append(error.report)
            raise
        self._parity_reports.append(report)
        return report

    def _region_names(self, graphs: Sequence[GraphRecord]) -> tuple[str, ...]:
        """Return the names of the regions of graphs; where a backend raised before it made any, of Dynamo's."""
        made = dict.fromkeys(region.name for graph in graphs for region in graph.regions)
        return tuple(made or self.observer.annotated_regions)

    def blame(
        self,
        fn: Any,
        *inputs: Any,
        check: Callable[..., object] | None = None,
        backward: Any = None,
        level: str = "close",
        rtol: float | None = None,
        atol: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> Culprit:
        """Search for what a failure comes from: layer, region, and step of the compile; see ``docs/blame.md``.

        The program is compiled again and again, each time with one thing changed. Counters and records of the test are
        afterwards as they were.

        Args:
            fn: a function or module.
            inputs: its arguments.
            check: called as ``check(fn, *inputs, **kwargs)``: compiles with this harness, and raises where something is
                wrong. By default :meth:`assert_parity`.
            backward: as :meth:`assert_parity`.
            level: as :meth:`assert_parity`.
            rtol: as :meth:`assert_parity`.
            atol: as :meth:`assert_parity`.
            kwargs: the program's keyword arguments, by name.
            seconds: of CPU time that the search may take, by default what ``--regional-blame`` says (60); the last
                experiment may take longer.

        Returns:
            What was found. Its layer is ``"nothing"`` where nothing fails.

        Raises:
            BadProgramError: the program fails in eager.
            AnnotationError: the backend does not understand an annotation of the program.
        """
        refuse_no_program("blame", fn)
        if check is None:
            options = {"backward": backward, "level": level, "rtol": rtol, "atol": atol}
            return ParityCheck(self, fn, inputs, **options, kwargs=dict(kwargs or {})).culprit(seconds)
        return culprit_of(self, lambda: check(fn, *inputs, **(kwargs or {})), seconds=seconds)

    def first_divergence(
        self,
        fn: Any,
        *inputs: Any,
        against: str | BackendSpec | torch.fx.GraphModule | None = None,
        backward: Any = None,
        level: str = "close",
        rtol: float | None = None,
        atol: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Divergence:
        """Return the first value of the program that differs from eager once compiled, or the first gradient.

        Each intermediate value is compared as :meth:`assert_parity` compares outputs; see ``docs/blame.md``.

        Args:
            fn: a function or module of which Dynamo makes one graph.
            inputs: its arguments.
            against: what is compared with instead of eager: the name or specification of another backend; or a graph,
                of which ``fn`` is another version, such as the result of a pass. Two graphs run uncompiled, and values
                of one name are compared.
            backward: as :meth:`assert_parity`; ``False`` compares no gradients.
            level: as :meth:`assert_parity`.
            rtol: as :meth:`assert_parity`.
            atol: as :meth:`assert_parity`.
            kwargs: the program's keyword arguments, by name.

        Raises:
            NoGraphError: Dynamo makes none or several graphs of the program.
            BadProgramError: the program fails in eager, or with what it is compared with.
            UnknownBackendError: there is no backend of that name.
            TypeError: a graph to compare what is no graph with.
        """
        refuse_no_program("first_divergence", fn)
        options = {"backward": backward, "level": level, "rtol": rtol, "atol": atol}
        check = ParityCheck(self, fn, inputs, **options, kwargs=dict(kwargs or {}))
        if isinstance(against, torch.fx.GraphModule):
            if not isinstance(fn, torch.fx.GraphModule):
                raise TypeError(
                    "against= is a graph, so the first argument is another version of it: a torch.fx.GraphModule. To "
                    "compare a compiled program with eager, leave against= out"
                )
            return first_divergence_of_graphs(check, against)
        if not isinstance(against, str | BackendSpec | None):
            raise TypeError(
                f"against= is of type {type(against).__name__}: give the name of a backend, a BackendSpec, or "
                f"a torch.fx.GraphModule"
            )
        return first_divergence(check, against)

    def _first_divergence(self, check: ParityCheck) -> Divergence | None:
        """Return the first value that differs in a comparison that failed; ``None`` where there is no one graph."""
        try:
            return first_divergence(check)
        except NoGraphError:
            return None

    def assert_training_parity(self, model: Any, batches: Sequence[Any], **options: Any) -> TrainingReport:
        """Assert that a compiled module trains as eager does, step by step; see ``docs/training-parity.md``.

        Keywords and errors are those of :func:`pytest_regional.harness.training.assert_training_parity`.
        """
        return assert_training_parity(self, model, batches, **options)

    @property
    def pipeline(self) -> FullGraph:
        """The full-graph pipeline, with the backend under test as its last pass; see ``docs/full-graph.md``.

        Raises:
            RegionalValueError: the backend compiles for Dynamo alone.
        """
        return full_graph_of(self._spec)

    def run_pass(self, passes: Any, fn_or_graph: Any, *inputs: Any, **options: Any) -> PassRun:
        """Run a graph pass, or a list of them, on a program; see ``docs/testing-passes.md``.

        Keywords are ``stage`` ("pre_grad", "joint", "post_grad", "graph"), ``backward`` and ``kwargs`` as :meth:`run`,
        and ``dynamic``, ``fullgraph`` and ``inductor_configs`` as :meth:`compile`.
        """
        return run_pass(self, passes, fn_or_graph, inputs, **options)

    # Watching

    @contextlib.contextmanager
    def expect(self, **expected: int | Bound) -> Iterator[None]:
        """Assert by how much counters move inside: a number is exact, ``at_most(n)`` and ``at_least(n)`` are ranges.

        Fallbacks that are expected by ``fallbacks=`` do not fail the test at its end, as others do.

        Raises:
            UnknownCounterError: a name that is no counter.
            CounterExpectationError: with all counters and what caused each.
        """
        bounds = bounds_of(expected)
        mark = self.observer.log.mark()
        yield
        events = self.observer.log.since(mark)
        check_expectation(bounds, events)
        if "fallbacks" in bounds:
            self._expected_fallbacks += [event for event in events if event.counter == "fallbacks"]

    @contextlib.contextmanager
    def no_compile(self, *, traces: bool = False) -> Iterator[None]:
        """Make any Dynamo, AOTAutograd or Inductor compile inside a :class:`CompileForbiddenError`.

        Args:
            traces: whether Dynamo may translate code, as long as no graph is compiled: after a graph break, code
                between graphs may be translated late.
        """
        with self.observer.forbidding(traces=not traces):
            yield

    def restart(self) -> None:
        """Act like a new process: drop what was compiled or loaded in memory; keep the cache directory and counters."""
        self.observer.flush()
        isolation.clear_caches()
        self.observer.flush()
        self.observer.compiled.clear()
        if self._spec.forget:
            self._spec.forget()

    def in_new_process(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout: float | None = None,
        fresh_interpreter: bool = False,
    ) -> ProcessResult:
        """Call ``function(*arguments)`` in a new process that shares this test's cache directory.

        Where the test has set ``TORCHINDUCTOR_CACHE_DIR`` or ``TRITON_CACHE_DIR``, as for a cache that was moved, they
        hold there as well; Triton's cache follows Inductor's unless it is set itself.

        A function whose first parameter is called ``regional`` gets a harness like this one before the arguments.
        Returns a :class:`ProcessResult` with the call's value and counters. A skip there is a skip here.

        Args:
            function: a function at the top of a module.
            arguments: what it is called with.
            timeout: seconds after which the process is killed.
            fresh_interpreter: start an interpreter also with ``--regional-processes=forkserver``: for tests of what
                happens when an interpreter, or torch, starts.

        Raises:
            NewProcessError: the call raised or died there, or took longer than ``timeout`` seconds.
            TypeError: the function or its arguments cannot be sent to another process.
            ValueError: ``timeout`` is not a valid number of seconds.
        """
        if timeout is not None:
            try:
                timeout = seconds_of(timeout)
            except ValueError as error:
                raise ValueError(f"in_new_process: timeout={shown(timeout)}: {error}, or None") from error
        job = job_for(function, arguments, self._for_new_process(), isolation.moved_caches(self.folder))
        result, compiled = call_in_new_process(job, timeout, self._new_processes, fresh_interpreter=fresh_interpreter)
        # What was compiled or loaded there was compiled or loaded by this test.
        self.observer.called_compiled_region |= compiled
        return result

    def _for_new_process(self) -> dict[str, Any]:
        return {
            "spec": self._spec.origin or self._spec,
            "device": self.device_under_test.name,
            "options": replace(
                self._options, inductor_configs=dict(self._options.inductor_configs), pre_grad_pass=None
            ),
            "seed": self.seed,
            "folder": self.folder,
            # What this test set since it began is for its children, too.
            "shared_cache": True,
            "settings": HarnessOptions(blame=str(FollowUp(self.blame_depth, self.blame_seconds))),
        }

    # Ending

    def _reset(self, *, keep_code: bool = False) -> None:
        """Start over within the test, as between two Hypothesis examples: nothing compiled, generators seeded."""
        self.restart()
        isolation.seed_everything(self.seed)
        isolation.clear_folder(self.folder, keep_code=keep_code)

    def verified_kernels(self) -> Sequence[Verified]:
        """Verify the kernels that were generated so far, for all sizes, and return what was found out about each.

        None where nothing is to be verified: see ``--regional-verify``.
        """
        return [] if self.verification is None else self.verification.verified()


@contextlib.contextmanager
def harness(
    spec: BackendSpec | str = "reference",
    device: str = "auto",
    *,
    folder: Path | None = None,
    seed: int = DEFAULT_SEED,
    options: CompileOptions | None = None,
    isolate: bool = True,
    shared_cache: bool = False,
    settings: HarnessOptions | None = None,
) -> Iterator[Regional]:
    """Isolate and observe what runs inside; yields the :class:`Regional` to do it with.

    Args:
        spec: a backend, or the name of one.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda-emulated"``.
        folder: directory for compiler caches; a temporary one by default.
        seed: for the random generators.
        options: how programs are compiled by default.
        isolate: ``False`` only observes; the caller is then responsible for caches, configuration and seeds.
        shared_cache: whether isolation allows a cache server that the environment names.
        settings: what else the options of a run say.
    """
    resolved = registry.resolve(spec) if isinstance(spec, str) else spec
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pytest-regional-"))).absolute()
        regional = Regional(resolved, device, folder, seed, options or CompileOptions(), settings or HarnessOptions())
        stack.enter_context(structured_trace_off())
        import_compilers()
        check_emulation(regional.device_under_test)
        if isolate:
            stack.enter_context(_isolated(regional, shared_cache=shared_cache))
        stack.enter_context(kernels_kept())
        stack.enter_context(guards_untimed())
        stack.enter_context(emulating(regional))
        stack.enter_context(regional.observer.watching())
        _RUNNING.append(regional)
        try:
            yield regional
        finally:
            _RUNNING.remove(regional)


@contextlib.contextmanager
def _isolated(regional: Regional, *, shared_cache: bool) -> Iterator[None]:
    state = None
    try:
        with isolation.isolated(regional.folder, regional.seed, shared_cache=shared_cache) as state:
            yield
    finally:
        regional.leaks = state.leaks if state else ()
        if regional._spec.forget:
            regional._spec.forget()


_RUNNING: list[Regional] = []


def running() -> Regional | None:
    """Return the innermost active harness of this process, or ``None``."""
    return _RUNNING[-1] if _RUNNING else None


def report_region(
    subgraph: torch.fx.GraphModule, outcome: Literal["compiled", "loaded", "shared"] = "compiled"
) -> None:
    """Tell the harness that a backend compiled a region by another compiler than Inductor, which is seen without this.

    Call it where the backend compiles, with each subgraph that it compiles on its own; see ``docs/other-backends.md``.
    Outside of a test that is observed, nothing happens.

    Args:
        subgraph: what was compiled, with its nodes' annotations: each region in it has one partition more.
        outcome: ``"compiled"`` moves ``region_compiles``; ``"loaded"``, from what the backend keeps,
            ``region_cache_hits``; ``"shared"``, with an equal region, no counter.

    Raises:
        CompileForbiddenError: a compile inside ``no_compile()``.
        TypeError: ``subgraph`` is no graph module.
        ValueError: an outcome that does not exist.
    """
    if not isinstance(subgraph, torch.fx.GraphModule):
        raise TypeError(f"report_region needs the torch.fx.GraphModule of a region, not {shown(subgraph)}")
    if outcome not in ("compiled", "loaded", "shared"):
        raise ValueError(unknown_name("outcome", outcome, ("compiled", "loaded", "shared")))
    for regional in _RUNNING:
        regional.observer.region_reported(subgraph, outcome)
