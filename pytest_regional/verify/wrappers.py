"""The code that allocates buffers and launches kernels, run on symbolic sizes instead of tensors.

It is the generated ``call`` itself, with other functions under the names that it calls.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import z3

from pytest_regional._base.text import first_line
from pytest_regional._torch.operators import operator_called, returns_a_view, written_arguments
from pytest_regional._torch.tracing import known_of_sizes, size_expression
from pytest_regional.emulation.backend import GeneratedGraph
from pytest_regional.verify.outcomes import NotVerifiableError
from pytest_regional.verify.question import Tensor
from pytest_regional.verify.symbols import (
    Decide,
    Expression,
    Size,
    expression_of,
    from_sympy,
    known_from,
    largest,
    limits,
    smallest,
)

REUSED = "__reused"
"""The name under which generated code that was changed calls what gives memory to another buffer."""

NAMED = "__named"
"""The name under which generated code that was changed calls what tells a number out of a tensor its name."""

ASSERTED = "__asserted"
"""The name under which generated code that was changed calls what notes a condition, without which it raises."""

INPUT = "input "
"""What the names of memory begin with that the graph is given; the number of the input follows."""

_MOST_STEPS = 20_000


@dataclass(frozen=True)
class TensorInput:
    """A tensor that a graph is given: integers, or expressions, and its type."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Graph:
    """Generated code, and what is known of its inputs.

    Attributes:
        call: the function, or the method of a ``Runner``, that the module defines.
        inputs: for each a :class:`TensorInput`, an integer, or an expression of z3.
        known: what guards say of the sizes.
        donated: positions of inputs whose memory may be used for other buffers.
        source: the text of ``call``.
        marked: its functions, each with one that calls :data:`REUSED`, see :func:`with_reuse_marked`; those that lack
            here are made when they are needed, of files that have to be there then.
        undefined: whether the graph itself has values that are not defined.
        module: the graph that the code computes, if it is known.
        updated: positions of inputs that the graph changes; true where it is known to write each element.
    """

    call: Any
    inputs: Sequence[Any]
    known: Sequence[Expression]
    donated: Sequence[int] = ()
    source: str = ""
    marked: Mapping[types.FunctionType, types.FunctionType] = field(default_factory=dict, repr=False)
    undefined: bool = False
    module: torch.fx.GraphModule | None = None
    updated: Mapping[int, bool] = field(default_factory=dict)


def graph_of(generated: GeneratedGraph) -> Graph:
    """Return a graph with all that is needed of it later, when its files may be gone.

    Raises:
        NotVerifiableError: the text of the code is not there, or a size is computed in a way that is not known.
    """
    inputs, known = graph_inputs(generated.inputs)
    calls = [generated.call, *getattr(getattr(generated.call, "__self__", None), "partitions", ())]
    plain = [getattr(call, "__func__", call) for call in calls]
    functions = {*plain, *_functions_in(plain[0].__globals__)}
    marked = {function: with_reuse_marked(function) for function in functions}
    source = "".join(map(source_of, plain))
    module = generated.module
    updated = {} if module is None else updated_inputs(module)
    return Graph(generated.call, inputs, known, generated.donated, source, marked, generated.undefined, module, updated)


def updated_inputs(module: torch.fx.GraphModule) -> dict[int, bool]:
    """Return the positions of inputs that a graph changes: it copies into them at its end.

    True where what is copied is another input, or is computed element by element, so that generated code writes each. A
    scatter, or an operator that a user has written, may write in place the elements that change.
    """
    found = {}
    for number, node in enumerate(node for node in module.graph.nodes if node.op == "placeholder"):
        for user in node.users:
            if user.target is torch.ops.aten.copy_.default and user.args[0] is node:
                source = user.args[1]
                tags = getattr(getattr(source, "target", None), "tags", ())
                another = isinstance(source, torch.fx.Node) and source.op == "placeholder" and source is not node
                found[number] = another or torch.Tag.pointwise in tags
    return found


