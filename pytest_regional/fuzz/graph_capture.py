"""Programs as FX graphs without Dynamo: the generator knows the program, so there is no bytecode to trace.

The program runs once on fake tensors while a mode writes each call of a torch function down, as Dynamo does: with the
example value of each result, the annotation that holds, and the changes of gradient mode and autocast as calls of their
own. What is left to Dynamo: blocks that a higher-order operator calls, autograd functions, sizes that are symbols or
depend on data.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx
from torch.fx.node import map_aggregate
from torch.fx.traceback import get_current_meta
from torch.overrides import TorchFunctionMode

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._torch.fx_graphs import flatten
from pytest_regional._torch.thread_state import autocast_calls, gradient_mode_call
from pytest_regional._torch.tracing import is_symbolic, new_fake_mode
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.model.source import DEFINITIONS
from pytest_regional.fuzz.operators.table import operator_named

#: One program in so many is captured by Dynamo though it need not be.
DYNAMO_EVERY = 10

#: What Dynamo writes as a function of Python's, and the tensor's method is called.
_PYTHON_FUNCTIONS = {"__getitem__": operator.getitem, "__setitem__": operator.setitem}


def needs_dynamo(program: Program) -> str:
    """Return why only Dynamo captures ``program`` as it is; empty where its graph can be written down.

    Inputs whose sizes may be symbols (``maybe_mark_dynamic``) have constant sizes in that graph.
    """
    if program.dynamic:
        return "sizes are symbols"
    named = {step.operator: operator_named(step.operator) for step in program.all_steps()}
    for one in named.values():
        if one.block_wrapper or (one.calls and one.family != "call"):
            return "a block is called by an operator"
        if one.unbacked:
            return "sizes depend on data"
        for name in one.needs:
            if "custom_op(" not in DEFINITIONS[name]:
                return f"{name} runs code of its own"
    return ""


class _Recorder(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Writes the torch functions that are called into a graph."""

    def __init__(self, inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self._nodes: dict[int, torch.fx.Node] = {}
        self._alive: list[torch.Tensor] = []  # an identity is one only while the object lives
        self._state = self._first = _state_now()
        self._autocast: torch.fx.Node | None = None
        self.placeholders = []
        for number, value in enumerate(inputs):
            self.placeholders.append(self.graph.placeholder(f"x{number}"))
            self._define(self.placeholders[-1], value)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__iter__:
            with self:
                return iter(torch.unbind(*args))
        result = func(*args, **kwargs)
        made = flatten((args, kwargs) if result is None else result)[0]
        if any(isinstance(one, torch.Tensor) for one in made):
            self._change_state(_state_now())
            if getattr(func, "__name__", "") == "__get__":  # a property, T for example
                func, args = getattr, (args[0], func.__self__.__name__)
            name = _methods().get(func)
            if name is None:
                node = self._call("call_function", func, args, kwargs)
            elif name in _PYTHON_FUNCTIONS:
                node = self._call("call_function", _PYTHON_FUNCTIONS[name], args, kwargs)
            else:
                node = self._call("call_method", name, args, kwargs)
            self._define(node, result)
        return result

    def finish(self, outputs: Iterable[Any]) -> None:
        """End the graph, which returns ``outputs``."""
        self._change_state(self._first)
        self.graph.output(tuple(map(self._node_of, outputs)))

    def _call(self, op: str, target: Any, args: Any, kwargs: Any) -> torch.fx.Node:
        args, kwargs = map_aggregate((args, kwargs), self._written)
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs))
        custom = get_current_meta().get("custom")
        if custom:
            node.meta["custom"] = dict(custom)
        return node

    def _written(self, value: Any) -> Any:
        if is_symbolic(value):
            raise RegionalRuntimeError("a number depends on data")
        return self._node_of(value) if isinstance(value, torch.Tensor) else value

    def _node_of(self, tensor: Any) -> torch.fx.Node:
        if id(tensor) not in self._nodes:
            raise RegionalRuntimeError("a tensor comes from nowhere: no torch function returned it")
        return self._nodes[id(tensor)]

    def _define(self, node: torch.fx.Node, result: Any) -> None:
        node.meta["example_value"] = result
        if isinstance(result, torch.Tensor):
            self._alive.append(result)
            # What returns its operand itself makes no other tensor, though compilers may: the operand stands for both.
            self._nodes.setdefault(id(result), node)
        elif isinstance(result, (tuple, list)):
            for index, element in enumerate(result):
                if isinstance(element, torch.Tensor):
                    self._define(self._call("call_function", operator.getitem, (node, index), {}), element)

    def _change_state(self, wanted: tuple[bool, Any]) -> None:
        """Write down that gradient mode or autocast are others than at the call before."""
        (gradients, autocast), (wanted_gradients, wanted_autocast) = self._state, wanted
        self._state = wanted
        if gradients != wanted_gradients:
            self.graph.call_function(gradient_mode_call(), (wanted_gradients,))
        enter, leave = autocast_calls()
        if autocast != wanted_autocast:
            if self._autocast is not None:
                self.graph.call_function(leave, (self._autocast,))
                self._autocast = None
            if wanted_autocast != self._first[1]:
                self._autocast = self.graph.call_function(enter, wanted_autocast)


