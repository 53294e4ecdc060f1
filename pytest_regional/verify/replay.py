"""Refutations run by the emulator: the kernel, on tensors of the sizes that were found, in the programs found."""

from __future__ import annotations

import mmap
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import z3

from pytest_regional._base.errors import OutOfTimeError
from pytest_regional._base.text import first_line
from pytest_regional.emulation.backend import Emulation
from pytest_regional.emulation.device import EmulationError, MemoryFaultError
from pytest_regional.emulation.device_rewrite import OperatorsOnCpu
from pytest_regional.emulation.launch import LaunchPlan, launch_inductor_kernel
from pytest_regional.emulation.memory import Memory
from pytest_regional.verify.outcomes import COVERAGE, RACES, Counterexample, NotVerifiableError
from pytest_regional.verify.question import Question, Tensor
from pytest_regional.verify.symbols import Size, evaluated, symbols_of
from pytest_regional.verify.wrappers import (
    ASSERTED,
    NAMED,
    REUSED,
    Graph,
    SymbolicLaunch,
    TensorInput,
    View,
    with_reuse_marked,
)

_MOST_TRACKED = 1 << 24
"""The most elements of a tensor of which it is remembered who wrote them."""

_LEAST_SHARE = 0.25
"""Of the time for a kernel: what its replay has at least, when questions have used up the rest."""

_NOT_RESERVED = 0x4000 if sys.platform == "linux" else 0
"""``MAP_NORESERVE``, which Python names from 3.13 on: memory that is not touched need not be there."""


@dataclass
class Replay:
    """One launch on tensors: what a refutation says happens.

    Attributes:
        sizes: for each symbolic size its number.
        tensors: the arguments, by name.
    """

    launch: SymbolicLaunch
    question: Question
    example: Counterexample

    def __post_init__(self) -> None:
        expressions = [value.expression for value in self.launch.arguments.values() if isinstance(value, Size)]
        for tensor in self.question.tensors.values():
            expressions += [tensor.start, *tensor.sizes, *tensor.strides]
        self.sizes = complete_sizes(self.question, self.example.sizes, symbols_of(expressions))
        self.memory = Memory()
        self.tensors: dict[str, torch.Tensor] = {}

    def fault(self, property: str, config: int, unwritten: str = "") -> str | None:
        """Return what the emulator says when the kernel runs, or None if it finds nothing.

        Args:
            property: the one that was refuted.
            config: the number of the kernel's configuration.
            unwritten: for coverage: the argument of which an element is said to stay unwritten.

        Raises:
            NotVerifiableError: the sizes are too large to be run, or there is no time left.
        """
        self.tensors = self._tensors(shared=property == RACES, tracked=unwritten)
        plan = LaunchPlan(config=config, programs=0, races=property == RACES)
        arguments = [self._argument(name, value) for name, value in self.launch.arguments.items()]
        programs = None if property == COVERAGE else list(dict.fromkeys(self.example.programs))
        try:
            least = time.process_time() + _LEAST_SHARE * self.question.seconds
            with self.memory.until(max(self.question.deadline, least)):
                launch_inductor_kernel(
                    self.launch.tuner, arguments, {}, memory=self.memory, plan=plan, programs=programs
                )
            if property == COVERAGE:
                self.memory.check_initialised(self.tensors[unwritten], "what comes next")
        except MemoryFaultError as fault:
            return str(fault)
        except OutOfTimeError as error:
            raise NotVerifiableError(str(error), final=False) from error
        except EmulationError:
            pass
        return None

    def _argument(self, name: str, value: Any) -> Any:
        if isinstance(value, View):
            return self.tensors[name]
        return int(evaluated(value.expression, self.sizes)) if isinstance(value, Size) else value

    def _tensors(self, shared: bool, tracked: str) -> dict[str, torch.Tensor]:
        """Return tensors that are zero except where the example says; those of one storage overlap if ``shared``.

        Of ``tracked`` it is remembered which elements are written.
        """
        given = (name for name, value in self.launch.arguments.items() if isinstance(value, View))
        described = {name: self.question.tensors[name] for name in given}
        storages: dict[str, torch.Tensor] = {}
        found = {}
        for name, tensor in described.items():
            dtype = tensor.dtype
            key = tensor.storage if shared else name
            if key not in storages:
                group = [t for other, t in described.items() if (t.storage if shared else other) == key]
                storages[key] = self._memory(group, dtype, shared, tracked == name)
            start = int(evaluated(tensor.start, self.sizes)) if shared else 0
            view = torch.empty(0, dtype=dtype)
            count = max(0, self._end(tensor, shared) - start)
            found[name] = view.set_(storages[key].untyped_storage(), start, (count,), (1,))
            if name in self.example.loaded:
                _fill(found[name], self.example.loaded[name])
            elif shared and dtype.is_floating_point:
                # What several lanes write into one element has to differ.
                found[name].copy_(torch.rand(found[name].shape, generator=torch.Generator().manual_seed(0)))
        return found

    def _memory(self, group: Sequence[Tensor], dtype: Any, shared: bool, tracked: bool) -> torch.Tensor:
        count = max(0, *(self._end(tensor, shared) for tensor in group))
        if (tracked or shared) and count > _MOST_TRACKED:
            raise NotVerifiableError(f"{count} elements are too many to remember who wrote them")
        if tracked:
            return self.memory.allocate((count,), (1,), dtype)
        if not count:
            return torch.empty(0, dtype=dtype)
        # Of what the system has set to zero already only what is touched takes memory.
        kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NOT_RESERVED
        try:
            memory = np.frombuffer(mmap.mmap(-1, count * dtype.itemsize, flags=kind), dtype=np.uint8)
        except OSError as error:
            raise NotVerifiableError(f"no memory for {count} elements") from error
        return torch.from_numpy(memory).view(dtype)

    def _end(self, tensor: Tensor, shared: bool) -> int:
        """Return how many elements of memory a tensor can reach, counted from its first if it has its own memory."""
        start, span = (int(evaluated(number, self.sizes)) for number in (tensor.start, tensor.span()))
        if any(int(evaluated(size, self.sizes)) <= 0 for size in tensor.sizes):
            span = 0
        room = start + span if tensor.room is None else int(evaluated(tensor.room, self.sizes))
        return min(start + span, room) - (0 if shared else start)


