"""A plugin of pytest that writes down the program of a failing ``assert_parity``, reduced: ``-p`` names it.

It is loaded in a run of one test alone, which :mod:`pytest_regional.bug_report.running` starts.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx

from pytest_regional._base.processes import cpu_seconds
from pytest_regional._base.text import first_line, tuple_text
from pytest_regional._torch.fx_graphs import qualified_name, run_checked
from pytest_regional.bug_report.running import ANSWER_VARIABLE
from pytest_regional.fuzz.oracles.example_run import kinds_of
from pytest_regional.harness.blame.culprit import Change
from pytest_regional.harness.blame.divergence import NoGraphError, captured_graphs
from pytest_regional.harness.parity.check import ParityCheck
from pytest_regional.harness.parity.inputs import copy_inputs
from pytest_regional.harness.parity.report import BadProgramError, ParityError
from pytest_regional.harness.raised import class_of
from pytest_regional.harness.regional import Regional

#: Whether a graph fails with inputs as the whole one did.
Fails = Callable[[torch.fx.GraphModule, Sequence[Any]], bool]


@dataclass(frozen=True)
class Reduced:
    """A graph, and the inputs that it fails with."""

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]


def reduced(module: torch.fx.GraphModule, inputs: Sequence[Any], fails: Fails, *, seconds: float) -> Reduced:
    """Return a smaller graph that fails; the whole one where there is none.

    Ranges of operators are taken out, halves first, then quarters, as delta debugging does (Zeller and Hildebrandt,
    "Simplifying and isolating failure-inducing input", 2002). What was computed there becomes an input.

    Args:
        module: it fails with ``inputs``.
        inputs: of the graph.
        fails: runs and compares.
        seconds: of processor time, how long to go on.
    """
    best, until = Reduced(module, tuple(inputs)), cpu_seconds() + seconds

    def holds(one: Reduced) -> bool:
        return cpu_seconds() < until and fails(one.module, one.inputs)

    results = module.graph.output_node().args[0]
    several = isinstance(results, tuple | list) and len(results) > 1
    for number in range(len(results)) if several else ():
        graph = _copy(module.graph)
        graph.output_node().args = ((graph.output_node().args[0][number],),)
        alone = _finished(module, graph, inputs)
        if holds(alone):
            best = alone
            break
    size = _count(best)
    while size and cpu_seconds() < until:
        start = 0
        while start < _count(best) and cpu_seconds() < until:
            smaller = [without(best, start, size), ended_at(best, _count(best) - start - size)]
            found = next((one for one in smaller if one is not None and holds(one)), None)
            if found is None:
                start += size
            else:
                best = found
        size //= 2
    return best


def _computed(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return the operators; what reads the body of one goes with it."""
    return [node for node in graph.nodes if node.op.startswith("call")]


def _count(one: Reduced) -> int:
    return len(_computed(one.module.graph))


def ended_at(one: Reduced, count: int) -> Reduced | None:
    """Return the first ``count`` operators, of which the last gives the result; ``None`` where it is no tensor."""
    graph = _copy(one.module.graph)
    computed = _computed(graph)
    if not 0 < count < len(computed):
        return None
    last = computed[count - 1]
    if not isinstance(_values(one).get(last.name), torch.Tensor):
        return None
    graph.output_node().args = ((last,),)
    for node in reversed(computed[count:]):
        graph.erase_node(node)
    return _finished(one.module, graph, one.inputs)


def without(one: Reduced, start: int, count: int) -> Reduced | None:
    """Return the graph with inputs in place of the operators from ``start`` on; ``None`` where that cannot be."""
    graph = _copy(one.module.graph)
    chosen = set(_computed(graph)[start : start + count])
    needed = [node for node in chosen if any(user not in chosen for user in node.users)]
    values = _values(one)
    if not all(isinstance(values.get(node.name), torch.Tensor) for node in needed):
        return None
    first = next(iter(graph.nodes))
    given = []
    for node in sorted(needed, key=lambda node: node.name):
        with graph.inserting_before(first):
            placeholder = graph.placeholder(f"{node.name}_given")
        node.replace_all_uses_with(placeholder, delete_user_cb=lambda user: user not in chosen)
        value = values[node.name]
        given.append(value.detach().requires_grad_(value.requires_grad))
    for node in reversed(graph.nodes):
        if node in chosen and not node.users:
            graph.erase_node(node)
    return _finished(one.module, graph, (*given, *one.inputs))


def _copy(graph: torch.fx.Graph) -> torch.fx.Graph:
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    for new, old in zip(copy.nodes, graph.nodes, strict=True):
        new.meta, new.name = dict(old.meta), old.name
    return copy


def _values(one: Reduced) -> dict[str, Any]:
    """Return what each operator computes, by name, as it was before anything was written to it."""
    found: dict[str, Any] = {}

    def note(node: torch.fx.Node, given: tuple[Any, ...], value: Any) -> None:
        found[node.name] = copy_inputs((value,)).arguments[0] if isinstance(value, torch.Tensor) else value

    run_checked(one.module, copy_inputs(one.inputs).arguments, note)
    return found


