"""Writes a graph of torch functions as the Python that made it, and its inputs as Python that makes such tensors."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.text import tuple_text
from pytest_regional._torch.fx_graphs import qualified_name

#: What is written between two operands.
_BETWEEN = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.matmul: "@",
    operator.lt: "<",
    operator.gt: ">",
    operator.eq: "==",
}

#: Operators whose bodies may be functions; of others Dynamo takes only what its own wrappers make of functions.
_WITH_BODIES = ("torch.ops.higher_order.cond", "torch.ops.higher_order.while_loop")

#: So many numbers are written down; tensors with more are made.
_WRITTEN = 4096

#: So many numbers are short enough to be read.
_SHORT = 24

_PLAIN = (bool, int, str, type(None), type(...), torch.dtype, torch.memory_format, torch.layout)


class UnwritableGraphError(RegionalError):
    """A graph calls what no source names: a module, an object of the user's; the message says which."""


def source_of_graph(graph: torch.fx.Graph, *, annotated: bool = True) -> str:
    """Return the source of a function ``program`` with the operators of a graph, and its annotations.

    Bodies of operators such as ``cond`` are functions before it.

    Raises:
        UnwritableGraphError: it calls what no source names.
    """
    text = "\n\n\n".join(_functions("program", graph, annotated=annotated))
    imports = [f"import {name}" for name in ("math", "operator") if f"{name}." in text]
    imports += ["import torch", *(["from torch.fx.traceback import annotate"] if "annotate(" in text else [])]
    return "\n".join(imports) + f"\n\n\n{text}\n"


def _functions(name: str, graph: torch.fx.Graph, *, annotated: bool) -> list[str]:
    """Return the source of a graph as a function; before it those of the bodies that its operators call."""
    names = _names_of(graph, "" if name == "program" else f"{name}_")
    bodies = {names[node]: _body(graph, node) for node in graph.nodes if node.op == "get_attr"}
    before = [text for body, inner in bodies.items() for text in _functions(body, inner, annotated=annotated)]
    inputs = [names[node] for node in graph.nodes if node.op == "placeholder"]
    lines = [f"def {name}({', '.join(inputs)}):"]
    computed = [node for node in graph.nodes if node.op.startswith("call")]
    for custom, nodes in itertools.groupby(
        computed, lambda node: node.meta.get("custom") or None if annotated else None
    ):
        body = [f"{names[node]} = {_call(node, names)}" for node in nodes]
        if custom is None:
            lines += [f"    {line}" for line in body]
        else:
            lines += [f"    with annotate({_text(custom, names)}):", *(f"        {line}" for line in body)]
    (output,) = (node for node in graph.nodes if node.op == "output")
    several = isinstance(output.args[0], tuple | list)
    results = output.args[0] if several else (output.args[0],)
    # A condition of a loop is one value; a program always returns a tuple.
    end = "," if several or name == "program" else ""
    lines.append(f"    return {', '.join(_text(one, names) for one in results)}{end}")
    return [*before, "\n".join(lines)]