def _fill(tensor: torch.Tensor, values: Mapping[int | None, int]) -> None:
    """Put integers into the memory that ``tensor`` begins."""
    flat = torch.empty(0, dtype=tensor.dtype)
    count = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    flat.set_(tensor.untyped_storage(), 0, (count,), (1,))
    rest = values.get(None, 0)
    if rest and count > _MOST_TRACKED:
        raise NotVerifiableError(f"{count} integers are too many to set them")
    if rest:
        flat.fill_(rest)
    for place, value in values.items():
        if place is not None and 0 <= place < count:
            flat[place] = value


def complete_sizes(question: Question, sizes: Mapping[str, int], mentioned: Mapping[str, Any]) -> dict[str, int]:
    """Return a number for every symbolic size: those of ``sizes``, and others that the guards allow with them.

    Args:
        question: the kernel.
        sizes: numbers that are known.
        mentioned: the symbols that need one.

    Raises:
        NotVerifiableError: z3 finds none.
    """
    guards = Question.of_sizes(question.sizes, question.deadline - time.process_time())
    symbols = {**mentioned, **symbols_of(question.sizes)}
    fixed = [z3.Int(name) == value for name, value in sizes.items() if name in symbols]
    model = guards.smallest(fixed, list(symbols.values()))
    if model is None:
        raise NotVerifiableError("the sizes of a refutation contradict the guards")
    return {name: int(model.eval(symbol, model_completion=True).as_long()) for name, symbol in symbols.items()}