def _functions_in(module: Mapping[str, Any]) -> list[types.FunctionType]:
    """Return the functions that a generated module defines with text of its own: those of subgraphs, among others."""
    return [
        value
        for value in module.values()
        if isinstance(value, types.FunctionType) and value.__globals__ is module and value.__name__ != "<lambda>"
    ]


def source_of(call: Any) -> str:
    """Return the text of generated code.

    Raises:
        NotVerifiableError: it is not there.
    """
    try:
        return textwrap.dedent(inspect.getsource(getattr(call, "__func__", call)))
    except (OSError, TypeError) as error:
        raise NotVerifiableError(f"the text of the code that launches kernels is not there: {error}") from error


def graph_inputs(values: Sequence[Any]) -> tuple[list[Any], list[Expression]]:
    """Return what a graph is given, for :func:`run_wrapper`, and what guards say of its sizes.

    Args:
        values: the example inputs that the graph was compiled with, some sizes of which are symbolic.

    Raises:
        NotVerifiableError: a size is computed by an operation that is not known here.
    """
    given: list[Any] = []
    sizes: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            shape, strides = tuple(value.shape), tuple(value.stride())
            sizes += [*shape, *strides]
            given.append(TensorInput(tuple(map(_number, shape)), tuple(map(_number, strides)), value.dtype))
        else:
            sizes.append(value)
            given.append(_number(value))
    return given, known_from(*known_of_sizes(sizes))


def _number(value: Any) -> Any:
    return from_sympy(size_expression(value)) if isinstance(value, torch.SymInt) else value


@dataclass(eq=False)
class Storage:
    """One piece of memory.

    Attributes:
        name: what it is called in messages.
        given: whether it is an input or a constant of the graph.
        whole: the tensor that fills it; None where an operator returned it.
    """

    name: str
    given: bool = False
    whole: View | None = field(default=None, repr=False)


@dataclass(eq=False)
class Contents:
    """What one buffer of the graph puts into memory; another one may be given the same memory later.

    Attributes:
        name: what it is called in messages.
        before: what the memory held when it was given to this buffer.
        complete: whether all of it is written from the start: an input, a constant, the result of an operator.
    """

    name: str
    before: Contents | None = None
    complete: bool = False


@dataclass(eq=False)
class FromData:
    """An integer that the code takes out of a tensor; it is a size, once it has a name.

    Attributes:
        low: the smallest that it may be.
        high: the largest.
        read: the tensor whose element it is, if it is one.
    """

    low: int
    high: int
    read: View | None = None

    def __bool__(self) -> bool:
        raise NotVerifiableError("a branch on what a tensor holds in the code that launches kernels")

    def __eq__(self, other: object) -> bool:
        return bool(self)

    __hash__ = None  # type: ignore[assignment]  # equal ones are not known to be


