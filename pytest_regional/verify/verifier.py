"""The kernels of a graph, launch by launch: what is proved of each, and of the buffers between them.

The order of launches is the same for all sizes, as the generated code has no branches on them. Sizes decide how much of
a buffer a kernel writes: that is proved kernel by kernel, and asked for here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_regional._torch.triton import dtype_of_pointer, grid_of_inductor_kernel, jit_key, jit_source, kernel_type
from pytest_regional.emulation.backend import Emulation, GeneratedGraph
from pytest_regional.emulation.launch import GRID_LIMITS, constants_of, named_arguments
from pytest_regional.verify.builder import READ, UPDATE, WRITE
from pytest_regional.verify.kernels import KernelRun, Pointer, run_kernel
from pytest_regional.verify.outcomes import (
    BUFFERS,
    COVERAGE,
    MEMORY,
    PROVED,
    RACES,
    REFUTED,
    UNKNOWN,
    NotVerifiableError,
    Outcome,
    Store,
    keep,
    kept,
)
from pytest_regional.verify.properties import covered, filled, memory_safe, race_free
from pytest_regional.verify.question import Question, Tensor, decided, reachable
from pytest_regional.verify.replay import Replay, fault_of_graph
from pytest_regional.verify.symbols import Size, expression_of, largest, range_of
from pytest_regional.verify.wrappers import (
    Contents,
    Graph,
    OperatorCall,
    Storage,
    SymbolicLaunch,
    View,
    WrapperRun,
    graph_of,
    run_wrapper,
)


@dataclass(frozen=True)
class Effects:
    """What a launch does to its tensor arguments, by their names; None where it is not known."""

    reads: frozenset[str] | None = None
    writes: frozenset[str] | None = None
    updates: frozenset[str] = frozenset()


class BufferFlow:
    """The buffers of one graph, step by step.

    Attributes:
        refuted: a read of what is not there, in words; empty if there is none.
        required: for each launch, by its order, the arguments of which it has to write every element.
        partial: buffers of which several tensors are written, for each a sequence; all of a buffer is read later.
    """

    def __init__(
        self,
        run: WrapperRun,
        effects: Mapping[int, Effects],
        donated: Iterable[int],
        updated: Mapping[int, bool] | None = None,
    ) -> None:
        self.refuted = ""
        self.required: dict[int, list[str]] = {}
        self.partial: list[tuple[View, Sequence[View]]] = []
        # Whose contents each storage holds, and by what the contents of a buffer were overwritten.
        self._holds: dict[Storage, Contents] = {}
        self._overwritten: dict[Contents, str] = {}
        # Of the contents that are not complete: the places that were written.
        self._written: dict[Contents, dict[tuple[str, ...], View]] = {}
        self._unknown: list[str] = []
        self._donated = set(donated)
        self._replaced = {run.inputs[number].contents for number, whole in (updated or {}).items() if whole}
        for step in run.steps:
            if isinstance(step, OperatorCall):
                self._operator(step)
            else:
                self._launch(step, effects.get(step.order, Effects()))
        for view in run.outputs:
            self._read(view, "the caller", in_place=False)
        places = [one for written in self._written.values() for one in written.values()]
        for view in (run.inputs[number] for number in updated or {}):
            if not _is_empty(view) and not any(one.storage is view.storage for one in places):
                self._refute(f"nothing is written to {view.contents.name}, which the graph changes")
        kept = sorted(set(run.reused_inputs) - self._donated)
        if kept:
            self._unknown.append(f"the memory of inputs that are not donated is used again: {kept}")

    def outcome(self) -> Outcome:
        """Return what is known without asking about sizes."""
        if self.refuted:
            return Outcome(BUFFERS, REFUTED, self.refuted)
        if self._unknown:
            return Outcome(BUFFERS, UNKNOWN, self._unknown[0])
        return Outcome(BUFFERS, PROVED)

    def _operator(self, step: OperatorCall) -> None:
        for view in step.reads:
            self._read(view, step.name, in_place=False)
        for view in step.writes:
            if any(view.storage is read.storage and view.contents is not read.contents for read in step.reads):
                self._refute(f"{step.name} writes {view.contents.name} into memory that it reads")
            self._write(view, step.name)

    def _launch(self, step: SymbolicLaunch, effects: Effects) -> None:
        name = str(step.tuner.fn.__name__)
        views = {key: value for key, value in step.arguments.items() if isinstance(value, View)}
        if effects.reads is None or effects.writes is None:
            self._unknown.append(f"what {name} reads and writes is not known")
            for view in views.values():
                self._write(view, name)
                view.contents.complete = True
            return
        for argument in sorted(effects.reads & views.keys()):
            self._read(views[argument], name, in_place=argument in effects.writes)
        for argument in sorted((effects.writes | effects.updates) & views.keys()):
            view = views[argument]
            written = view.place() in self._written.get(view.contents, {})
            complete = view.contents.complete or written
            # Of an input that the graph replaces it writes each element.
            whole = view.storage.whole
            replaces = view.contents in self._replaced and whole is not None and whole.place() == view.place()
            if argument in effects.writes and (not complete or (replaces and not written)):
                self.required.setdefault(step.order, []).append(argument)
            if argument in effects.updates and not complete and argument not in effects.writes:
                self._refute(f"{name} updates {view.contents.name} before anything was written to it")
            self._write(view, name)

    def _write(self, view: View, by: str) -> None:
        contents, held = view.contents, self._holds.get(view.storage)
        if held is not None and held is not contents:
            self._overwritten[held] = by
        elif held is None and contents.before is not None:
            self._overwritten[contents.before] = by
        self._holds[view.storage] = contents
        self._written.setdefault(contents, {})[view.place()] = view

    def _read(self, view: View, by: str, in_place: bool) -> None:
        contents = view.contents
        if _is_empty(view):
            return
        if contents in self._overwritten:
            self._refute(f"{by} reads {contents.name}, which {self._overwritten[contents]} overwrote")
            return
        places = self._written.get(contents, {})
        if contents.complete or view.place() in places:
            return
        if not places and contents.before is not None and in_place:
            # Its memory is that of a buffer which is read for the last time here.
            before = View(view.storage, contents.before, view.sizes, view.strides, view.start, view.dtype)
            self._read(before, by, in_place=False)
            return
        if not places:
            self._refute(f"{by} reads {contents.name} before anything was written to it")
            return
        whole = view.storage.whole
        if whole is None or whole.place() not in places:
            self.partial.append((view, list(places.values())))

    def _refute(self, what: str) -> None:
        self.refuted = self.refuted or what


def _is_empty(view: View) -> bool:
    return 0 in [size for size in view.sizes if isinstance(size, int)]


# Addresses of a GPU have 49 bits at most, so no tensor is larger; its offsets, in 64 bits, do not overflow.
_LARGEST = 1 << 49

DEFAULT_SECONDS = 20.0

GRAPH = "all kernels of a graph"
"""Stands in the place of a kernel's name where nothing is known of the code that launches them."""