def fault_of_graph(graph: Graph, emulation: Emulation, seconds: float) -> str | None:
    """Run generated code on tensors, as it is and with separate memory for every buffer, and look at its inputs.

    Returns:
        what the emulator says, how the results differ, or which inputs are not changed; None if nothing is wrong.

    Raises:
        NotVerifiableError: z3 finds no sizes that the guards allow, or there is no time left.
    """
    begun = time.process_time()
    numbers = [
        number
        for value in graph.inputs
        for number in ((*value.sizes, *value.strides) if isinstance(value, TensorInput) else (value,))
    ]
    mentioned = symbols_of(filter(z3.is_expr, numbers))
    sizes = complete_sizes(Question.of_sizes(graph.known, seconds), {}, mentioned)
    given = _drawn(graph, sizes)
    try:
        with emulation.memory.until(max(begun + seconds, time.process_time() + _LEAST_SHARE * seconds)):
            used_again = _called(graph, list(given), emulation, lambda value, _: value)
            separate = _called(
                graph,
                _drawn(graph, sizes),
                emulation,
                lambda value, _: value.clone() if isinstance(value, torch.Tensor) else value,
            )
        not_updated = _not_updated(graph, given, sizes)
    except MemoryFaultError as fault:
        return str(fault)
    except OutOfTimeError as error:
        raise NotVerifiableError(str(error), final=False) from error
    except Exception as error:
        # An operator may refuse inputs that are drawn: a factorization, an index beyond the end.
        raise NotVerifiableError(f"generated code fails on drawn inputs: {first_line(error)}") from error
    differ = [
        number
        for number, (one, other) in enumerate(zip(used_again, separate, strict=True))
        if isinstance(one, torch.Tensor) and not torch.equal(one.nan_to_num(), other.nan_to_num())
    ]
    return f"outputs {differ} differ when each buffer has its own memory" if differ else not_updated


def _not_updated(graph: Graph, given: Sequence[Any], sizes: Mapping[str, int]) -> str | None:
    """Return which input still holds what was drawn, though the graph, run on the CPU, changes it; None if none does.

    Args:
        graph: the code, and the graph.
        given: the inputs after a run of the code.
        sizes: with which they were drawn.
    """
    drawn = _drawn(graph, sizes)
    same = [number for number in graph.updated if torch.equal(given[number], drawn[number])]
    if graph.module is None or not same:
        return None
    expected = list(drawn)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.fx.Interpreter(graph.module).run(*expected, enable_io_processing=False)
    changed = [number for number in same if not torch.equal(expected[number], given[number])]
    return f"inputs {changed} are not changed, as the graph on the CPU changes them" if changed else None


def _called(graph: Graph, inputs: list[Any], emulation: Emulation, reused: Callable[[Any, bool], Any]) -> Sequence[Any]:
    call = graph.call
    plain = getattr(call, "__func__", call)
    marked = graph.marked.get(plain) or with_reuse_marked(plain)
    names = {**plain.__globals__, REUSED: reused, NAMED: lambda _, value: value, ASSERTED: bool}
    made: Any = types.FunctionType(marked.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
    if plain is not call:
        made = types.MethodType(made, call.__self__)
    with (
        torch.random.fork_rng(devices=[]),
        OperatorsOnCpu(emulation.memory, emulation.device_mock),
        emulation.memory.undefined_allowed(graph.undefined),
    ):
        torch.manual_seed(0)
        returned: Sequence[Any] = made(inputs)
    for value in returned:
        if isinstance(value, torch.Tensor):
            emulation.memory.check_initialised(value, "the caller")
    return returned


def _drawn(graph: Graph, sizes: Mapping[str, int]) -> list[Any]:
    """Return inputs: floats are drawn, the same each time, integers are zero."""
    generator = torch.Generator().manual_seed(0)
    found: list[Any] = []
    for value in graph.inputs:
        if not isinstance(value, TensorInput):
            found.append(int(evaluated(value, sizes)) if z3.is_expr(value) else value)
            continue
        shape, strides = (
            [int(evaluated(n, sizes)) if z3.is_expr(n) else n for n in part] for part in (value.sizes, value.strides)
        )
        tensor = torch.empty_strided(shape, strides, dtype=value.dtype)
        kind = value.dtype.is_floating_point or value.dtype.is_complex
        found.append(tensor.copy_(torch.randn(shape, generator=generator)) if kind else tensor.zero_())
    return found
