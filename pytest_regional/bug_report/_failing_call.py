"""A plugin of pytest that writes down the program of a failing ``assert_parity``, reduced: ``-p`` names it.

It is loaded in a run of one test alone, which :mod:`pytest_regional.bug_report.running` starts.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx

from pytest_regional._base.processes import cpu_seconds
from pytest_regional._base.text import first_line
from pytest_regional._torch.fx_graphs import run_checked
from pytest_regional.bug_report.graph_source import UnwritableGraphError, source_of_graph, sources_of_inputs
from pytest_regional.bug_report.running import ANSWER_VARIABLE
from pytest_regional.fuzz.oracles.oracle import kinds_of
from pytest_regional.harness.blame.divergence import NoGraphError, captured_graphs
from pytest_regional.harness.blame.experiments import Change
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
    for one in _alone(best):
        if _holds(one, fails, until):
            best = one
            break
    size = _count(best)
    while size and cpu_seconds() < until:
        start = 0
        while start < _count(best) and cpu_seconds() < until:
            smaller = [without(best, start, size), ended_at(best, _count(best) - start - size)]
            found = next((one for one in smaller if one is not None and _holds(one, fails, until)), None)
            if found is None:
                start += size
            else:
                best = found
        size //= 2
    return best


def _holds(one: Reduced, fails: Fails, until: float) -> bool:
    return cpu_seconds() < until and fails(one.module, one.inputs)


def _computed(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return the operators; what reads the body of one goes with it."""
    return [node for node in graph.nodes if node.op.startswith("call")]


def _count(one: Reduced) -> int:
    return len(_computed(one.module.graph))


def _alone(one: Reduced) -> list[Reduced]:
    """Return the graph with each of its results alone."""
    results = _results(one.module.graph)
    return [_with_results(one, [number]) for number in range(len(results))] if len(results) > 1 else []


def _results(graph: torch.fx.Graph) -> list[Any]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    return list(output.args[0]) if isinstance(output.args[0], tuple | list) else [output.args[0]]


def _with_results(one: Reduced, kept: Sequence[int]) -> Reduced:
    graph = _copy(one.module.graph)
    results = _results(graph)
    return _finished(one, graph, [results[number] for number in kept])


def ended_at(one: Reduced, count: int) -> Reduced | None:
    """Return the first ``count`` operators, of which the last gives the result; ``None`` where it is no tensor."""
    graph = _copy(one.module.graph)
    computed = _computed(graph)
    if not 0 < count < len(computed):
        return None
    values = _values(one)
    last = computed[count - 1]
    if not isinstance(values.get(last.name), torch.Tensor):
        return None
    (output,) = (node for node in graph.nodes if node.op == "output")
    output.args = ((last,),)
    for node in reversed(computed[count:]):
        graph.erase_node(node)
    return _finished(one, graph, [last])


def without(one: Reduced, start: int, count: int) -> Reduced | None:
    """Return the graph with inputs in place of the operators from ``start`` on; ``None`` where that cannot be."""
    graph = _copy(one.module.graph)
    chosen = set(_computed(graph)[start : start + count])
    results = _results(graph)
    needed = [node for node in chosen if any(user not in chosen for user in node.users)]
    values = _values(one)
    if not all(isinstance(values.get(node.name), torch.Tensor) for node in needed):
        return None
    first = next(iter(graph.nodes))
    inputs = list(one.inputs)
    for node in sorted(needed, key=lambda node: node.name):
        value = values[node.name]
        with graph.inserting_before(first):
            given = graph.placeholder(f"{node.name}_given")
        node.replace_all_uses_with(given, delete_user_cb=lambda user: user not in chosen)
        results = [given if result is node else result for result in results]
        inputs.insert(_place(graph, given), value.detach().requires_grad_(value.requires_grad))
    (output,) = (node for node in graph.nodes if node.op == "output")
    output.args = (tuple(results),)
    for node in reversed(graph.nodes):
        if node in chosen and not node.users:
            graph.erase_node(node)
    return _finished(Reduced(one.module, tuple(inputs)), graph, results)


def _place(graph: torch.fx.Graph, given: torch.fx.Node) -> int:
    return [node for node in graph.nodes if node.op == "placeholder"].index(given)


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