BUFFERS_OF_GRAPH = "buffers of a graph"
"""Stands in the place of a kernel's name for what holds between kernels."""


@dataclass(frozen=True)
class Verified:
    """What was found out about one launch of a kernel with one configuration.

    Attributes:
        kernel: the kernel's name.
        config: the configuration: block sizes.
        outcomes: one for each property, of coverage one for each argument that has to be written.
        seconds: how long it took, whenever it was found out.
        digest: of the kernel's text, its configuration and arguments, and what is known of the sizes; empty where
            nothing is known of the kernel.
    """

    kernel: str
    config: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0
    digest: str = ""


@dataclass
class Verification:
    """The kernels of a program, collected while they are compiled, verified afterwards.

    Attributes:
        seconds: for each kernel.
    """

    seconds: float = DEFAULT_SECONDS
    _waiting: list[Callable[[], list[Verified]]] = field(default_factory=list)
    _found: list[Verified] = field(default_factory=list)

    def later(self, verify: Callable[[], list[Verified]]) -> None:
        """Remember how to verify kernels whose code is there now."""
        self._waiting.append(verify)

    def verified(self) -> list[Verified]:
        """Verify what was collected and return all that is known by now."""
        while self._waiting:
            self._found += self._waiting.pop(0)()
        return list(self._found)

    def forget(self) -> None:
        """Forget kernels that were collected and not verified."""
        self._waiting.clear()

    def taken(self) -> list[Verified]:
        """Verify what was collected, return what was found out about it, and keep nothing of it."""
        kept, self._found = self._found, []
        try:
            return self.verified()
        finally:
            self._found = kept

    def known(self) -> list[Verified]:
        """Return what was found out so far, without verifying more."""
        return list(self._found)


