"""The kernels of a graph, launch by launch: what is proved of each."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_regional._torch.triton import dtype_of_pointer, grid_of_inductor_kernel, jit_source
from pytest_regional.emulation.backend import Emulation, GeneratedGraph
from pytest_regional.emulation.launch import constants_of, named_arguments
from pytest_regional.verify.builder import UPDATE, WRITE
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.kernels import KernelRun, Pointer, run_kernel
from pytest_regional.verify.outcomes import COVERAGE, MEMORY, PROVED, RACES, REFUTED, UNKNOWN, Outcome
from pytest_regional.verify.properties import Question, Tensor, covered, decided, memory_safe, race_free, reachable
from pytest_regional.verify.replay import Replay
from pytest_regional.verify.sizes import Size, expression_of, largest
from pytest_regional.verify.symbols import Expression
from pytest_regional.verify.wrappers import SymbolicLaunch, View, graph_inputs, run_wrapper

# Addresses of a GPU have 49 bits at most, so no tensor is larger; its offsets, in 64 bits, do not overflow.
_LARGEST = 1 << 49

DEFAULT_SECONDS = 20.0

GRAPH = "all kernels of a graph"
"""Stands in the place of a kernel's name where nothing is known of the code that launches them."""


@dataclass(frozen=True)
class Verified:
    """What was found out about one launch of a kernel with one configuration.

    Attributes:
        kernel: the kernel's name.
        config: the configuration: block sizes.
        outcomes: one for each property, of coverage one for each argument that has to be written.
        seconds: how long it took.
        digest: of the kernel's text, its configuration and arguments, and what is known of the sizes; empty where
            nothing is known of the kernel.
    """

    kernel: str
    config: Mapping[str, Any]
    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0
    digest: str = ""


class Verification:
    """The graphs of a program, collected while they are compiled, verified afterwards.

    Attributes:
        seconds: for each kernel.
    """

    def __init__(self, seconds: float = DEFAULT_SECONDS) -> None:
        self.seconds = seconds
        self._waiting: list[tuple[Any, list[Any], list[Expression]]] = []
        self._found: list[Verified] = []

    def collect(self, graph: GeneratedGraph) -> None:
        """Remember a graph, with what guards say of its sizes now."""
        try:
            inputs, known = graph_inputs(graph.inputs)
        except NotVerifiableError as error:
            self._found.append(_nothing_of(GRAPH, str(error)))
        else:
            self._waiting.append((graph.call, inputs, known))

    def verified(self) -> list[Verified]:
        """Verify what was collected and return all that is known by now."""
        while self._waiting:
            call, inputs, known = self._waiting.pop(0)
            try:
                self._found += verify_graph(call, inputs, known, self.seconds)
            except NotVerifiableError as error:
                self._found.append(_nothing_of(GRAPH, str(error)))
        return list(self._found)

    def known(self) -> list[Verified]:
        """Return what was found out so far, without verifying more."""
        return list(self._found)


@contextlib.contextmanager
def verifying(emulation: Emulation, seconds: float = DEFAULT_SECONDS) -> Iterator[Verification]:
    """Collect the graphs whose code is generated inside."""
    made = Verification(seconds)
    emulation.observers.append(made.collect)
    try:
        yield made
    finally:
        emulation.observers.remove(made.collect)


def _nothing_of(kernel: str, reason: str) -> Verified:
    return Verified(kernel, {}, tuple(Outcome(p, UNKNOWN, reason) for p in (MEMORY, RACES, COVERAGE)))


def verify_graph(call: Any, inputs: Sequence[Any], known: Sequence[Expression], seconds: float) -> list[Verified]:
    """Verify the kernels that generated code launches, for all sizes.

    Args:
        call: the generated function.
        inputs: see :func:`~pytest_regional.verify.wrappers.run_wrapper`.
        known: what guards say of the sizes.
        seconds: for each kernel.

    Raises:
        NotVerifiableError: the generated code does something that is not known; nothing is proved of its kernels.
    """
    run = run_wrapper(call, inputs, named_arguments, lambda condition: decided(condition, known, seconds))
    return [
        _verified(launch, number, known, seconds)
        for launch in run.launches
        for number in range(len(launch.tuner.configs))
    ]


_KNOWN: dict[str, Verified] = {}


def _verified(launch: SymbolicLaunch, number: int, known: Sequence[Expression], seconds: float) -> Verified:
    """Return what is found out about one launch with one configuration; an equal one is verified once."""
    digest = _digest(launch, number, known, seconds)
    found = _KNOWN.get(digest)
    if found is None:
        started = time.perf_counter()
        found = _verify(launch, number, known, seconds)
        found = _KNOWN[digest] = replace(found, seconds=time.perf_counter() - started, digest=digest)
    return found


