"""Programs as Python source, and that source as functions: what is printed is what runs."""

from __future__ import annotations

import functools
import itertools
import linecache
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_regional.fuzz.model.arguments import CONTENT_SOURCES, TensorInput, assignments
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.settings import BY_NAME, MODULES

if TYPE_CHECKING:
    from pytest_regional.fuzz.model.program import Block, Program, Scope, Step
    from pytest_regional.fuzz.operators.operator import Operator

#: Source by name. Each defines that name with nothing but ``torch``, ``math``, ``annotate`` and other definitions.
DEFINITIONS: dict[str, str] = {
    "scale": """\
@torch.library.custom_op("regional_fuzz::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return (x * factor).contiguous()


@scale.register_fake
def scale_fake(x, factor):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def scale_setup(ctx, inputs, output):
    ctx.factor = inputs[1]


def scale_backward(ctx, gradient):
    return gradient * ctx.factor, None


scale.register_autograd(scale_backward, setup_context=scale_setup)
""",
    "sum_and_difference": """\
@torch.library.custom_op("regional_fuzz::sum_and_difference", mutates_args=())
def sum_and_difference(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x + y).contiguous(), (x - y).contiguous()


@sum_and_difference.register_fake
def sum_and_difference_fake(x, y):
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    return result, torch.empty_like(result)


def sum_and_difference_backward(ctx, first, second):
    return first + second, first - second


sum_and_difference.register_autograd(sum_and_difference_backward)
""",
    "accumulate": """\
@torch.library.custom_op("regional_fuzz::accumulate", mutates_args=("target",))
def accumulate(target: torch.Tensor, other: torch.Tensor) -> None:
    target.add_(other)


@accumulate.register_fake
def accumulate_fake(target, other):
    return None
""",
    "scale_in_place": """\
@torch.library.custom_op("regional_fuzz::scale_in_place", mutates_args=("target",))
def scale_in_place(target: torch.Tensor, factor: float) -> torch.Tensor:
    before = target.clone(memory_format=torch.contiguous_format)
    target.mul_(factor)
    return before


@scale_in_place.register_fake
def scale_in_place_fake(target, factor):
    return torch.empty_like(target, memory_format=torch.contiguous_format)
""",
    "DoubledGradient": """\
class DoubledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * gradient * x.cos()
""",
    "ScaledProduct": """\
class ScaledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, factor):
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return x * y * factor

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y * ctx.factor, gradient * x * ctx.factor, None
""",
    "StraightThrough": """\
class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient
""",
    "exchange": """\
@torch.library.custom_op("regional_fuzz::exchange", mutates_args=("first", "second"))
def exchange(first: torch.Tensor, second: torch.Tensor) -> None:
    before = first.clone()
    first.copy_(second)
    second.copy_(before)


@exchange.register_fake
def exchange_fake(first, second):
    return None
""",
    "accumulated": """\
@torch.library.custom_op("regional_fuzz::accumulate_onto", mutates_args=("target",))
def accumulate_onto(target: torch.Tensor, other: torch.Tensor) -> None:
    target.add_(other)


@accumulate_onto.register_fake
def accumulate_onto_fake(target, other):
    return None


def accumulated(x, y):
    copy = x.clone()
    accumulate_onto(copy, y)
    return copy
""",
    "HalvedInside": """\
class HalvedInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        half = x.clone()
        half.mul_(0.5)
        ctx.save_for_backward(half)
        return half.sin()

    @staticmethod
    def backward(ctx, gradient):
        (half,) = ctx.saved_tensors
        return gradient * half.cos() * 0.5
""",
    "MultipliedInPlace": """\
class MultipliedInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        product = x.clone()
        product @= weight
        return product

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.mT, x.mT @ gradient
""",
    "ProductThroughBuffer": """\
class ProductThroughBuffer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, buffer):
        buffer.copy_(x * 2)
        ctx.save_for_backward(buffer)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (twice,) = ctx.saved_tensors
        return gradient * twice, None
""",
    "add_in_place": """\
class AddInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        x.add_(y)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


def add_in_place(x, y):
    # Dynamo takes no mark_dirty where no gradient flows.
    if torch.is_grad_enabled() and x.requires_grad:
        AddInPlace.apply(x, y)
    else:
        x.add_(y)
""",
    "repeated": """\
def repeated(block, count, x):
    def more(i, x):
        return i < count

    def again(i, x):
        return i + 1, block(x)

    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return torch._higher_order_ops.while_loop(more, again, (start, x))[1]
""",
    "repeated_counting": """\
def repeated_counting(block, count, x):
    def more(i, number, x):
        return i < count

    def again(i, number, x):
        return i + 1, number + 2, block(x)

    start = torch.zeros((), dtype=torch.int64, device=x.device)
    _, number, x = torch._higher_order_ops.while_loop(more, again, (start, start + 1, x))
    return x, number
""",
    "never_repeated": """\
def never_repeated(block, x):
    def more(i, x):
        return i < 0

    def again(i, x):
        return i + 1, block(x)

    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return torch._higher_order_ops.while_loop(more, again, (start, x))[1] * 1
""",
    "scanned": """\
def scanned(block, x, reverse):
    def step(carry, row):
        carry = carry * 0.5 + block(row)
        return carry, carry * 2

    return torch._higher_order_ops.scan(step, torch.zeros_like(x[0]), x, reverse=reverse)[1]
""",
    "recurrence": """\
def recurrence(x, y):
    def combine(one, other):
        return one[0] * other[0], one[1] * other[0] + other[1]

    return torch._higher_order_ops.associative_scan(combine, (torch.tanh(x), y), 0, combine_mode="generic")[1]
""",
    "tangent": """\
def tangent(block, x):
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found = forward_ad.unpack_dual(block(dual)).tangent
    return torch.zeros_like(x) if found is None else torch.tanh(found)
""",
}