@contextlib.contextmanager
def verifying(
    emulation: Emulation, seconds: float = DEFAULT_SECONDS, store: Store | None = None
) -> Iterator[Verification]:
    """Collect the graphs whose code is generated inside.

    Args:
        emulation: the GPU for which it is generated.
        seconds: for each kernel.
        store: what other processes found out is read there, and what is found out is kept; None for neither.
    """
    made = Verification(seconds)

    def collect(generated: GeneratedGraph) -> None:
        """Remember a graph, with what guards say of its sizes now."""
        try:
            graph = graph_of(generated)
        except NotVerifiableError as error:
            nothing = _nothing_of(GRAPH, str(error))
            made.later(lambda: [nothing])
        else:
            made.later(functools.partial(_verified_graph, graph, emulation, seconds, store))

    emulation.observers.append(collect)
    try:
        yield made
    finally:
        emulation.observers.remove(collect)


def _verified_graph(graph: Graph, emulation: Emulation, seconds: float, store: Store | None) -> list[Verified]:
    try:
        return verify_graph(graph, emulation, seconds, store)
    except NotVerifiableError as error:
        return [replace(_nothing_of(GRAPH, str(error)), digest=_digest_of_graph(graph))]


def _nothing_of(kernel: str, reason: str) -> Verified:
    return Verified(kernel, {}, tuple(Outcome(p, UNKNOWN, reason) for p in (MEMORY, RACES, COVERAGE)))


def verify_graph(
    graph: Graph, emulation: Emulation, seconds: float = DEFAULT_SECONDS, store: Store | None = None
) -> list[Verified]:
    """Verify the kernels that generated code launches, and its buffers, for all sizes.

    Args:
        graph: the code, and what is known of its inputs.
        emulation: the GPU for which it was generated; refutations are replayed there.
        seconds: for each kernel.
        store: where outcomes are kept.

    Raises:
        NotVerifiableError: the generated code does something that is not known; nothing is proved of its kernels.
    """
    run = run_wrapper(graph, named_arguments, functools.partial(decided, seconds=seconds))
    graph = replace(graph, known=run.known)
    kernels = {launch.order: _run_all(launch, seconds) for launch in run.launches}
    effects = {order: _effects(questions[0]) for order, questions in kernels.items()}
    flow = BufferFlow(run, effects, graph.donated, graph.updated)
    found = [
        _verified(launch, number, question, flow.required.get(launch.order, []), store)
        for launch in run.launches
        for number, question in enumerate(kernels[launch.order])
    ]
    return [*found, _verified_buffers(graph, flow, emulation, seconds)]


def _run_all(launch: SymbolicLaunch, seconds: float) -> list[Question | str]:
    """Run a kernel on symbols with each configuration; return the questions about it, or why there are none."""
    found: list[Question | str] = []
    for config in launch.tuner.configs:
        try:
            found.append(question_of(launch, config, seconds))
        except NotVerifiableError as error:
            found.append(str(error))
    return found


def _effects(question: Question | str) -> Effects:
    if isinstance(question, str):
        return Effects()
    names = {
        kind: frozenset(a.argument for a in question.run.accesses if a.kind == kind) for kind in (READ, WRITE, UPDATE)
    }
    return Effects(names[READ], names[WRITE], names[UPDATE])


_KNOWN: dict[tuple[str, float], Verified] = {}


