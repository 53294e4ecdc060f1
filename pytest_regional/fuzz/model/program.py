"""The program model: what a fuzzed program is, as immutable data.

A program is a list of steps over numbered values. Each step says everything about itself: its operator, what it reads,
its parameters, and the contexts (regions, autocast, ...) that it stands in, so that taking one away leaves the others
as they are. Values are numbered by their makers, arguments first; numbers need not be contiguous.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.source import function_of, make_inputs, source_of
from pytest_regional.fuzz.settings import ProgramSetting

if TYPE_CHECKING:
    import torch

Parameter: TypeAlias = "bool | int | float | str | tuple[Parameter, ...] | None"


@dataclass(frozen=True)
class Region:
    """A region annotation.

    Attributes:
        name: the region id; None leaves it out, which is the default region.
        configs: Inductor settings of this region.
        after: ids of regions that have to run first.
    """

    name: str | int | None = "a"
    configs: tuple[tuple[str, Parameter], ...] = ()
    after: tuple[str | int, ...] = ()

    @property
    def source(self) -> str:
        """The context manager as Python source."""
        mark: dict[str, Any] = {}
        if self.name is not None:
            mark["inductor_region"] = self.name
        if self.configs:
            mark["inductor_configs"] = dict(self.configs)
        if self.after:
            mark["inductor_after"] = list(self.after)
        return f'annotate({{"compile_with_inductor": {_literal(mark)}}})'


@dataclass(frozen=True)
class Context:
    """Another context manager around steps.

    Attributes:
        kind: ``"autocast"`` (to bfloat16), ``"no_grad"``, or ``"tag"``: an annotation that asks for nothing.
    """

    kind: Literal["autocast", "no_grad", "tag"]

    @property
    def source(self) -> str:
        """The context manager as Python source."""
        return CONTEXT_SOURCES[self.kind]


#: Source of the context managers, by kind.
CONTEXT_SOURCES = {
    "autocast": "torch.autocast(x0.device.type, torch.bfloat16)",
    "no_grad": "torch.no_grad()",
    "tag": 'annotate({"note": "not for a compiler"})',
}

Scope: TypeAlias = "tuple[Region | Context, ...]"


@dataclass(frozen=True)
class Step:
    """One statement.

    Attributes:
        operator: a name of the operator table.
        operands: numbers of the values that it reads or writes.
        parameters: names and values of what else its source needs.
        results: numbers of the values that it makes; none for a statement that only writes.
        scope: contexts around it, outermost first; neighbours with a common beginning share them.
        blocks: numbers of the blocks that it calls.
    """

    operator: str
    operands: tuple[int, ...] = ()
    parameters: tuple[tuple[str, Parameter], ...] = ()
    results: tuple[int, ...] = ()
    scope: Scope = ()
    blocks: tuple[int, ...] = ()

    @property
    def regions(self) -> tuple[Region, ...]:
        """The region annotations around it, outermost first."""
        return tuple(context for context in self.scope if isinstance(context, Region))

    @property
    def region(self) -> Region | None:
        """The annotation that holds for it: the innermost wins, settings not named there stay."""
        return self.regions[-1] if self.regions else None

    @property
    def contexts(self) -> tuple[Context, ...]:
        """The contexts around it that are no regions, outermost first."""
        return tuple(context for context in self.scope if isinstance(context, Context))


@dataclass(frozen=True)
class Block:
    """A function that a program defines and calls, from several places or through a higher-order operator.

    Attributes:
        parameters: numbers of its own values that it is called with.
        steps: its body.
        result: number of the value that it returns; of the first parameter's shape and dtype.
    """

    parameters: tuple[int, ...]
    steps: tuple[Step, ...]
    result: int


@dataclass(frozen=True)
class Program:
    """An annotated program: callable, printable, hashable.

    Attributes:
        arguments: its inputs; argument ``i`` is value ``i``.
        steps: its body.
        outputs: numbers of the values that it returns, in order; inputs, aliases and duplicates are allowed.
        blocks: functions that it calls.
        training: whether it is to be backpropagated through.
        dynamic: what ``torch.compile`` is told about dynamic shapes.
        partitioner: which of AOTAutograd's partitioners the backend is to take, ``"default"`` or ``"min_cut"``, by its
            variant of that name; None for what it takes by itself.
        settings: settings of the compiler that it is compiled and run under, by name, besides the defaults; see
            :mod:`pytest_regional.fuzz.settings`.
    """

    arguments: tuple[TensorInput, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    blocks: tuple[Block, ...] = ()
    training: bool = True
    dynamic: bool | None = None
    partitioner: str | None = None
    settings: tuple[ProgramSetting, ...] = ()
    function: Callable[..., Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Dynamo reads the attribute of an object that it guards on: it has to be there before the first call.
        object.__setattr__(self, "function", function_of(self))

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Run the program in eager."""
        return self.function(*inputs)

    def inputs(self, device: Any = "cpu", seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Return new inputs on ``device``; the same for the same seed."""
        return make_inputs(self.arguments, device, seed)

    @cached_property
    def source(self) -> str:
        """The program as Python source that needs only torch: ``program(...)`` and ``inputs(device, seed)``."""
        return source_of(self)

    def __str__(self) -> str:
        return self.source

    @property
    def identity(self) -> str:
        """A name of 16 hexadecimal digits: equal for programs that differ in the numbering of values only."""
        canonical = renumbered(self)
        parts = repr((canonical.arguments, canonical.steps, canonical.outputs, canonical.blocks))
        settings = repr(self.settings) if self.settings else ""
        rest = f"{self.training}{self.dynamic}{self.partitioner or ''}{settings}"
        return hashlib.sha256(f"{parts}{rest}".encode()).hexdigest()[:16]

    @property
    def trains(self) -> bool:
        """Whether it is backpropagated through."""
        return self.training and any(argument.requires_grad for argument in self.arguments)

    def all_steps(self) -> Iterator[Step]:
        """Yield the steps, those of blocks included."""
        yield from self.steps
        for block in self.blocks:
            yield from block.steps

    @property
    def regions(self) -> tuple[Region, ...]:
        """The different region annotations that hold for some step, in order of first appearance."""
        found = (step.region for step in self.all_steps())
        return tuple(dict.fromkeys(region for region in found if region is not None))

    @property
    def operators(self) -> tuple[str, ...]:
        """The different operators, in order of first appearance."""
        return tuple(dict.fromkeys(step.operator for step in self.all_steps()))

    def with_steps(self, steps: tuple[Step, ...]) -> Program:
        """Return the program with another body."""
        return replace(self, steps=steps)


def renumbered(program: Program) -> Program:
    """Return ``program`` with values numbered in the order in which they are made."""
    numbers = {index: index for index in range(len(program.arguments))}
    steps = _renumber_steps(program.steps, numbers)
    outputs = tuple(numbers[value] for value in program.outputs)
    blocks = []
    for block in program.blocks:
        numbers = {value: index for index, value in enumerate(block.parameters)}
        inner = _renumber_steps(block.steps, numbers)
        blocks.append(Block(tuple(range(len(block.parameters))), inner, numbers[block.result]))
    return replace(program, steps=steps, outputs=outputs, blocks=tuple(blocks))


def _renumber_steps(steps: tuple[Step, ...], numbers: dict[int, int]) -> tuple[Step, ...]:
    renamed = []
    for step in steps:
        operands = tuple(numbers[value] for value in step.operands)
        for value in step.results:
            numbers[value] = len(numbers)
        renamed.append(replace(step, operands=operands, results=tuple(numbers[value] for value in step.results)))
    return tuple(renamed)


def _literal(value: Any) -> str:
    """Return Python source of plain data, with double quotes as formatters leave them."""
    if isinstance(value, str):
        quoted = {'"': '\\"', "'": "'"}  # Python's own literals write these otherwise
        return '"' + "".join(quoted.get(char) or repr(char)[1:-1] for char in value) + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)
