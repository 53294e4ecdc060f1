"""The code that launches kernels, run on symbolic sizes, against the launches that it makes on tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import z3

from pytest_regional._torch.tracing import size_expression
from pytest_regional._torch.triton import grid_of_inductor_kernel
from pytest_regional.emulation import Emulation, GeneratedGraph, backend
from pytest_regional.emulation.launch import launch_inductor_kernel, named_arguments
from pytest_regional.verify import NotVerifiableError
from pytest_regional.verify.question import decided
from pytest_regional.verify.symbols import Size, evaluated, expression_of, largest
from pytest_regional.verify.wrappers import (
    Graph,
    OperatorCall,
    TensorInput,
    View,
    WrapperRun,
    graph_inputs,
    run_wrapper,
)

Shapes = tuple[tuple[int, ...], ...]


# A function, sizes with which it is compiled, and others with which the same code runs. Each size differs from all
# others of its program, so that it tells which symbolic size it is.
PROGRAMS: dict[str, tuple[Callable[..., Any], Shapes, Shapes]] = {
    "pointwise": (lambda a, b: (a * 2 + b, a.sin()), ((1000,), (1000,)), ((77,), (77,))),
    "softmax": (lambda a: a.softmax(1), ((5, 100),), ((9, 70),)),
    "column means": (lambda a: a.mean(0) * 2 + 1, ((2000, 40),), ((1900, 33),)),
    "transposed": (lambda a, b: a.t() + b, ((40, 50), (50, 40)), ((12, 9), (9, 12))),
    "cat": (lambda a, b: torch.cat([a.cos(), b * 3]), ((20, 30), (11, 30)), ((13, 8), (41, 8))),
    "half": (lambda a: a[: a.shape[0] // 2] * 2 + a.shape[0] // 2, ((31, 12),), ((18, 7),)),
    "padded": (lambda a: F.pad(a, (0, 7 - a.shape[1] % 7)) + 1, ((31, 12),), ((18, 26),)),
    "products": (lambda a, b: (a @ b).relu() + 1, ((12, 17), (17, 23)), ((31, 18), (18, 29))),
    "halves": (lambda a: a[:, : a.shape[1] // 2] + a[:, a.shape[1] // 2 :], ((9, 26),), ((11, 34),)),
    "view": (lambda a: (a + 1).view(-1)[3:].view(-1, 1), ((9, 26),), ((11, 34),)),
    "repeated": (lambda a: a.cumsum(1) + a.sum(), ((9, 26),), ((11, 34),)),
}


def tensors(shapes: Shapes) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(shape, generator=generator) for shape in shapes]


class Recorded:
    """Launches that happen while a program runs, and the graph that was compiled for it."""

    def __init__(self, emulation: Emulation, function: Callable[..., Any]) -> None:
        torch._dynamo.reset()
        self.emulation = emulation
        self.graphs: list[GeneratedGraph] = []
        self.known: list[tuple[Sequence[Any], Sequence[Any]]] = []
        self.launches: list[tuple[Any, dict[str, Any]]] = []
        self.compiled = torch.compile(function, fullgraph=True, dynamic=True)

    def observe(self, graph: GeneratedGraph) -> None:
        self.graphs.append(graph)
        self.known.append(graph_inputs(graph.inputs))

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Call the program and return its outputs; what it launches is in ``launches`` then."""
        self.launches = []

        def launch(tuner: Any, arguments: Any, keywords: Any, **named: Any) -> Any:
            # Tensors are described now: what they are afterwards may change.
            values = named_arguments(tuner, arguments)
            self.launches.append((tuner, {name: described(value) for name, value in values.items()}))
            return launch_inductor_kernel(tuner, arguments, keywords, **named)

        self.emulation.observers.append(self.observe)
        try:
            with (
                mock.patch.object(backend, "launch_inductor_kernel", launch),
                torch._inductor.config.patch(force_disable_caches=True),
            ):
                return self.compiled(*inputs)
        finally:
            self.emulation.observers.remove(self.observe)

    def symbolic(self) -> WrapperRun:
        (graph,), ((inputs, known),) = self.graphs, self.known
        return run_wrapper(Graph(graph.call, inputs, known), named_arguments, functools.partial(decided, seconds=10))

    def sizes(self, shapes: Shapes, others: Shapes) -> dict[str, int]:
        """Return what each symbolic size is where those of ``shapes``, which gave it its name, are ``others``."""
        (graph,) = self.graphs
        found = dict(zip(sum(shapes, ()), sum(others, ()), strict=True))
        symbolic = [value for value in graph.inputs if isinstance(value, torch.SymInt)]
        return {str(size_expression(value)): found[int(value.node.hint)] for value in symbolic}


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage().data_ptr()
        return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, storage
    return value


