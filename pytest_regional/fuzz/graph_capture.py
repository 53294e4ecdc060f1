"""Programs as FX graphs without Dynamo: the generator knows the program, so there is no bytecode to trace.

``torch.fx`` runs the program on proxies, once, and keeps region annotations in the metadata of nodes, as Dynamo does.
What proxies do not see is left to Dynamo: contexts that set state, blocks that a higher-order operator calls, autograd
functions, sizes that are symbols or depend on data.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx.traceback import preserve_node_meta

from pytest_regional.fuzz.model.program import Context, Program
from pytest_regional.fuzz.model.source import DEFINITIONS
from pytest_regional.fuzz.operators.operator import Operator
from pytest_regional.fuzz.operators.table import operator_named

#: One program in so many is captured by Dynamo though it need not be.
DYNAMO_EVERY = 10

#: What code that expects a tensor raises when it meets a proxy.
_REFUSALS = (torch.fx.proxy.TraceError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class _Value(torch.fx.Proxy):  # type: ignore[misc]  # torch is not typed here
    """A proxy whose elements can be assigned to."""

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


class _Tracer(torch.fx.Tracer):  # type: ignore[misc]  # torch is not typed here
    def proxy(self, node: torch.fx.Node) -> _Value:
        return _Value(node, self)


def needs_dynamo(program: Program) -> str:
    """Return why only Dynamo captures ``program`` as it is; empty where its graph can be written down.

    Inputs whose sizes may be symbols (``maybe_mark_dynamic``) have constant sizes in that graph.
    """
    if program.dynamic:
        return "sizes are symbols"
    steps = tuple(program.all_steps())
    for context in (context for step in steps for context in step.scope):
        if isinstance(context, Context) and context.kind != "tag":
            return f"{context.kind} sets state"
    named = [operator_named(step.operator) for step in steps]
    unseen = next((reason for one in named if (reason := _unseen(one))), "")
    return unseen or _refused_by_proxies(program)


def _refused_by_proxies(program: Program) -> str:
    """Return what a proxy cannot do that ``program`` does: Python code of PyTorch's may look at its inputs."""
    try:
        graph_of_program(program)
    except _REFUSALS as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _unseen(one: Operator) -> str:
    """Return what of ``one`` proxies do not see."""
    if one.block_wrapper or (one.calls and one.family != "call"):
        return "a block is called by an operator"
    if one.unbacked:
        return "sizes depend on data"
    own = next((name for name in one.needs if "custom_op(" not in DEFINITIONS[name]), "")
    return f"{own} runs code of its own" if own else ""


def graph_of_program(program: Program) -> torch.fx.GraphModule:
    """Return the graph of ``program``, its annotations in the metadata of nodes, as a backend gets it from Dynamo.

    The program is one of which :func:`needs_dynamo` says nothing.
    """
    with preserve_node_meta():
        graph = _Tracer(autowrap_modules=()).trace(program.function)
    (output,) = graph.find_nodes(op="output")
    # Dynamo asks a backend for each value once, and for no input: it returns those itself.
    made = [value for value in dict.fromkeys(output.args[0]) if value.op != "placeholder"]
    output.args = (tuple(made),)
    return torch.fx.GraphModule({}, graph)


def compiled_on_first_call(
    program: Program, compile_graph: Callable[[torch.fx.GraphModule, tuple[Any, ...]], Callable[..., Any]]
) -> Callable[..., Any]:
    """Return ``program`` compiled for the inputs of its first call, and again for inputs of other sizes or strides.

    Args:
        program: one of which :func:`needs_dynamo` says nothing.
        compile_graph: a backend, called with the graph and the inputs.
    """
    compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
    count = len(program.arguments)
    made = [number for number in dict.fromkeys(program.outputs) if number >= count]

    def call(*inputs: Any) -> tuple[Any, ...]:
        key = (torch.is_grad_enabled(), *((value.shape, value.stride(), value.requires_grad) for value in inputs))
        if key not in compiled:
            compiled[key] = compile_graph(graph_of_program(program), inputs)
        values = dict(enumerate(inputs)) | dict(zip(made, compiled[key](*inputs), strict=True))
        return tuple(values[number] for number in program.outputs)

    return call


__all__ = ["DYNAMO_EVERY", "compiled_on_first_call", "graph_of_program", "needs_dynamo"]