def _state_now() -> tuple[bool, tuple[str, torch.dtype, bool, bool]]:
    """Return gradient mode, and autocast as the arguments of the call that brings it about."""
    autocast = (
        "cpu",
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_cache_enabled(),
    )
    return torch.is_grad_enabled(), autocast


@functools.cache
def _methods() -> dict[Any, str]:
    """Return the methods of tensors with their names, which are not always what they call themselves."""
    found = {name: getattr(torch.Tensor, name) for name in dir(torch.Tensor) if name not in ("__class__", "__hash__")}
    return {method: name for name, method in found.items() if callable(method)}


def graph_of_program(
    program: Program, inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.fx.GraphModule, tuple[int, ...]]:
    """Return the graph of ``program`` for ``inputs`` as a backend gets it from Dynamo, and which inputs it takes.

    The graph returns each value of the program's outputs once, in order, and no input.

    Raises:
        RegionalRuntimeError: the program does what cannot be written down.
    """
    mode = new_fake_mode()
    fakes = [mode.from_tensor(value, static_shapes=True) for value in inputs]
    recorder = _Recorder(fakes)
    count = len(inputs)
    try:
        with mode, recorder:
            values = program.function(*fakes)
        made = {number: value for number, value in zip(program.outputs, values, strict=True) if number >= count}
        recorder.finish(made.values())
    except RegionalRuntimeError:
        raise
    except Exception as error:
        # On fake tensors Python code of PyTorch's may ask for an element. Dynamo says what is wrong, if anything is.
        raise RegionalRuntimeError(f"on fake tensors: {type(error).__name__}: {error}") from error
    used = tuple(number for number, node in enumerate(recorder.placeholders) if node.users)
    for node in recorder.placeholders:
        if not node.users:
            recorder.graph.erase_node(node)
    return torch.fx.GraphModule({}, recorder.graph), used


def compiled_on_first_call(
    program: Program,
    compile_graph: Callable[[torch.fx.GraphModule, tuple[Any, ...]], Callable[..., Any]],
    otherwise: Callable[[], Callable[..., Any]],
) -> Callable[..., Any]:
    """Return ``program`` compiled for the inputs of its first call, and again for inputs of other sizes or strides.

    Args:
        program: one of which :func:`needs_dynamo` says nothing.
        compile_graph: a backend, called with the graph and the inputs that it takes.
        otherwise: returns the program compiled in another way, for one whose graph cannot be written down.
    """
    compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def compile_for(inputs: tuple[Any, ...]) -> Callable[..., Any]:
        try:
            graph, used = graph_of_program(program, inputs)
        except RegionalRuntimeError:
            return otherwise()
        # Dynamo hands a backend no graph that does nothing.
        is_empty = not any(node.op.startswith("call_") for node in graph.graph.nodes)
        run = graph if is_empty else compile_graph(graph, tuple(inputs[number] for number in used))
        made = [number for number in dict.fromkeys(program.outputs) if number >= len(inputs)]

        def call_graph(*given: Any) -> tuple[Any, ...]:
            found = run(*(given[number] for number in used))
            values = dict(enumerate(given)) | dict(zip(made, found, strict=True))
            return tuple(values[number] for number in program.outputs)

        return call_graph

    def call(*inputs: Any) -> tuple[Any, ...]:
        key = (torch.is_grad_enabled(), *((value.shape, value.stride(), value.requires_grad) for value in inputs))
        if key not in compiled:
            compiled[key] = compile_for(inputs)
        result: tuple[Any, ...] = compiled[key](*inputs)
        return result

    return call