def evaluated_view(view: View, sizes: dict[str, int]) -> tuple[Any, ...]:
    def numbers(values: Sequence[Any]) -> tuple[int, ...]:
        return tuple(int(evaluated(expression_of(value), sizes)) for value in values)

    return numbers(view.sizes), numbers(view.strides), *numbers([view.start]), view.dtype


@pytest.mark.parametrize("name", PROGRAMS)
def test_launches_are_those_on_tensors(emulation: Emulation, name: str):
    function, shapes, others = PROGRAMS[name]
    recorded = Recorded(emulation, function)
    for current in (shapes, others):
        expected = function(*tensors(current))
        torch.testing.assert_close(recorded.run(tensors(current)), expected, rtol=1e-4, atol=1e-4)
        symbolic = recorded.symbolic()
        sizes = recorded.sizes(shapes, current)
        assert sizes, "nothing is symbolic"
        assert len(symbolic.launches) == len(recorded.launches) > 0
        storages: dict[int, int] = {}
        for launch, (tuner, arguments) in zip(symbolic.launches, recorded.launches, strict=True):
            assert launch.tuner.fn.__name__ == tuner.fn.__name__
            assert launch.arguments.keys() == arguments.keys()
            for argument, value in launch.arguments.items():
                true = arguments[argument]
                if isinstance(value, View):
                    assert evaluated_view(value, sizes) == true[:-1], argument
                    assert storages.setdefault(id(value.storage), true[-1]) == true[-1], argument
                elif isinstance(value, Size):
                    assert evaluated(value.expression, sizes) == true, argument
                else:
                    assert value == true, argument
            assert grids(launch.tuner, launch.arguments, sizes) == grids(tuner, arguments, {})
        outputs = expected if isinstance(expected, tuple) else (expected,)
        found = [evaluated_view(view, sizes)[:2] for view in symbolic.outputs]
        assert found == [(tuple(output.shape), output.stride()) for output in outputs]