def _finished(one: Reduced, graph: torch.fx.Graph, results: Sequence[Any]) -> Reduced:
    """Return a graph with these results, without the operators and inputs that nothing reads."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    output.args = (tuple(results),)
    graph.eliminate_dead_code(is_impure_node=_writes)
    inputs = []
    for node, value in zip([node for node in graph.nodes if node.op == "placeholder"], one.inputs, strict=True):
        if node.users:
            inputs.append(value)
        else:
            graph.erase_node(node)
    return Reduced(torch.fx.GraphModule(one.module, graph), tuple(inputs))


#: How long a graph is made smaller.
_SECONDS = 90.0


def pytest_exception_interact(node: Any, call: Any, report: Any) -> None:
    """Write down what failed."""
    answer = Path(os.environ[ANSWER_VARIABLE])
    error = call.excinfo.value
    if answer.exists() or isinstance(error, pytest.skip.Exception):
        return
    check = _check_in(error)
    if check is None or not isinstance(error, ParityError):
        said = f"it ends with {first_line(error)}, not with an error of assert_parity"
        answer.write_text(json.dumps({"refused": said}), encoding="utf-8")
        return
    try:
        data = _written(check, error)
    except (NoGraphError, UnwritableGraphError) as reason:
        data = {"refused": str(reason)}
    answer.write_text(json.dumps(data), encoding="utf-8")


def _check_in(error: BaseException) -> ParityCheck | None:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((f.f_locals.get("check") for f in frames if f.f_code is Regional.assert_parity.__code__), None)


def _written(check: ParityCheck, error: ParityError) -> dict[str, Any]:
    """Return the program as sources, and what fails.

    Raises:
        NoGraphError: Dynamo makes none of it, fails, or makes several of which none fails alone.
        UnwritableGraphError: it calls what no source names.
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

    # A graph may be called several times.
    calls = {id(graph): (graph, inputs) for graph, inputs in reversed(_captured(check))}
    graphs = [_with_tensors_as_inputs(graph, inputs) for graph, inputs in reversed(calls.values())]
    failing = ((one, found) for one in graphs if (found := failure(one.module, one.inputs)))
    small, found = next(failing, (None, None))
    if small is not None and found is not None:
        error = found
        small = reduced(small.module, small.inputs, lambda *given: failure(*given) is not None, seconds=_SECONDS)
    elif _is_wrong_captured(check, kinds):
        raise NoGraphError("Dynamo's graph of it is wrong already when it runs eagerly, so no graph shows the defect")
    elif len(graphs) == 1:
        small = graphs[0]
    else:
        raise NoGraphError(f"Dynamo makes {len(graphs)} graphs of the program, and none of them fails alone")
    first = error.report.mismatches[0] if error.report.mismatches else None
    return {
        "program": source_of_graph(small.module.graph),
        "plain": source_of_graph(small.module.graph, annotated=False),
        "inputs": list(sources_of_inputs(small.inputs)),
        "origin": kinds_of(replace(one, where=one.where.rpartition(": ")[2]) for one in error.report.mismatches),
        "seen": str(first) if first else str(error).partition("\n")[0],
        "operators": sorted({_operator(node) for node in small.module.graph.nodes if node.op.startswith("call")}),
        "backend": check.regional._spec.origin or check.regional.backend,
        "raises": class_of(error.__cause__) if error.__cause__ and kinds == {"exception"} else "",
        "dynamic": check.regional._options.dynamic,
    }


def _is_wrong_captured(check: ParityCheck, kinds: set[str]) -> bool:
    """Return whether the program fails alike where what Dynamo captured runs eagerly."""
    check.regional.restart()
    with check.regional._changed(Change("Dynamo's graph run eagerly", backend=lambda gm, inputs, **options: gm)):
        try:
            replace(check, depth="off").run()
        except ParityError as found:
            return bool(kinds & _kinds(found))
    return False


def _captured(check: ParityCheck) -> list[tuple[torch.fx.GraphModule, list[Any]]]:
    """Return Dynamo's graphs of a program, and what each is called with.

    Raises:
        NoGraphError: Dynamo fails, with any exception.
    """
    try:
        return captured_graphs(check)
    except Exception as error:
        raise NoGraphError(f"its graph cannot be captured: {first_line(error)}") from error


def _operator(node: torch.fx.Node) -> str:
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target))


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