def _digest(launch: SymbolicLaunch, number: int, known: Sequence[Expression], seconds: float) -> str:
    tuner = launch.tuner
    parts = [jit_source(tuner.fn), tuner.triton_meta["signature"], tuner.configs[number].kwargs, seconds]
    storages: dict[int, int] = {}
    for name, value in launch.arguments.items():
        numbers: tuple[Any, ...] = (value,)
        if isinstance(value, View):
            place = storages.setdefault(id(value.storage), len(storages))
            numbers = (place, value.storage.given, value.start, *value.sizes, *value.strides)
        parts += [name, *(n.expression.sexpr() if isinstance(n, Size) else n for n in numbers)]
    parts += sorted(fact.sexpr() for fact in known)
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _verify(launch: SymbolicLaunch, number: int, known: Sequence[Expression], seconds: float) -> Verified:
    config = launch.tuner.configs[number]
    name, sizes = str(launch.tuner.fn.__name__), dict(config.kwargs)
    try:
        question, outputs = question_of(launch, config, known, seconds)
        problem = "" if reachable(question) else "what is known of the kernel contradicts itself"
    except NotVerifiableError as error:
        problem = str(error)
    if problem:
        return replace(_nothing_of(name, problem), config=sizes)
    replayed = functools.partial(_replayed, launch, question, number)
    memory, races = replayed(memory_safe(question)), replayed(race_free(question))
    if memory.verdict == races.verdict == PROVED:
        covers = [replayed(covered(question, argument), argument) for argument in outputs]
    else:
        covers = [Outcome(COVERAGE, UNKNOWN, "it is proved by counting accesses that are safe") for _ in outputs]
    return Verified(name, sizes, (memory, races, *covers))


def _replayed(launch: SymbolicLaunch, question: Question, number: int, outcome: Outcome, argument: str = "") -> Outcome:
    """Return a refutation with what the emulator says to it; if it finds nothing, nothing is known."""
    if outcome.verdict != REFUTED or outcome.counterexample is None:
        return outcome
    try:
        fault = Replay(launch, question, outcome.counterexample).fault(outcome.property, number, argument)
    except (NotVerifiableError, KeyError, MemoryError) as error:
        return replace(outcome, verdict=UNKNOWN, reason=f"{outcome.reason}; no replay: {error}")
    if fault is None:
        return replace(outcome, verdict=UNKNOWN, reason=f"{outcome.reason}; a replay finds no fault")
    return replace(outcome, reason=f"{outcome.reason}: {fault}")


def question_of(
    launch: SymbolicLaunch, config: Any, known: Sequence[Expression], seconds: float
) -> tuple[Question, list[str]]:
    """Run a kernel on symbols; return the questions about it, and which arguments it has to fill."""
    tuner = launch.tuner
    signature = tuner.triton_meta["signature"]
    tensors: dict[str, Tensor] = {}
    arguments: dict[str, Any] = dict(constants_of(tuner, config))
    numbers: dict[str, Any] = {"max": largest}
    for name, value in launch.arguments.items():
        if isinstance(value, View):
            tensors[name] = value.tensor(dtype_of_pointer(signature[name]))
            arguments[name] = Pointer(name)
        elif isinstance(value, (Size, int)) and not isinstance(value, bool):
            numbers[name] = value
            arguments[name] = expression_of(value)
        elif isinstance(value, (bool, float)) or value is None:
            arguments[name] = value
        elif isinstance(value, torch.Tensor):
            raise NotVerifiableError(f"argument {name} is a tensor of the module")
        else:
            raise NotVerifiableError(f"argument {name} is a {type(value).__name__}")
    sizes = grid_of_inductor_kernel(tuner.inductor_meta, config, numbers)
    grid = [expression_of(size) for size in sizes]
    run = run_kernel(tuner.fn, arguments, signature, grid)
    fits = [tensor.span() * tensor.width <= _LARGEST for tensor in tensors.values()]
    return Question(run, tensors, [*known, *fits], seconds), _filled(launch, run)


def _filled(launch: SymbolicLaunch, run: KernelRun) -> list[str]:
    """Return the arguments that a kernel writes first of all that use their buffers."""
    written = {access.argument: access.kind for access in run.accesses if access.kind in (WRITE, UPDATE)}
    return [
        name
        for name, kind in written.items()
        if kind == WRITE and isinstance(view := launch.arguments.get(name), View) and not view.storage.given
    ]