def _body(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Graph:
    """Return what an operator such as ``cond`` calls.

    Raises:
        UnwritableGraphError: it is no graph.
    """
    found = getattr(graph.owning_module, str(node.target), None)
    if not isinstance(found, torch.fx.GraphModule):
        raise UnwritableGraphError(f"the graph holds {node.target}, a {type(found).__name__}")
    return found.graph


def _names_of(graph: torch.fx.Graph, prefix: str) -> dict[torch.fx.Node, str]:
    """Return short names: inputs are numbered, results are called by their operators, bodies as the graph has them."""
    numbers = itertools.count()
    return {
        node: f"x{next(numbers)}"
        if node.op == "placeholder"
        else f"{prefix}{node.target}_"
        if node.op == "get_attr"
        else f"{node.name}_"
        for node in graph.nodes
    }


def _call(node: torch.fx.Node, names: Mapping[torch.fx.Node, str]) -> str:
    arguments = [_text(one, names) for one in node.args]
    named = [f"{name}={_text(value, names)}" for name, value in node.kwargs.items()]
    if node.op == "call_method":
        return f"{arguments[0]}.{node.target}({', '.join([*arguments[1:], *named])})"
    if node.op != "call_function":
        raise UnwritableGraphError(f"the graph calls {node.target!r} of a module")
    if node.target in _BETWEEN and not named:
        return f" {_BETWEEN[node.target]} ".join(arguments)
    if node.target is operator.getitem:
        index = node.args[1]
        inner = ", ".join(_text(one, names) for one in index) if isinstance(index, tuple) and index else arguments[1]
        return f"{arguments[0]}[{inner}]"
    name = _function(node.target)
    if any(one.op == "get_attr" for one in node.all_input_nodes) and name not in _WITH_BODIES:
        raise UnwritableGraphError(f"the graph calls {name}, whose bodies cannot be given as functions")
    return f"{name}({', '.join([*arguments, *named])})"


def _function(target: Any) -> str:
    name = qualified_name(target).replace("_operator.", "operator.")
    try:
        found = operator.attrgetter(name.partition(".")[2])(torch if name.startswith("torch.") else operator)
    except AttributeError:
        found = None
    if found is target:
        return name
    raise UnwritableGraphError(f"the graph calls {name}, which is not PyTorch's")


def _text(value: Any, names: Mapping[torch.fx.Node, str]) -> str:
    """Return an argument as source.

    Raises:
        UnwritableGraphError: it has none.
    """
    if isinstance(value, torch.fx.Node):
        return names[value]
    if isinstance(value, slice):
        ends = [("" if one is None else _text(one, names)) for one in (value.start, value.stop)]
        return ":".join(ends) + (f":{_text(value.step, names)}" if value.step is not None else "")
    if isinstance(value, tuple | list):
        items = [
            f"slice({one.start}, {one.stop}, {one.step})" if isinstance(one, slice) else _text(one, names)
            for one in value
        ]
        return f"[{', '.join(items)}]" if isinstance(value, list) else tuple_text(items)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_text(one, names)}" for key, one in value.items()) + "}"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float('{value}')"
    if isinstance(value, _PLAIN):
        return "..." if value is ... else repr(value)
    raise UnwritableGraphError(f"the graph has an argument of type {type(value).__name__}")


def sources_of_inputs(inputs: Sequence[Any]) -> Iterator[str]:
    """Yield sources of a function ``inputs`` that makes tensors like the given ones, the plainest first.

    The last one makes the same values, where they are few enough to be written down.
    """
    made: list[str] = []
    sizes = sum(one.numel() for one in inputs if isinstance(one, torch.Tensor))
    fills = ("randn", "ones", "arange")
    kinds = (*fills, "written") if sizes > _SHORT else ("written", *fills)
    for kind in kinds:
        if kind == "written" and sizes > _WRITTEN:
            continue
        lines = [f"x{number} = {_tensor(one, kind)}" for number, one in enumerate(inputs)]
        drawn = ["torch.manual_seed(0)"] * any("torch.rand" in line for line in lines)
        values = ", ".join(f"x{number}" for number in range(len(inputs)))
        made.append("\n".join(["def inputs():", *(f"    {line}" for line in (*drawn, *lines, f"return [{values}]"))]))
    yield from dict.fromkeys(made)


def _tensor(value: Any, kind: str) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    value_of = value.detach()
    shape = tuple(value.shape)
    text = _values(value_of, kind)
    if not value_of.is_contiguous() and value_of.numel():
        extent = sum((size - 1) * stride for size, stride in zip(shape, value_of.stride(), strict=True)) + 1
        memory = value_of.as_strided((extent,), (1,))
        text = f"{_values(memory, kind)}.as_strided({shape}, {tuple(value_of.stride())})"
    return f"{text}.requires_grad_()" if value.requires_grad else text


def _values(value: torch.Tensor, kind: str) -> str:
    shape, dtype = tuple(value.shape), value.dtype
    given = "" if dtype is torch.float32 else f", dtype={dtype}"
    if not value.numel():
        return f"torch.zeros({shape}{given})"
    if kind == "written":
        numbers = str(value.tolist()).replace("inf", "float('inf')").replace("nan", "float('nan')")
        return f"torch.tensor({numbers}, dtype={dtype})"
    if dtype is torch.bool:
        return f"torch.ones({shape}, dtype={dtype})"
    if not dtype.is_floating_point and not dtype.is_complex:
        most = int(value.max()) + 1
        return f"torch.arange({value.numel()}).reshape({shape}).remainder({max(most, 1)}).to({dtype})"
    if kind == "arange":
        return f"torch.arange({value.numel()}.).reshape({shape}){f'.to({dtype})' if given else ''}"
    return f"torch.{kind}({shape}{given})"