def defined(names: Iterable[str]) -> dict[str, Any]:
    """Return what every program can use, and the definitions called ``names``."""
    return {**_common(), **{name: _definition(name) for name in names}}


@functools.cache
def _common() -> dict[str, Any]:
    import torch.fx.traceback

    # Dynamo takes a scope of such a name for one that is no module to import (2.11 to 2.15), and needs one (2.15).
    return {"__name__": "namedtuple_program", "torch": torch, "math": math, "annotate": torch.fx.traceback.annotate}


@functools.cache
def _definition(name: str) -> Any:
    scope = _common().copy()
    # This module's __future__ imports would make annotations strings, which a script's are not.
    exec(compile(DEFINITIONS[name], f"<definition of {name}>", "exec", dont_inherit=True), scope)
    return scope[name]


_INDENT = "    "
_REMEMBERED = 4096
_numbers = itertools.count()


def source_of(program: Program) -> str:
    """Return the whole source: imports, definitions, blocks, ``program(...)`` and ``inputs(device, seed)``."""
    return f"{source_without_inputs(program)}\n{inputs_source(program.arguments)}"


def source_without_inputs(program: Program) -> str:
    """Return imports, settings, definitions, blocks and ``program(...)``."""
    needed = (DEFINITIONS[name] for name in _needed_definitions(program))
    lines = [f"{MODULES[BY_NAME[name].layer]}.{BY_NAME[name].key} = {value!r}" for name, value in program.settings]
    parts = [_imports(program), "\n".join(lines), *needed, *_functions(program)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def function_of(program: Program) -> Callable[..., Any]:
    """Return the program as a function, made from its source."""
    scope = dict(defined(_needed_definitions(program)))
    _execute("\n\n".join(_functions(program)), scope)
    made: Callable[..., Any] = scope["program"]
    return made


def make_inputs(arguments: Sequence[TensorInput], device: Any, seed: int) -> tuple[Any, ...]:
    """Return the inputs that ``arguments`` describe, made from their source."""
    made: tuple[Any, ...] = _inputs_function(inputs_source(arguments))(device, seed)
    return made


@functools.lru_cache(maxsize=256)
def _inputs_function(source: str) -> Callable[..., Any]:
    scope = dict(defined(()))
    _execute(source, scope)
    made: Callable[..., Any] = scope["inputs"]
    return made


def _execute(source: str, scope: dict[str, Any]) -> None:
    # Tracebacks, and Dynamo's messages, show lines of files that linecache knows: those of the newest programs.
    number = next(_numbers)
    name = f"<program {number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    linecache.cache.pop(f"<program {number - _REMEMBERED}>", None)
    exec(compile(source, name, "exec", dont_inherit=True), scope)


def _imports(program: Program) -> str:
    lines = ["import torch"]
    if "annotate(" in "".join(context.source for step in program.all_steps() for context in step.scope):
        lines.append("from torch.fx.traceback import annotate")
    lines += sorted({f"import {MODULES[BY_NAME[name].layer]}" for name, _ in program.settings})
    if any("math." in CONTENT_SOURCES[argument.content] for argument in program.arguments):
        lines.insert(0, "import math\n")
    return "\n".join(lines)


def _needed_definitions(program: Program) -> tuple[str, ...]:
    needs = (name for step in program.all_steps() for name in operator_named(step.operator).needs)
    return tuple(dict.fromkeys(needs))


# Functions


def _functions(program: Program) -> list[str]:
    blocks = [_block_source(index, block) for index, block in enumerate(program.blocks)]
    calls = [(step, operator_named(step.operator)) for step in program.steps if step.blocks]
    wrapped = dict.fromkeys(
        f"{_block_name(operator, index)} = {operator.block_wrapper}(block{index})\n"
        for step, operator in calls
        for index in step.blocks
        if operator.block_wrapper
    )
    return [*blocks, *wrapped, _program_source(program)]


def _block_name(operator: Operator, index: int) -> str:
    return f"{operator.name}{index}" if operator.block_wrapper else f"block{index}"


def _program_source(program: Program) -> str:
    known = {index: f"x{index}" for index in range(len(program.arguments))}
    results = [known.get(value, f"v{value}") for value in program.outputs]
    returned = f"return {', '.join(results)}{',' if len(results) == 1 else ''}" if results else "return ()"
    return f"def program({', '.join(known.values())}):\n" + _indented([*_statements(program.steps, known), returned])


def _block_source(index: int, block: Block) -> str:
    names = [f"x{number}" for number in range(len(block.parameters))]
    known = dict(zip(block.parameters, names, strict=True))
    body = [*_statements(block.steps, known), f"return {known.get(block.result, f'v{block.result}')}"]
    return f"def block{index}({', '.join(names)}):\n" + _indented(body)


def _statements(steps: Sequence[Step], known: Mapping[int, str]) -> Iterator[str]:
    """Yield the lines of a function; ``known`` are the names of its arguments."""
    open_scope: Scope = ()
    for step in steps:
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(open_scope, step.scope, strict=False))
        for depth in range(len(list(same)), len(step.scope)):
            yield _INDENT * depth + f"with {step.scope[depth].source}:"
        open_scope = step.scope
        operator = operator_named(step.operator)
        operands = [known.get(value, f"v{value}") for value in step.operands]
        blocks = [_block_name(operator, index) for index in step.blocks]
        made = ", ".join(f"v{value}" for value in step.results) + " = " if step.results else ""
        yield _INDENT * len(open_scope) + made + operator.written(operands, dict(step.parameters), blocks)


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"{_INDENT}{line}\n" for line in lines)


# Inputs


@functools.lru_cache(maxsize=256)
def inputs_source(arguments: tuple[TensorInput, ...]) -> str:
    """Return the source of ``inputs(device, seed)``, which makes the arguments."""
    used = dict.fromkeys(argument.content for argument in arguments if argument.alias_of is None)
    helpers = [_indented(CONTENT_SOURCES[content].splitlines()) for content in used]
    marks = [
        f"torch._dynamo.maybe_mark_dynamic(x{index}, {dim})"
        for index, argument in enumerate(arguments)
        for dim in argument.dynamic
    ]
    names = "".join(f"x{index}, " for index in range(len(arguments)))
    lines = assignments(arguments)
    return (
        'def inputs(device="cpu", seed=0):\n'
        f"{_INDENT}g = torch.Generator().manual_seed(seed)\n\n"
        + "\n".join(helpers)
        + ("\n" if helpers else "")
        + _indented([*lines, *marks, f"return ({names.strip()})"])
    )
