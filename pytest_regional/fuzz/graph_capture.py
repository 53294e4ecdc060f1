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

from pytest_regional._base.errors import RegionalError
from pytest_regional._torch.thread_state import autocast_calls, gradient_mode_call
from pytest_regional._torch.tracing import is_symbolic, new_fake_mode
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.model.source import DEFINITIONS
from pytest_regional.fuzz.operators.operator import Operator
from pytest_regional.fuzz.operators.table import operator_named

#: One program in so many is captured by Dynamo though it need not be.
DYNAMO_EVERY = 10

#: What Dynamo writes as a function of Python's, and the tensor's method is called.
_PYTHON_FUNCTIONS = {"__getitem__": operator.getitem, "__setitem__": operator.setitem}


class NotCapturedError(RegionalError):
    """A program does what cannot be written down as a graph here; the message is the reason."""


def needs_dynamo(program: Program) -> str:
    """Return why only Dynamo captures ``program`` as it is; empty where its graph can be written down.

    Inputs whose sizes may be symbols (``maybe_mark_dynamic``) have constant sizes in that graph.
    """
    if program.dynamic:
        return "sizes are symbols"
    named = {step.operator: operator_named(step.operator) for step in program.all_steps()}
    return next((reason for one in named.values() if (reason := _unseen(one))), "")


def _unseen(one: Operator) -> str:
    """Return what ``one`` does besides calling torch functions."""
    if one.block_wrapper or (one.calls and one.family != "call"):
        return "a block is called by an operator"
    if one.unbacked:
        return "sizes depend on data"
    own = next((name for name in one.needs if "custom_op(" not in DEFINITIONS[name]), "")
    return f"{own} runs code of its own" if own else ""


class _Recorder(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Writes the torch functions that are called into a graph."""

    def __init__(self, inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self._nodes: dict[int, torch.fx.Node] = {}
        self._alive: list[torch.Tensor] = []  # an identity is one only while the object lives
        self._state = self._first = _state_now()
        self._autocast: torch.fx.Node | None = None
        self.placeholders = [self._placeholder(f"x{number}", value) for number, value in enumerate(inputs)]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__iter__:
            with self:
                return iter(torch.unbind(*args))
        result = func(*args, **kwargs)
        if _makes_tensors(result) or (result is None and _holds_tensor((args, kwargs))):
            self._change_state(_state_now())
            if getattr(func, "__name__", "") == "__get__":  # a property, T for example
                func, args = getattr, (args[0], func.__self__.__name__)
            self._define(self._call(*_target_of(func), args, kwargs), result)
        return result

    def finish(self, outputs: Iterable[Any]) -> None:
        """End the graph, which returns ``outputs``."""
        self._change_state(self._first)
        self.graph.output(tuple(map(self._node_of, outputs)))

    def _placeholder(self, name: str, value: torch.Tensor) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        self._define(node, value)
        return node

    def _call(self, op: str, target: Any, args: Any, kwargs: Any) -> torch.fx.Node:
        args, kwargs = map_aggregate((args, kwargs), self._written)
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs))
        custom = get_current_meta().get("custom")
        if custom:
            node.meta["custom"] = dict(custom)
        return node

    def _written(self, value: Any) -> Any:
        if is_symbolic(value):
            raise NotCapturedError("a number depends on data")
        return self._node_of(value) if isinstance(value, torch.Tensor) else value

    def _node_of(self, tensor: Any) -> torch.fx.Node:
        if id(tensor) not in self._nodes:
            raise NotCapturedError("a tensor comes from nowhere: no torch function returned it")
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


def _makes_tensors(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(isinstance(element, torch.Tensor) for element in result)
    return isinstance(result, torch.Tensor)


def _holds_tensor(arguments: Any) -> bool:
    found = False

    def look(value: Any) -> Any:
        nonlocal found
        found |= isinstance(value, torch.Tensor)
        return value

    map_aggregate(arguments, look)
    return found


def _target_of(func: Any) -> tuple[str, Any]:
    """Return kind and target of the node that calls ``func``."""
    name = _methods().get(func)
    if name is not None:
        python_function = _PYTHON_FUNCTIONS.get(name)
        return ("call_method", name) if python_function is None else ("call_function", python_function)
    return "call_function", func


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
        NotCapturedError: the program does what cannot be written down.
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
    except NotCapturedError:
        raise
    except Exception as error:
        # On fake tensors Python code of PyTorch's may ask for an element. Dynamo says what is wrong, if anything is.
        raise NotCapturedError(f"on fake tensors: {type(error).__name__}: {error}") from error
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

    def call(*inputs: Any) -> tuple[Any, ...]:
        key = (torch.is_grad_enabled(), *((value.shape, value.stride(), value.requires_grad) for value in inputs))
        if key not in compiled:
            compiled[key] = _compiled(program, inputs, compile_graph, otherwise)
        result: tuple[Any, ...] = compiled[key](*inputs)
        return result

    return call


def _compiled(
    program: Program,
    inputs: tuple[Any, ...],
    compile_graph: Callable[[torch.fx.GraphModule, tuple[Any, ...]], Callable[..., Any]],
    otherwise: Callable[[], Callable[..., Any]],
) -> Callable[..., Any]:
    try:
        graph, used = graph_of_program(program, inputs)
    except NotCapturedError:
        return otherwise()
    # Dynamo hands a backend no graph that does nothing.
    is_empty = not any(node.op.startswith("call_") for node in graph.graph.nodes)
    compiled = graph if is_empty else compile_graph(graph, tuple(inputs[number] for number in used))
    made = [number for number in dict.fromkeys(program.outputs) if number >= len(inputs)]

    def call(*given: Any) -> tuple[Any, ...]:
        found = compiled(*(given[number] for number in used))
        values = dict(enumerate(given)) | dict(zip(made, found, strict=True))
        return tuple(values[number] for number in program.outputs)

    return call


__all__ = ["DYNAMO_EVERY", "NotCapturedError", "compiled_on_first_call", "graph_of_program", "needs_dynamo"]