def _verified(
    launch: SymbolicLaunch, number: int, question: Question | str, required: Sequence[str], store: Store | None
) -> Verified:
    """Return what is found out about one launch with one configuration; an equal one is verified once."""
    config = launch.tuner.configs[number]
    name, sizes = str(launch.tuner.fn.__name__), dict(config.kwargs)
    if isinstance(question, str):
        return replace(_nothing_of(name, question), config=sizes, digest=_digest(launch, sizes))
    rooms = [(name, tensor.room) for name, tensor in question.tensors.items()]
    known = sorted(fact.sexpr() for fact in question.sizes)
    allowed = question.run.equal_indices_allowed
    programs = [question.run.scope.bounds[program.decl().name()] for program in question.run.programs]
    digest = _digest(launch, sizes, required, rooms, programs, allowed, *known)
    key = digest, question.seconds
    found = _KNOWN.get(key)
    if found is None:
        # Of a kernel that calls what is not known only this process knows what it does.
        lasting = store if jit_key(launch.tuner.fn) else None
        earlier = None if lasting is None else kept(lasting, digest)
        if earlier is None:
            started = time.perf_counter()
            outcomes = tuple(_outcomes(launch, number, question, required))
            earlier = outcomes, time.perf_counter() - started
            if lasting is not None:
                keep(lasting, digest, *earlier)
        found = _KNOWN[key] = Verified(name, sizes, *earlier, digest)
    return found


def _digest(launch: SymbolicLaunch, sizes: Mapping[str, Any], *more: Any) -> str:
    tuner = launch.tuner
    parts = [
        jit_key(tuner.fn) or jit_source(tuner.fn),
        tuner.triton_meta,
        sorted(map(str, tuner.inductor_meta.items())),
        sizes,
        *more,
    ]
    storages: dict[int, int] = {}
    for name, value in launch.arguments.items():
        numbers: tuple[Any, ...] = (value,)
        if isinstance(value, View):
            place = storages.setdefault(id(value.storage), len(storages))
            numbers = (place, value.storage.given, value.dtype, value.start, *value.sizes, *value.strides)
        parts += [name, *(n.expression.sexpr() if isinstance(n, Size) else n for n in numbers)]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _outcomes(launch: SymbolicLaunch, number: int, question: Question, required: Sequence[str]) -> Iterator[Outcome]:
    question.start()
    replayed = functools.partial(_replayed, launch, question, number)
    memory, races = replayed(memory_safe(question)), replayed(race_free(question))
    # A counterexample is an access that happens; and where memory is not proved, nothing is.
    if memory.verdict == PROVED and races.verdict != REFUTED:
        try:
            reason, final = "" if reachable(question) else "what is known of the kernel contradicts itself", True
        except NotVerifiableError as error:
            reason, final = str(error), False
        if reason:
            yield from (Outcome(p, UNKNOWN, reason, final=final) for p in (MEMORY, RACES, COVERAGE))
            return
    if memory.verdict != PROVED and races.verdict == PROVED:
        reason = "an index may overflow, as memory safety is not proved"
        races = replace(races, verdict=UNKNOWN, reason=reason)
    safe = [memory, races]
    yield from safe
    for argument in required:
        if all(outcome.verdict == PROVED for outcome in safe):
            yield replayed(covered(question, argument), argument)
        else:
            yield Outcome(COVERAGE, UNKNOWN, "it is proved by counting accesses, and their safety is not proved")


def _verified_buffers(graph: Graph, flow: BufferFlow, emulation: Emulation, seconds: float) -> Verified:
    started = time.perf_counter()
    outcome = flow.outcome()
    if outcome.verdict == REFUTED:
        outcome = _after_replay(outcome, lambda: fault_of_graph(graph, emulation, seconds))
    elif outcome.verdict == PROVED:
        for view, parts in flow.partial:
            whole, name = view.storage.whole, view.contents.name
            dtype = None if whole is None else whole.dtype
            if whole is None or dtype is None or any(part.dtype != dtype for part in parts):
                outcome = Outcome(BUFFERS, UNKNOWN, f"{name} is filled by tensors of several types")
            else:
                outcome = filled(graph.known, whole.tensor(dtype), [part.tensor(dtype) for part in parts], seconds)
            if outcome.verdict != PROVED:
                break
    spent = time.perf_counter() - started
    return Verified(BUFFERS_OF_GRAPH, {}, (replace(outcome, seconds=spent),), spent, _digest_of_graph(graph))


