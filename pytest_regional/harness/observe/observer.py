"""Watch compiles of any backend at patch points in PyTorch, and turn them into counters and records.

The stack of frames is per thread and says where in the nesting a patch point was reached: a Dynamo graph handed to a
backend (``backend``), an AOTAutograd graph handed to its compilers (``graph``), a subgraph handed to Inductor on its
own (``region``). Whatever happens below a ``graph`` or ``region`` frame concerns regions; the rest concerns the outer
result. This is what keeps the outer cache lookup and the per-region lookups apart for a backend never seen before.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytest_regional._base.cache_keys import keep_texts, why_missed
from pytest_regional._base.errors import RegionalError
from pytest_regional._torch import aot_autograd, caches, config, dynamo, patching
from pytest_regional._torch.autograd_cache import looked_up, pytorchs_texts
from pytest_regional._torch.dynamo import dynamo_backend_of
from pytest_regional._torch.fx_graphs import misspelt_marks
from pytest_regional._torch.inductor import RawLaunch, recording_launches
from pytest_regional.harness.codegen import origins_of
from pytest_regional.harness.counters import CounterLog
from pytest_regional.harness.observe import annotated
from pytest_regional.harness.observe.annotated import CompileLeaks, Ownership
from pytest_regional.harness.observe.listeners import (
    OUTCOMES,
    BackendCacheEvents,
    CompileListener,
    Frame,
    ObservedGraph,
    moved,
    observed,
)
from pytest_regional.harness.pre_grad_passes import PassCounts, is_body, runs_counted, runs_reported_to
from pytest_regional.harness.record import CompileTime, GeneratedCode, GeneratedSource, GraphRecord

#: What moves when a program gets to the backend under test.
_REACHED = {"graphs", "cache_hits", "region_compiles", "region_cache_hits"}


class CompileForbiddenError(RegionalError, AssertionError):
    """Something compiled inside ``no_compile()``."""


#: The counter that each outcome of a reported region moves; one whose code is shared with another moves none.
REPORTED = {"compiled": "region_compiles", "loaded": "region_cache_hits"}


class Observer:
    """Counters, graphs and generated code of everything compiled while :meth:`watching`.

    ``scope`` is called when AOTAutograd captures the compilers; it returns a context that is entered around every later
    call of them (a backward compiles long after the forward's configuration scope has ended). ``named`` finds the
    Dynamo backend of a name that ``torch.compile`` was given.
    """

    def __init__(
        self,
        scope: Callable[[], Callable[[], contextlib.AbstractContextManager[Any]]],
        whose: Ownership,
        named: Callable[[Callable[..., Any], Any], Any],
    ) -> None:
        self._log = CounterLog()
        self.graphs: list[ObservedGraph] = []
        self.sources: list[GeneratedSource] = []
        self.compile_times: list[CompileTime] = []
        self.called_compiled_region = False
        self.loaded_code = False
        self.misspelt_annotations: dict[str, None] = {}
        #: Names of regions in Dynamo's graphs, of those as well that the backend raised at.
        self.annotated_regions: dict[str, None] = {}
        self.listeners: list[CompileListener] = []
        self._scope = scope
        self._whose = whose
        self._named = named
        self._local = threading.local()
        self._forbidden = self._traces_forbidden = 0
        #: Code of which the backend under test compiled something, until the harness restarts.
        self.compiled: set[types.CodeType] = set()
        self._cache_events = BackendCacheEvents()
        self.left_by_backend = CompileLeaks()

    # Reading

    @property
    def log(self) -> CounterLog:
        """What moved which counter, up to this moment."""
        self.flush()
        return self._log

    def flush(self) -> None:
        """Count what caches of backends reported outside of Dynamo's calls; call it before counters are cleared."""
        for outcome, cause in self._cache_events.unreported():
            self._log.count(OUTCOMES[outcome], cause)

    def graph_records(self, mark: int = 0) -> tuple[GraphRecord, ...]:
        """Return the graphs observed since ``mark`` (a number of graphs)."""
        return tuple(graph.record() for graph in self.graphs[mark:])

    def code(self, mark: int = 0) -> GeneratedCode:
        """Return the code generated or loaded since ``mark`` (a number of sources)."""
        return GeneratedCode(tuple(self.sources[mark:]))

    def others_that_compiled(self) -> tuple[str, ...]:
        """Return the names of Dynamo backends, other than the one under test, that were handed a graph or compiled."""
        found = (event.other for event in self.log.since() if event.other and event.counter != "traces")
        return tuple(dict.fromkeys(found))

    # Watching

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Patch every compile stage while the context lasts."""
        wrappers = {name: getattr(self, f"_on_{name}") for name in patching.COMPILE_STAGES}
        self._cache_events.reset_baseline()
        with patching.patched_stages(wrappers), runs_reported_to(self.pass_ran):
            yield

    @contextlib.contextmanager
    def forbidding(self, *, traces: bool = True) -> Iterator[None]:
        """Make any compile of a graph an error while the context lasts, and any trace, unless ``traces`` is false."""
        self._forbidden += 1
        self._traces_forbidden += traces
        try:
            yield
        finally:
            self._forbidden -= 1
            self._traces_forbidden -= traces

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Keep what compiles inside out of the test's counters, graphs, code, compile times and listeners.

        What other threads compile meanwhile is not recorded either.
        """
        recorded: tuple[list[Any], ...] = (self.graphs, self.sources, self.compile_times)
        mark, lengths = self.log.mark(), [len(records) for records in recorded]
        called, loaded, listeners = self.called_compiled_region, self.loaded_code, self.listeners
        self.listeners = []
        try:
            yield
        finally:
            self.log.drop_since(mark)
            for records, length in zip(recorded, lengths, strict=True):
                del records[length:]
            self.called_compiled_region, self.loaded_code, self.listeners = called, loaded, listeners

    @contextlib.contextmanager
    def from_zero(self, *listeners: CompileListener) -> Iterator[None]:
        """Count and record what compiles inside from zero, for these listeners; afterwards all is as it was."""
        self.flush()
        kept = (self._log, self.graphs, self.sources, self.compile_times)
        with self.paused():
            self._log, self.graphs, self.sources, self.compile_times = CounterLog(), [], [], []
            self.listeners = [*listeners]
            self.called_compiled_region = self.loaded_code = False
            try:
                yield
            finally:
                self.flush()
                self._log, self.graphs, self.sources, self.compile_times = kept

    def _refuse(self, what: str, remedy: str = "") -> None:
        if self._forbidden:
            raise CompileForbiddenError(
                f"{what} inside no_compile(): everything here was expected to be compiled or loaded already{remedy}"
            )

    @contextlib.contextmanager
    def listened_to_by(self, listener: CompileListener) -> Iterator[None]:
        """Have ``listener`` see what compiles while the context lasts."""
        listeners = self.listeners
        listeners.append(listener)
        try:
            yield
        finally:
            listeners.remove(listener)

    # The stack

    @property
    def _stack(self) -> list[Frame]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[Frame] = self._local.stack
        return stack

    @contextlib.contextmanager
    def _frame(self, frame: Frame) -> Iterator[None]:
        self._stack.append(frame)
        try:
            yield
        finally:
            self._stack.pop()

    def _inside(self, *kinds: str) -> Frame | None:
        return next((frame for frame in reversed(self._stack) if frame.kind in kinds), None)

    @property
    def _nested(self) -> bool:
        return self._inside("graph", "region") is not None

    def innermost(self) -> Frame:
        """Return the graph or region that is being compiled; one of kind ``none`` outside all."""
        return self._inside("graph", "region") or Frame("none")

    def _count(self, counter: str, cause: str) -> None:
        prefix = "region_" if self._nested and not counter.startswith("region") else ""
        self._log.count(prefix + counter, cause, self._other())

    def _other(self) -> str:
        """Return whose doing is what happens now, if it is not that of the backend under test."""
        frame = self._inside("graph", "backend")
        return frame.other if frame and frame.other and not self._whose.is_running() else ""

    # Dynamo

    def _on_stance(self, original: Callable[..., Any], callback: Any, *args: Any, **kwargs: Any) -> Any:
        used = original(callback, *args, **kwargs)
        compiles = used not in (None, False) and not dynamo.compile_disabled()
        if compiles or callback in (None, False) or self._whose.other(callback):
            return used
        if dynamo.compile_disabled():
            said = "torch._dynamo.config.disable is set (TORCH_COMPILE_DISABLE=1)"
        else:
            said = f"torch.compiler.set_stance({dynamo.compiler_stance().stance!r}) is in force"
        if used is not False:
            self._log.count("fallbacks", f"a compiled program ran eager when it was called: {said}")
            return used
        noted: list[types.CodeType] = []

        def note(code: types.CodeType) -> None:
            if not noted:
                self._log.count("fallbacks", f"nothing that is compiled fits this call of {_place(code)}: {said}")
            noted.append(code)

        return dynamo.only_cached(callback, note)

    def _on_frame(self, original: Callable[..., Any], code: Any, *args: Any, **kwargs: Any) -> Any:
        if self._traces_forbidden:
            remedy = (
                ". If Dynamo may translate code here as long as no graph is compiled, use no_compile(traces=True); "
                "assert_parity allows it for fullgraph=False"
            )
            self._refuse(f"Dynamo compiled {_place(code)}", remedy)
        return original(code, *args, **kwargs)

    def _on_trace(self, original: Callable[..., Any], code: Any, *args: Any, **kwargs: Any) -> Any:
        other = self._whose.other(args[4]) if len(args) > 4 else ""
        self._log.count("traces", _place(code), other)
        mark = self._log.mark()
        result = original(code, *args, **kwargs)
        if self.reached_backend(mark):
            self.compiled.add(code)
        return result

    def reached_backend(self, mark: int) -> bool:
        """Say whether the backend under test was handed anything, or had it in a cache, since ``mark`` of the log."""
        return any(event.counter in _REACHED and not event.other for event in self._log.since(mark))

    def _on_recompile_reasons(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        reasons = original(*args, **kwargs)
        failed = [str(reason) for reason in reasons or ["no failed guard found"]]
        # Compiling one function with another backend object is a first compile for that backend.
        own = [reason for reason in failed if "different backend" not in reason]
        if own:
            self._log.count("recompiles", own[0])
        return reasons

    def _on_recompile_limit(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        exceeded, limit = original(*args, **kwargs)
        if exceeded:
            self._log.count("fallbacks", f"torch._dynamo.config.{limit} was hit: the frame runs eager from here on")
        return exceeded, limit

    def _on_backend_call(self, original: Callable[..., Any], output_graph: Any, gm: Any, *rest: Any, **kw: Any) -> Any:
        other = self._whose.other(dynamo_backend_of(output_graph))
        return self.backend_call(gm, lambda: original(output_graph, gm, *rest, **kw), other)

    def backend_call(self, gm: Any, call: Callable[[], Any], other: str = "") -> Any:
        """Return what ``call`` returns, which hands ``gm`` to a Dynamo backend.

        ``other`` is the name of the backend if it is not the one under test.
        """
        self._refuse("a backend was handed a graph")
        frame = Frame("backend", gm=ObservedGraph.of("inference", gm), module=gm, other=other)
        with self._frame(frame), self.left_by_backend.around(other), runs_counted():
            self.note_passes()
            misspelt = (key for node in annotated.nodes_of(gm) for key in misspelt_marks(node))
            self.misspelt_annotations |= dict.fromkeys(misspelt)
            self.annotated_regions |= dict.fromkeys(name for name, _ in annotated.regions_in(gm))
            self.flush()
            mark = self._cache_events.mark()
            for listener in () if other else self.listeners:
                listener.backend_called(gm)
            result = call()
            for outcome, cause in self._cache_events.since(mark):
                self._note_outcome(outcome)
                self._count(OUTCOMES[outcome], cause)
        if not frame.made_graph:
            # The backend took Dynamo's graph as it is, without AOTAutograd.
            frame.gm.other = other
            self._add_graph(frame.gm)
        return result

    def _on_backend_name(self, original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
        return self._named(functools.partial(original, *args, **kwargs), backend)

    def _add_graph(self, graph: ObservedGraph) -> None:
        self.graphs.append(graph)
        self._log.count("graphs", f"{graph.kind} graph of {len(graph.ops)} ops", graph.other)
        for name, configs in graph.regions:
            said = f"{name} in the {graph.kind} graph" + (f" with {configs}" if configs != "[]" else "")
            self._log.count("regions", said, graph.other)

    # AOTAutograd

    def _on_aot_compile(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        state, capture, partition, *compilers = args
        self._refuse("AOTAutograd compiled a graph")
        if self._nested:
            return original(*args, **kwargs)
        backend = self._inside("backend")
        if backend:
            backend.made_graph = True
        scope = self._scope()
        other = self._other()
        first = "forward" if getattr(state, "needs_autograd", True) else "inference"
        kinds = (first, "backward", first)
        watched = [
            aot_autograd.compiler_like(compiler, self._watched(kind, compiler, scope, other)) if compiler else compiler
            for kind, compiler in zip(kinds, compilers, strict=False)
        ]
        return original(state, capture, partition, *watched, **kwargs)

    def _watched(
        self,
        kind: str,
        compiler: Callable[..., Any],
        scope: Callable[[], contextlib.AbstractContextManager[Any]],
        other: str,
    ) -> Callable[..., Any]:
        def compile_graph(gm: Any, example_inputs: Any) -> Any:
            self._refuse(f"AOTAutograd compiled a {kind} graph")
            graph = ObservedGraph.of(kind, gm)
            graph.other = other
            self._add_graph(graph)
            fallbacks = dynamo.regional_fallbacks()
            frame = Frame("graph", graph, tuple(graph.regions), other=other)
            with self.left_by_backend.around(other), scope(), runs_counted(), self._frame(frame):
                contexts = [listener.compiling_graph(kind, gm) for listener in self.listeners]
                result = observed(contexts, lambda: compiler(gm, example_inputs))
            graph.add_calls(annotated.compiled_calls_in(result))
            self.called_compiled_region |= not other and annotated.holds_compiled_region(result)
            for _ in range(dynamo.regional_fallbacks() - fallbacks):
                self._log.count("fallbacks", f"a region of the {kind} graph did not compile and runs eager")
            return result

        return compile_graph

    def _on_aot_lookup(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = dict(dynamo.aot_counters())
        self._local.bypass, self._local.missed = "no reason given", ""
        with self._frame(Frame("lookup")):
            result = original(*args, **kwargs)
        outcomes = moved(before)
        self._cache_events.record_outcomes(outcomes)
        if outcomes["miss"] and not self._nested:
            texts = self._local.texts = pytorchs_texts(looked_up(*args, **kwargs).pytorchs_key)
            self._local.missed = why_missed(caches.inductor_cache_dir(), texts)
        for outcome, counter in OUTCOMES.items():
            if outcomes[outcome] <= 0:
                continue
            if not self._nested:
                self._note_outcome(outcome)
            elif outcome == "miss":
                # Counted once, by the FX graph lookup that follows or, where there is none, by the code generation.
                self.innermost().lookup_pending = True
                continue
            cause = f"AOTAutograd cache, {self.innermost()}"
            if outcome == "bypass":
                cause = f"AOTAutograd cache: {self._local.bypass}"
            elif outcome == "miss" and self._local.missed:
                cause += f"; {self._local.missed}"
            self._count(counter, cause)
        return result

    def _note_outcome(self, outcome: str) -> None:
        """Note how the lookup of the whole Dynamo graph's result ended: ``hit``, ``miss`` or ``bypass``."""
        backend = self._inside("backend")
        if backend and outcome != "saved":
            backend.dynamo_graph.outcome = outcome
            backend.made_graph |= outcome == "hit"

    def _on_aot_key(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            # Noted, never handled: AOTAutograd turns it into a bypass and forgets the reason.
            self._local.bypass = f"{type(error).__name__}: {error}"
            raise

    def _on_aot_save(self, original: Callable[..., Any], key: str, *args: Any, **kwargs: Any) -> Any:
        before = dict(dynamo.aot_counters())
        result = original(key, *args, **kwargs)
        outcomes = moved(before)
        self._cache_events.record_outcomes(outcomes)
        if outcomes["saved"] > 0:
            self._count("cache_saves", f"AOTAutograd cache, {self.innermost()}")
            if not self._nested:
                keep_texts(caches.inductor_cache_dir(), key, getattr(self._local, "texts", {}))
        return result

    # Inductor

    def _on_standalone_compile(self, original: Callable[..., Any], gm: Any, *args: Any, **kwargs: Any) -> Any:
        self._refuse("Inductor was handed a region")
        with self._frame(self._region_frame(gm)):
            inputs = kwargs["example_inputs"] if "example_inputs" in kwargs else args[0]
            contexts = [listener.compiling_region(gm, inputs) for listener in self.listeners]
            return observed(contexts, lambda: original(gm, *args, **kwargs))

    def region_reported(self, subgraph: Any, outcome: str) -> None:
        """Note a region that a compiler other than Inductor dealt with; ``outcome`` as :func:`report_region`."""
        if outcome == "compiled":
            self._refuse("the backend compiled a region")
        frame = self._region_frame(subgraph)
        if outcome in REPORTED:
            self._log.count(REPORTED[outcome], f"reported by the backend: {frame}", self._other())
        self.called_compiled_region |= not self._other()

    def _region_frame(self, gm: Any) -> Frame:
        """Return the frame of a region that is compiled on its own, which counts as a partition of its graph."""
        outer, backend = self._inside("graph"), self._inside("backend")
        graph = outer.graph if outer else (backend.gm if backend else None)
        regions = tuple(annotated.regions_in(gm)) or (outer.regions if outer else ())
        if graph:
            graph.add_partition(regions)
        return Frame("region", graph, regions)

    def _on_fx_key(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        key, info = original(*args, **kwargs)
        if key is None:
            self.innermost().lookup_pending = False
            reason = info.get("cache_bypass_reason", "unknown")
            self._log.count("region_cache_bypasses", f"FX graph cache: {reason}", self._other())
        return key, info

    def _on_fx_lookup(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        compiled, info = original(*args, **kwargs)
        frame = self.innermost()
        frame.lookup_pending = False
        # Inside a lookup of AOTAutograd's cache a miss counts as that lookup's, and so does a hit of a region.
        if not self._inside("lookup") or (compiled is not None and not self._nested):
            counter = "region_cache_hits" if compiled is not None else "region_cache_misses"
            self._log.count(counter, f"FX graph cache, {frame}", self._other())
        return compiled, info

    def _on_code_loaded(self, original: Callable[..., Any], compiled: Any, *args: Any, **kwargs: Any) -> Any:
        self.loaded_code |= not self._other()
        self._add_source(compiled, loaded=True)
        return original(compiled, *args, **kwargs)

    def _on_codegen(self, original: Callable[..., Any], gm: Any, *args: Any, **kwargs: Any) -> Any:
        self._refuse("Inductor generated code")
        frame = self.innermost()
        if self._inside("backend", "graph") and not self._whose.spec.inductor and not self._other():
            self._log.count("fallbacks", f"the backend handed {frame} to Inductor")
        if frame.lookup_pending:
            frame.lookup_pending = False
            self._log.count("region_cache_misses", f"AOTAutograd cache, {frame}", self._other())
        if frame.kind == "graph" and frame.graph:
            frame.graph.add_partition(tuple(annotated.regions_in(gm)) or frame.regions)
        began = time.perf_counter()
        with recording_launches(gm) as launches:
            compiled = original(gm, *args, **kwargs)
        self.compile_times.append(CompileTime(time.perf_counter() - began, str(frame)))
        self._log.count("region_compiles", f"code generation for {frame}", self._other())
        self._add_source(compiled, loaded=False, launches=launches)
        for listener in self.listeners:
            listener.code_generated(launches)
        return compiled

    def _on_pre_grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with runs_counted():
            return original(*args, **kwargs)

    def note_passes(self) -> None:
        """Note the counting passes that are configured for the Dynamo graph being compiled, whether they run or not."""
        backend = self._inside("backend")
        for custom in config.pre_grad_custom_passes():
            if backend and isinstance(custom, PassCounts):
                backend.dynamo_graph.runs_of(custom)

    def pass_ran(self, name: str, custom: Any = None, graph: Any = None) -> None:
        """Count one run of the pre-grad pass called ``name``, for the Dynamo graph or the region being compiled.

        ``custom`` is the pass, and ``graph`` what it ran on: a body of an operator there is not counted.
        """
        counting = custom if isinstance(custom, PassCounts) else None
        backend = self._inside("backend")
        if backend and not self._nested:
            body = is_body(graph, backend.module)
            if counting is not None:
                runs = backend.dynamo_graph.runs_of(counting)
                runs.body_calls += body
                runs.calls += not body
            if body:
                return
        self._count("pre_grad_calls", f"{name} ran")
        if counting is not None and self._nested:
            counting.region_calls += 1

    def _add_source(self, compiled: Any, *, loaded: bool, launches: Sequence[RawLaunch] = ()) -> None:
        text = getattr(compiled, "source_code", None)
        if not isinstance(text, str):
            return
        frame = self.innermost()
        names = tuple(dict.fromkeys(name for name, _ in frame.regions))
        kind = frame.graph.kind if frame.graph else "unknown"
        origins = None if loaded else origins_of(launches, text)
        self.sources.append(GeneratedSource(kind, names, text, loaded, origins))


def _place(code: types.CodeType) -> str:
    return f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