def grids(tuner: Any, arguments: Any, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Return the grid with each configuration."""
    numbers = {name: value for name, value in arguments.items() if isinstance(value, (int, Size))}
    found = []
    for config in tuner.configs:
        grid = grid_of_inductor_kernel(tuner.inductor_meta, config, {"max": largest, **numbers})
        found.append(tuple(int(evaluated(expression_of(size), sizes)) for size in grid))
    return found


def test_an_operator_comes_in_its_place(emulation: Emulation):
    function, shapes, _ = PROGRAMS["products"]
    recorded = Recorded(emulation, function)
    recorded.run(tensors(shapes))
    first, second = recorded.symbolic().steps
    assert isinstance(first, OperatorCall)
    assert first.name == "extern_kernels.mm"
    assert len(first.reads) == 2
    (product,) = first.writes
    assert any(getattr(value, "storage", None) is product.storage for value in second.arguments.values())


def test_guards_are_known(emulation: Emulation):
    recorded = Recorded(emulation, lambda a: a.sin() if a.shape[0] % 3 == 0 else a.cos())
    recorded.run(tensors(((33, 12),)))
    ((_, known),) = recorded.known
    (rows,) = [z3.Int(name) for name, size in recorded.sizes(((33, 12),), ((33, 12),)).items() if size == 33]
    assert decided(rows % 3 == 0, known, 5) is True
    assert decided(rows < 2, known, 5) is False
    with pytest.raises(NotVerifiableError, match="both sides are possible"):
        decided(rows > 40, known, 30)


reinterpret_tensor = empty_strided_cuda = None
"""Names that code which is run as if it were generated calls."""


def views_of_views(arguments: list[Any]) -> tuple[Any, ...]:
    (given, rows) = arguments
    part = reinterpret_tensor(given, (rows, 3), (3, 1), 2 * rows)
    made = empty_strided_cuda((rows, min(rows, 4)), (max(rows, 9) - 2, 1), torch.float16)
    return part, reinterpret_tensor(part, (3,), (1,), rows - 1), made


@pytest.mark.parametrize("rows", [2, 20])
def test_views_of_views(rows: int):
    symbol = z3.Int("s")
    inputs = [TensorInput((symbol, 5), (5, 1), torch.float32), symbol]
    part, inner, made = run_wrapper(
        Graph(views_of_views, inputs, []), named_arguments, lambda condition, known: False
    ).outputs
    sizes = {"s": rows}
    assert evaluated_view(part, sizes) == ((rows, 3), (3, 1), 2 * rows, torch.float32)
    assert evaluated_view(inner, sizes) == ((3,), (1,), 2 * rows + rows - 1, torch.float32)
    assert evaluated_view(made, sizes) == ((rows, min(rows, 4)), (max(rows, 9) - 2, 1), 0, torch.float16)
    assert part.storage is inner.storage is not made.storage
    assert (part.storage.given, made.storage.given) == (True, False)


def uses_something_else(arguments: list[Any]) -> tuple[Any, ...]:
    return (arguments[0].sum(),)


def test_what_is_not_known_of_a_wrapper_is_named():
    inputs = [TensorInput((z3.Int("s"),), (1,), torch.float32)]
    with pytest.raises(NotVerifiableError, match="a tensor's sum"):
        run_wrapper(Graph(uses_something_else, inputs, []), named_arguments, lambda condition, known: False)


class NumberKernel:
    """Stands for a kernel that is launched with a number."""

    triton_meta: dict[str, Any] = {}  # noqa: RUF012

    def run(self, number: Any) -> None:
        raise AssertionError("the launch is recorded instead")


kernel = NumberKernel()


def launches_before_and_after(arguments: list[Any]) -> tuple[Any, ...]:
    u0 = arguments[0].item()
    kernel.run(u0)
    if not (u0 <= arguments[1]):
        raise RuntimeError("u0 <= s")
    kernel.run(u0)
    return ()


def takes_twice(arguments: list[Any]) -> tuple[Any, ...]:
    u0 = arguments[0].item()
    u0 = arguments[0].item()
    return (u0,)


def branches_on_a_number(arguments: list[Any]) -> tuple[Any, ...]:
    u0 = 1 if arguments[0].item() else 0
    return (u0,)


def compares_a_number(arguments: list[Any]) -> tuple[Any, ...]:
    u0 = arguments[0].item() == 2
    return (u0,)


def run_of(call: Callable[..., Any], dtype: torch.dtype) -> WrapperRun:
    inputs = [TensorInput((), (), dtype), z3.Int("s")]
    name = lambda tuner, values: dict(zip(["number"], values, strict=True))  # noqa: E731
    return run_wrapper(Graph(call, inputs, [z3.Int("s") < 9]), name, functools.partial(decided, seconds=5))


def test_what_code_asserts_of_a_number_is_known_from_there_on():
    run = run_of(launches_before_and_after, torch.int32)
    before, after = run.launches
    number = z3.Int("u0")
    assert z3.eq(before.arguments["number"].expression, number)
    assert before.unbacked == after.unbacked == {"u0"}
    assert decided(number < 2**31, before.known, 5) is True
    with pytest.raises(NotVerifiableError, match="both sides are possible"):
        decided(number < 9, before.known, 5)
    assert decided(number < 9, after.known, 5) is True
    assert [step.name for step in run.steps if isinstance(step, OperatorCall)] == ["item"]


@pytest.mark.parametrize(
    ("call", "dtype", "what"),
    [
        (takes_twice, torch.int64, "the number u0 is taken out of tensors twice"),
        (branches_on_a_number, torch.int64, "a branch on what a tensor holds"),
        (compares_a_number, torch.int64, "a branch on what a tensor holds"),
        (launches_before_and_after, torch.float32, "a torch.float32 that the code that launches kernels takes"),
        (launches_before_and_after, torch.bool, "a torch.bool that the code that launches kernels takes"),
    ],
)
def test_other_numbers_are_refused(call, dtype, what):
    with pytest.raises(NotVerifiableError, match=what):
        run_of(call, dtype)