def _digest_of_graph(graph: Graph) -> str:
    parts = [graph.source, *map(str, graph.inputs), *sorted(fact.sexpr() for fact in graph.known), str(graph.updated)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _replayed(launch: SymbolicLaunch, question: Question, number: int, outcome: Outcome, argument: str = "") -> Outcome:
    """Return a refutation with what the emulator says to it; if it finds nothing, nothing is known."""
    if outcome.verdict != REFUTED or outcome.counterexample is None:
        return outcome
    unbacked = sorted(launch.unbacked & outcome.counterexample.sizes.keys())
    if unbacked:
        # Data may not allow what the code does not assert.
        reason = f"{outcome.reason}; no replay: data determine {', '.join(unbacked)}"
        return replace(outcome, verdict=UNKNOWN, reason=reason)
    example = outcome.counterexample
    return _after_replay(outcome, lambda: Replay(launch, question, example).fault(outcome.property, number, argument))


def _after_replay(outcome: Outcome, replayed: Callable[[], str | None]) -> Outcome:
    try:
        fault = replayed()
    except (NotVerifiableError, KeyError, MemoryError) as error:
        return replace(outcome, verdict=UNKNOWN, reason=f"{outcome.reason}; no replay: {error}", final=False)
    if fault is None:
        return replace(outcome, verdict=UNKNOWN, reason=f"{outcome.reason}; a replay finds no fault", final=False)
    return replace(outcome, reason=f"{outcome.reason}: {fault}")


def question_of(launch: SymbolicLaunch, config: Any, seconds: float) -> Question:
    """Run a kernel on symbols; return the questions about it.

    Raises:
        NotVerifiableError: the kernel, or an argument, is outside of what is known.
    """
    tuner = launch.tuner
    signature = tuner.triton_meta["signature"]
    tensors: dict[str, Tensor] = {}
    arguments: dict[str, Any] = dict(constants_of(tuner, config))
    numbers: dict[str, Any] = {"max": largest}
    for name, value in launch.arguments.items():
        if signature.get(name) == "constexpr":
            arguments[name] = numbers[name] = int(value) if isinstance(value, Size) else value
        elif isinstance(value, View):
            tensors[name] = value.tensor(dtype_of_pointer(signature[name]))
            arguments[name] = Pointer(name)
        elif isinstance(value, (Size, int)) and not isinstance(value, bool):
            numbers[name] = value
            arguments[name] = expression_of(value)
        elif isinstance(value, (bool, float)) or value is None:
            arguments[name] = value
        else:
            kind = "tensor of the module" if isinstance(value, torch.Tensor) else type(value).__name__
            raise NotVerifiableError(f"argument {name} is a {kind}")
    sizes = grid_of_inductor_kernel(tuner.inductor_meta, config, numbers)
    grid = [expression_of(size) for size in sizes]
    run = run_kernel(tuner.fn, arguments, signature, grid, seconds=seconds)
    changing = _changing(run, tensors)
    if changing:
        run = run_kernel(tuner.fn, arguments, signature, grid, changing, seconds)
    kernel = str(tuner.fn.__name__)
    run.checks_indices = kernel.startswith("triton_") and not kernel.startswith("triton_tem_")
    run.equal_indices_allowed = not tuner.inductor_meta.get("atomic_add_found")
    fits = [tensor.span() * tensor.width <= _LARGEST for tensor in tensors.values()]
    # A larger grid is not launched at all.
    fits += [size <= limit for size, limit in zip(grid, GRID_LIMITS, strict=False)]
    question = Question(run, tensors, [*launch.known, *fits], seconds)
    question.numbers = {
        name: (arguments[name], *limits)
        for name in numbers.keys() & signature.keys()
        if signature[name] != "constexpr" and (limits := range_of(kernel_type(signature[name]).scalar)) is not None
    }
    return question


def _changing(run: KernelRun, tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the arguments of integers that a launch reads and whose memory it changes."""
    changed = {tensors[a.argument].storage for a in run.accesses if a.kind != READ and a.argument in tensors}
    read = {a.argument for a in run.accesses if a.kind == READ and a.argument in tensors}
    return frozenset(
        name for name in read if tensors[name].storage in changed and not tensors[name].dtype.is_floating_point
    )