@dataclass(eq=False, repr=False)
class View:
    """Stands for a tensor in the code that launches kernels.

    Attributes:
        storage: the memory it lies in.
        contents: what is in that memory.
        sizes: of its axes.
        strides: of its axes, in elements.
        start: where it starts in that memory, in elements.
        dtype: of its elements.
    """

    storage: Storage
    contents: Contents
    sizes: Sequence[Any]
    strides: Sequence[Any]
    start: Any
    dtype: torch.dtype | None

    def __post_init__(self) -> None:
        self.sizes, self.strides = tuple(self.sizes), tuple(self.strides)

    def tensor(self, dtype: torch.dtype) -> Tensor:
        """Return it as an argument of a kernel that takes it for a tensor of ``dtype``, where its own is not known.

        Raises:
            NotVerifiableError: its sizes are not known.
        """
        whole, room = self.storage.whole, None
        known = whole is not None and whole.dtype is not None and whole.dtype == self.dtype
        if whole is not None and known and whole.place() != self.place():
            room = whole.tensor(dtype).span()
        return Tensor(
            self.storage.name,
            expression_of(self.start),
            tuple(map(expression_of, self.sizes)),
            tuple(map(expression_of, self.strides)),
            self.dtype or dtype,
            self.storage.given,
            room,
        )

    def size(self, axis: int | None = None) -> Any:
        """Return its sizes, or that of one axis, as code asks that is not given them."""
        return self.sizes if axis is None else self.sizes[axis]

    def stride(self, axis: int | None = None) -> Any:
        """Return its strides, or that of one axis."""
        return self.strides if axis is None else self.strides[axis]

    def item(self) -> FromData:
        """Return its only element.

        Raises:
            NotVerifiableError: it is not known to be an integer.
        """
        dtype = self.dtype
        if dtype is None or dtype == torch.bool or dtype.is_floating_point or dtype.is_complex:
            raise NotVerifiableError(f"a {dtype} that the code that launches kernels takes out of a tensor")
        return FromData(*limits(dtype.itemsize * 8, dtype.is_signed), self)

    def place(self) -> tuple[str, ...]:
        """Return what tells it from other tensors in the same memory."""
        numbers = (self.start, *self.sizes, *self.strides)
        return tuple(str(expression_of(number)) for number in numbers)

    def __getitem__(self, key: Any) -> Any:
        raise NotVerifiableError("a tensor indexed by the code that launches kernels")

    def __bool__(self) -> bool:
        raise NotVerifiableError("a branch on a tensor in the code that launches kernels")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotVerifiableError(f"a tensor's {name} in the code that launches kernels")


class _Buffer(View):
    """Memory that generated code allocates; it may be filled by methods of the tensor."""

    run: _Run

    def zero_(self) -> View:
        """Write all of it."""
        return self.run.filled(self, "zero_")

    def copy_(self, other: Any, *_: Any) -> View:
        """Write all of it."""
        return self.run.filled(self, "copy_", other)


class _Result(View):
    """What an operator returned: a tensor, or several; the code asserts their sizes before it uses them."""

    def __init__(self, name: str, storage: Storage | None = None, start: Any = 0) -> None:
        super().__init__(storage or Storage(name), Contents(name, complete=True), (), (), start, None)
        self.known = False
        self.parts: dict[Any, _Result] = {}

    def size(self, axis: int | None = None) -> Any:
        """Return one of its sizes; before the code asserts them, the operator may have chosen any."""
        return super().size(axis) if self.known or axis is None else FromData(0, limits(64, signed=True)[1])

    def __getitem__(self, key: Any) -> Any:
        return self.parts.setdefault(key, _Result(f"{self.storage.name}[{key}]"))

    def tensor(self, dtype: torch.dtype) -> Tensor:
        """Return it as an argument of a kernel.

        Raises:
            NotVerifiableError: the code asserts nothing of its sizes.
        """
        if not self.known:
            raise NotVerifiableError("the result of an operator whose sizes are not asserted")
        return super().tensor(dtype)