def _writes(node: torch.fx.Node) -> bool:
    """Tell whether a node does something besides computing its result: torch.fx knows that of few functions only."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return bool(node.is_impure() or in_place or name == "setitem" or "out" in node.kwargs)


def _finished(module: torch.fx.GraphModule, graph: torch.fx.Graph, given: Sequence[Any]) -> Reduced:
    """Return a graph without the operators and inputs that nothing reads; ``module`` has its attributes."""
    graph.eliminate_dead_code(is_impure_node=_writes)
    inputs = []
    for node, value in zip(graph.find_nodes(op="placeholder"), given, strict=True):
        if node.users:
            inputs.append(value)
        else:
            graph.erase_node(node)
    return Reduced(torch.fx.GraphModule(module, graph), tuple(inputs))


#: How long a graph is made smaller.
_SECONDS = 90.0


def pytest_exception_interact(node: Any, call: Any, report: Any) -> None:
    """Write down what failed."""
    answer = Path(os.environ[ANSWER_VARIABLE])
    error = call.excinfo.value
    if answer.exists() or isinstance(error, pytest.skip.Exception):
        return
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    check = next((f.f_locals.get("check") for f in frames if f.f_code is Regional.assert_parity.__code__), None)
    if check is None or not isinstance(error, ParityError):
        data = {"refused": f"it ends with {first_line(error)}, not with an error of assert_parity"}
    else:
        try:
            data = _written(check, error)
        except NoGraphError as reason:
            data = {"refused": str(reason)}
    answer.write_text(json.dumps(data), encoding="utf-8")


def _written(check: ParityCheck, error: ParityError) -> dict[str, Any]:
    """Return the program as sources, and what fails.

    Raises:
        NoGraphError: Dynamo makes none of it, fails, or makes several of which none fails alone.
        NoGraphError: it calls what no source names.
    """
    kinds = _kinds(error)

    def failure(module: torch.fx.GraphModule, given: Sequence[Any]) -> ParityError | None:
        try:
            replace(check, fn=module, inputs=tuple(given), kwargs={}).run()
        except ParityError as found:
            return found if kinds & _kinds(found) else None
        except (BadProgramError, AssertionError):
            return None
        return None

    try:
        captured = captured_graphs(check)
    except Exception as failed:
        raise NoGraphError(f"its graph cannot be captured: {first_line(failed)}") from failed
    # A graph may be called several times.
    calls = {id(graph): (graph, inputs) for graph, inputs in reversed(captured)}
    graphs = [_with_tensors_as_inputs(graph, inputs) for graph, inputs in reversed(calls.values())]
    failing = ((one, found) for one in graphs if (found := failure(one.module, one.inputs)))
    small, found = next(failing, (None, None))
    if small is not None and found is not None:
        error = found
        small = reduced(small.module, small.inputs, lambda *given: failure(*given) is not None, seconds=_SECONDS)
    else:
        check.regional.restart()
        with check.regional._changed(Change("Dynamo's graph run eagerly", backend=lambda gm, inputs, **options: gm)):
            try:
                replace(check, depth="off").run()
            except ParityError as eager:
                if kinds & _kinds(eager):
                    raise NoGraphError(
                        "Dynamo's graph of it is wrong already when it runs eagerly, so no graph shows the defect"
                    ) from eager
        if len(graphs) != 1:
            raise NoGraphError(f"Dynamo makes {len(graphs)} graphs of the program, and none of them fails alone")
        small = graphs[0]
    first = error.report.mismatches[0] if error.report.mismatches else None
    return {
        "program": source_of_graph(small.module.graph),
        "plain": source_of_graph(small.module.graph, annotated=False),
        "inputs": sources_of_inputs(small.inputs),
        "origin": kinds_of(replace(one, where=one.where.rpartition(": ")[2]) for one in error.report.mismatches),
        "seen": str(first) if first else str(error).partition("\n")[0],
        "operators": sorted(
            {
                str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target))
                for node in _computed(small.module.graph)
            }
        ),
        "backend": check.regional._spec.origin or check.regional.backend,
        "raises": class_of(error.__cause__) if error.__cause__ and kinds == {"exception"} else "",
        "dynamic": check.regional._options.dynamic,
    }


def _kinds(error: ParityError) -> set[str]:
    return {mismatch.kind for mismatch in error.report.mismatches}


def _with_tensors_as_inputs(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Reduced:
    """Return a graph whose constants and parameters are inputs as well."""
    given = list(inputs)
    for node in list(graph.graph.nodes):
        value = getattr(graph, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(value, torch.Tensor):
            with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
                placeholder = graph.graph.placeholder(f"{node.name}_given")
            given.insert(0, value.detach().clone().requires_grad_(value.requires_grad))
            node.replace_all_uses_with(placeholder)
            graph.graph.erase_node(node)
    graph.recompile()
    return Reduced(graph, tuple(given))


# A graph as the Python that made it, and its inputs as Python that makes such tensors.

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


def source_of_graph(graph: torch.fx.Graph, *, annotated: bool = True) -> str:
    """Return the source of a function ``program`` with the operators of a graph, and its annotations.

    Bodies of operators such as ``cond`` are functions before it.
    """
    text = "\n\n\n".join(_functions("program", graph, annotated=annotated))
    imports = [f"import {name}" for name in ("math", "operator") if f"{name}." in text]
    imports += ["import torch", *(["from torch.fx.traceback import annotate"] if "annotate(" in text else [])]
    return "\n".join(imports) + f"\n\n\n{text}\n"


def _functions(name: str, graph: torch.fx.Graph, *, annotated: bool) -> list[str]:
    """Return the source of a graph as a function; before it those of the bodies that its operators call."""
    prefix = "" if name == "program" else f"{name}_"
    # Inputs are numbered, results are called by their operators, bodies as the graph has them.
    inputs = graph.find_nodes(op="placeholder")
    names = {node: f"{node.name}_" for node in graph.nodes} | {node: f"x{n}" for n, node in enumerate(inputs)}
    bodies: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            names[node] = f"{prefix}{node.target}_"
            called = getattr(graph.owning_module, str(node.target), None)
            if not isinstance(called, torch.fx.GraphModule):
                raise NoGraphError(f"the graph holds {node.target}, a {type(called).__name__}")
            bodies[names[node]] = _functions(names[node], called.graph, annotated=annotated)
    lines = [f"def {name}({', '.join(names[node] for node in inputs)}):"]
    for custom, nodes in itertools.groupby(
        _computed(graph), lambda node: node.meta.get("custom") or None if annotated else None
    ):
        body = [f"{names[node]} = {_call(node, names)}" for node in nodes]
        if custom is None:
            lines += [f"    {line}" for line in body]
        else:
            lines += [f"    with annotate({_text(custom, names)}):", *(f"        {line}" for line in body)]
    returned = graph.output_node().args[0]
    several = isinstance(returned, tuple | list)
    results = returned if several else (returned,)
    # A condition of a loop is one value; a program always returns a tuple.
    end = "," if several or name == "program" else ""
    lines.append(f"    return {', '.join(_text(one, names) for one in results)}{end}")
    return [*itertools.chain(*bodies.values()), "\n".join(lines)]


def _call(node: torch.fx.Node, names: Mapping[torch.fx.Node, str]) -> str:
    arguments = [_text(one, names) for one in node.args]
    named = [f"{name}={_text(value, names)}" for name, value in node.kwargs.items()]
    if node.op == "call_method":
        return f"{arguments[0]}.{node.target}({', '.join([*arguments[1:], *named])})"
    if node.op != "call_function":
        raise NoGraphError(f"the graph calls {node.target!r} of a module")
    if node.target in _BETWEEN and not named:
        return f" {_BETWEEN[node.target]} ".join(arguments)
    if node.target is operator.getitem:
        index = node.args[1]
        inner = ", ".join(_text(one, names) for one in index) if isinstance(index, tuple) and index else arguments[1]
        return f"{arguments[0]}[{inner}]"
    name = qualified_name(node.target).replace("_operator.", "operator.")
    try:
        found = operator.attrgetter(name.partition(".")[2])(torch if name.startswith("torch.") else operator)
    except AttributeError:
        found = None
    if found is not node.target:
        raise NoGraphError(f"the graph calls {name}, which is not PyTorch's")
    if any(one.op == "get_attr" for one in node.all_input_nodes) and name not in _WITH_BODIES:
        raise NoGraphError(f"the graph calls {name}, whose bodies cannot be given as functions")
    return f"{name}({', '.join([*arguments, *named])})"


def _text(value: Any, names: Mapping[torch.fx.Node, str]) -> str:
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
    raise NoGraphError(f"the graph has an argument of type {type(value).__name__}")


def sources_of_inputs(inputs: Sequence[Any]) -> list[str]:
    """Return sources of a function ``inputs`` that makes tensors like the given ones, the plainest first.

    The last one makes the same values, where they are few enough to be written down.
    """
    made: list[str] = []
    sizes = sum(one.numel() for one in inputs if isinstance(one, torch.Tensor))
    kinds = ["randn", "ones", "arange"]
    if sizes <= _WRITTEN:
        kinds.insert(0 if sizes <= _SHORT else len(kinds), "written")
    for kind in kinds:
        lines = [f"x{number} = {_tensor(one, kind)}" for number, one in enumerate(inputs)]
        drawn = ["torch.manual_seed(0)"] * any("torch.rand" in line for line in lines)
        values = ", ".join(f"x{number}" for number in range(len(inputs)))
        made.append("\n".join(["def inputs():", *(f"    {line}" for line in (*drawn, *lines, f"return [{values}]"))]))
    return list(dict.fromkeys(made))


def _tensor(value: Any, kind: str) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    shape, plain = tuple(value.shape), value.detach()
    text = _made(plain, kind)
    if not plain.is_contiguous() and plain.numel():
        extent = sum((size - 1) * stride for size, stride in zip(shape, plain.stride(), strict=True)) + 1
        text = f"{_made(plain.as_strided((extent,), (1,)), kind)}.as_strided({shape}, {tuple(plain.stride())})"
    return f"{text}.requires_grad_()" if value.requires_grad else text


def _made(value: torch.Tensor, kind: str) -> str:
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
