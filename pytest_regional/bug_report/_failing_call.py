"""A plugin of pytest that writes down the program of a failing ``assert_parity``, reduced: ``-p`` names it.

It is loaded in a run of one test alone, which :mod:`pytest_regional.bug_report.failed_test` starts.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx

from pytest_regional._text import first_line
from pytest_regional.bug_report.failed_test import ANSWER_VARIABLE
from pytest_regional.bug_report.graph_reduction import Reduced, reduced
from pytest_regional.bug_report.graph_source import UnwritableGraphError, source_of_graph, sources_of_inputs
from pytest_regional.fuzz.oracles.oracle import kinds_of
from pytest_regional.harness.blame.divergence import NoGraphError, captured_graphs
from pytest_regional.harness.blame.experiments import Change
from pytest_regional.harness.parity.check import ParityCheck
from pytest_regional.harness.parity.report import BadProgramError, ParityError
from pytest_regional.harness.raised import class_of
from pytest_regional.harness.regional import Regional

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