@dataclass(frozen=True)
class SymbolicLaunch:
    """One launch of a kernel.

    Attributes:
        tuner: Inductor's ``CachingAutotuner``.
        arguments: what it was given, by the name of the parameter: views, sizes, numbers.
        order: how many launches and operators came before.
        known: what is known of the sizes when it is launched.
        unbacked: names of the sizes that data determine.
    """

    tuner: Any
    arguments: Mapping[str, Any]
    order: int
    known: Sequence[Expression] = ()
    unbacked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator: it reads what it is given, and writes all of ``out``.

    Attributes:
        name: of the operator.
        reads: tensors it was given.
        writes: tensors that it fills.
    """

    name: str
    reads: tuple[View, ...]
    writes: tuple[View, ...]


@dataclass
class WrapperRun:
    """What the generated code does.

    Attributes:
        steps: launches of kernels and calls of operators, in order.
        inputs: the tensors that it is given, by their positions.
        outputs: the tensors that it returns.
        reused_inputs: positions of inputs whose memory other buffers are given.
        known: what guards say of the sizes, and what the code has asserted by now.
        unbacked: names of the sizes that data determine, as PyTorch calls them.
    """

    steps: list[SymbolicLaunch | OperatorCall] = field(default_factory=list)
    inputs: dict[int, View] = field(default_factory=dict)
    outputs: list[View] = field(default_factory=list)
    reused_inputs: list[int] = field(default_factory=list)
    known: list[Expression] = field(default_factory=list)
    unbacked: set[str] = field(default_factory=set)

    @property
    def launches(self) -> list[SymbolicLaunch]:
        """Kernels, in order."""
        return [step for step in self.steps if isinstance(step, SymbolicLaunch)]


def run_wrapper(
    graph: Graph,
    name_arguments: Callable[[Any, Sequence[Any]], dict[str, Any]],
    decided: Callable[[Expression, Sequence[Expression]], bool],
) -> WrapperRun:
    """Run generated code on symbols.

    Args:
        graph: the code, and its inputs.
        name_arguments: gives the arguments of a launch their names, for a tuner.
        decided: says whether a condition on sizes holds, by what is known of them.

    Raises:
        NotVerifiableError: it does something that is not known here.
    """
    result = WrapperRun(known=list(graph.known))
    run = _Run(result, name_arguments, lambda condition: decided(condition, result.known), graph.marked)
    given = [run.given(f"{INPUT}{number}", value) for number, value in enumerate(graph.inputs)]
    result.inputs = {number: value for number, value in enumerate(given) if isinstance(value, View)}
    try:
        returned = run.function(graph.call)(given)
    except NotVerifiableError:
        raise
    except Exception as error:
        raise NotVerifiableError(f"the code that launches kernels: {first_line(error)}") from error
    result.outputs = [item for item in returned if isinstance(item, View)]
    return result


@dataclass(eq=False)
class _Run:
    """One run: the names that the generated code finds in its module."""

    result: WrapperRun
    name_arguments: Callable[[Any, Sequence[Any]], dict[str, Any]]
    decide: Decide
    marked: Mapping[types.FunctionType, types.FunctionType]
    count: int = 0
    constants: dict[int, View] = field(default_factory=dict)
    modules: dict[int, dict[str, Any]] = field(default_factory=dict)

    def given(self, name: str, value: Any) -> Any:
        if isinstance(value, TensorInput):
            sizes, strides = (tuple(map(self.size, numbers)) for numbers in (value.sizes, value.strides))
            return self.view(name, sizes, strides, value.dtype, given=True)
        return self.size(value)

    def size(self, value: Any) -> Any:
        return value if isinstance(value, (int, float)) or value is None else Size(value, self.decide)

    def function(self, call: Any) -> Callable[..., Any]:
        """Return the generated function with other things in the place of what it calls."""
        plain = getattr(call, "__func__", call)
        if not isinstance(plain, types.FunctionType):
            raise NotVerifiableError(f"code that launches kernels as {type(call).__name__}")
        replaced = types.FunctionType(
            (self.marked.get(plain) or with_reuse_marked(plain)).__code__,
            self.names_of(plain.__globals__),
            plain.__name__,
            plain.__defaults__,
            plain.__closure__,
        )
        if plain is call:
            return replaced
        owner = call.__self__
        parts = [self.function(part) for part in getattr(owner, "partitions", [])]
        return types.MethodType(replaced, types.SimpleNamespace(partitions=parts))

    def names_of(self, module: dict[str, Any]) -> dict[str, Any]:
        """Return what generated code finds under the names of its module."""
        found = self.modules.get(id(module))
        if found is not None:
            return found
        replaced = {
            "assert_size_stride": self.assert_size_stride,
            "assert_tensor_metadata": self.assert_metadata,
            "assert_size_stride_grouped": self.assert_sizes_strides,
            "assert_alignment": lambda *_: None,
            "copy_if_misaligned": lambda view: view,
            "reinterpret_tensor": self.reinterpret_tensor,
            "get_raw_stream": lambda *_: 0,
            "extern_kernels": _Operators(self, "extern_kernels"),
            "torch": _Torch(self),
            "aten": _Operators(self, "aten"),
            "inductor_ops": _Operators(self, "inductor"),
        }
        found = self.modules[id(module)] = {name: replaced.get(name, value) for name, value in module.items()}
        for name, value in module.items():
            if name.startswith("empty_strided"):
                found[name] = self.empty_strided
            elif isinstance(value, torch.Tensor):
                found[name] = self.constant(value)
            elif hasattr(value, "triton_meta"):
                found[name] = types.SimpleNamespace(run=functools.partial(self.launch, value))
        found |= {"max": largest, "min": smallest, REUSED: self.reused, NAMED: self.named, ASSERTED: self.asserted}
        # They find each other there, so they come last.
        for function in _functions_in(module):
            if function in self.marked:
                found[function.__name__] = self.function(function)
        return found

    # What takes the place of the functions that generated code calls.

    def name(self, prefix: str) -> str:
        self.count += 1
        if self.count > _MOST_STEPS:
            raise NotVerifiableError(f"more than {_MOST_STEPS} steps, as in a loop that data end")
        return f"{prefix} {self.count}"

    def view(
        self, name: str, size: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype, given: bool = False
    ) -> View:
        storage = Storage(name, given)
        made = storage.whole = _Buffer(storage, Contents(name, complete=given), size, stride, 0, dtype)
        made.run = self
        return made

    def filled(self, view: View, name: str, *reads: Any) -> View:
        """Note that a method of a tensor wrote all of it."""
        self.count += 1
        self.result.steps.append(OperatorCall(name, tuple(_views(reads)), (view,)))
        return view

    def empty_strided(self, size: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype, *_: Any, **__: Any) -> View:
        return self.view(self.name("buffer"), size, stride, dtype)

    def reinterpret_tensor(self, view: View, size: Sequence[Any], stride: Sequence[Any], offset: Any = 0) -> View:
        return View(view.storage, view.contents, size, stride, view.start + offset, view.dtype)

    def named(self, name: str, value: Any) -> Any:
        """Return what a variable holds; a number out of a tensor as a size of that name, which the graph has for it."""
        if not isinstance(value, FromData):
            return value
        if name in self.result.unbacked:
            raise NotVerifiableError(f"the number {name} is taken out of tensors twice")
        if value.read is not None:
            self.count += 1
            self.result.steps.append(OperatorCall("item", (value.read,), ()))
        size = z3.Int(name)
        self.result.unbacked.add(name)
        self.result.known.append(z3.And(size >= value.low, size <= value.high))
        return Size(size, self.decide)

    def asserted(self, condition: Any) -> Any:
        """Note a condition without which the code raises an error, and go on as if it held."""
        if not isinstance(condition, Size):
            return condition
        self.result.known.append(condition.expression)
        return True

    def reused(self, view: Any, marked: bool) -> Any:
        """Return a buffer that is given the memory of another one; results of operators get second names, too."""
        if not isinstance(view, View) or (isinstance(view, _Result) and not marked):
            return view
        if view.storage.given and view.storage.name.startswith(INPUT):
            self.result.reused_inputs.append(int(view.storage.name.removeprefix(INPUT)))
        other = copy.copy(view)
        other.contents = Contents(self.name("buffer"), before=view.contents)
        return other

    def assert_size_stride(self, view: Any, size: Sequence[Any], stride: Sequence[Any], *_: Any) -> None:
        if isinstance(view, _Result):
            view.sizes, view.strides, view.known = tuple(size), tuple(stride), True

    def assert_metadata(
        self, view: Any, size: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype, *_: Any
    ) -> None:
        if isinstance(view, _Result):
            view.dtype = dtype
        self.assert_size_stride(view, size, stride)

    def assert_sizes_strides(self, views: Sequence[Any], sizes: Sequence[Any], strides: Sequence[Any], *_: Any) -> None:
        for view, size, stride in zip(views, sizes, strides, strict=True):
            self.assert_size_stride(view, size, stride)

    def operator(self, name: str, *arguments: Any, **named: Any) -> Any:
        self.count += 1
        target = operator_called(name)
        written = [named.pop("out", None), *written_arguments(target, arguments, named)]
        writes = tuple(_views(written))
        reads = tuple(_views((*arguments, *named.values())))
        self.result.steps.append(OperatorCall(name, reads, writes))
        if isinstance(written[0], View):
            return written[0]
        if reads and returns_a_view(target):
            start = z3.Int(self.name("start of a view"))
            return _Result(self.name(name), reads[0].storage, Size(start, self.decide))
        return _Result(self.name(name))

    def launch(self, tuner: Any, *arguments: Any, stream: Any = None, **named: Any) -> None:
        self.count += 1
        values = {**self.name_arguments(tuner, arguments), **named}
        known, unbacked = tuple(self.result.known), frozenset(self.result.unbacked)
        self.result.steps.append(SymbolicLaunch(tuner, values, self.count, known, unbacked))

    def constant(self, tensor: torch.Tensor) -> View:
        if id(tensor) not in self.constants:
            made = self.view(self.name("constant"), tensor.shape, tensor.stride(), tensor.dtype, given=True)
            self.constants[id(tensor)] = made
        return self.constants[id(tensor)]


def _views(values: Iterable[Any]) -> Iterator[View]:
    for value in values:
        if isinstance(value, View):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _views(value)


def with_reuse_marked(call: types.FunctionType) -> types.FunctionType:
    """Return a generated function that calls a function where it gives a buffer's memory to another one.

    These are assignments of one name to another, and those that Inductor marks with the comment ``reuse``. The function
    is called as the global :data:`REUSED`, with the tensor, and whether there is the comment. What is assigned to one
    name goes through the global :data:`NAMED`, with that name, and what is asserted through :data:`ASSERTED`.

    Raises:
        NotVerifiableError: the text of the generated code is not there.
    """
    text = source_of(call)
    lines, tree = text.splitlines(), ast.parse(text)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.If)  # if not condition: raise ...
            and isinstance(node.test, ast.UnaryOp)
            and isinstance(node.test.op, ast.Not)
            and not node.orelse
            and all(isinstance(part, ast.Raise) for part in node.body)
        ):
            condition = [node.test.operand]
            node.test.operand = ast.Call(func=ast.Name(id=ASSERTED, ctx=ast.Load()), args=condition, keywords=[])
        if not isinstance(node, ast.Assign):
            continue
        marked = lines[node.lineno - 1].rstrip().endswith("# reuse")
        if marked or isinstance(node.value, ast.Name):
            arguments = [node.value, ast.Constant(value=marked)]
            node.value = ast.Call(func=ast.Name(id=REUSED, ctx=ast.Load()), args=arguments, keywords=[])
        target = node.targets[0]
        if isinstance(target, ast.Name) and len(node.targets) == 1:
            arguments = [ast.Constant(value=target.id), node.value]
            node.value = ast.Call(func=ast.Name(id=NAMED, ctx=ast.Load()), args=arguments, keywords=[])
    names: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(tree), call.__code__.co_filename, "exec"), call.__globals__, names)
    found: types.FunctionType = names[call.__name__]
    return found


@dataclass(eq=False)
class _Operators:
    """A namespace of operators: what they are given is read or written, what they return is new."""

    _run: _Run
    _name: str

    def __getattr__(self, name: str) -> Any:
        return _Operators(self._run, f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._run.operator(self._name, *arguments, **named)


@dataclass(eq=False)
class _Torch:
    """The module ``torch`` of generated code: its operators, types, and contexts."""

    _run: _Run

    def __getattr__(self, name: str) -> Any:
        return _Operators(self._run, "torch.ops") if name == "ops" else getattr(torch, name)
