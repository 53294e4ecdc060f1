"""How order edges get into a program under test.

An op is called by its name, ``"mm"``, and the second of that name in program order ``"mm#2"``, as in assertions about
generated code. An edge is a pair ``(before, after)`` of such names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.traceback import preserve_node_meta

from pytest_regional.backends.ordering import add_control_deps

Edge = tuple[str, str]
Orderer = Callable[[torch.fx.Graph, Mapping[torch.fx.Node, Sequence[torch.fx.Node]]], Any]


def pytorchs_orderer(graph: torch.fx.Graph, dependencies: Mapping[torch.fx.Node, Sequence[torch.fx.Node]]) -> None:
    """Add edges as PyTorch does."""
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
    from torch.utils._ordered_set import OrderedSet

    preserve_node_ordering(graph, {node: OrderedSet(others) for node, others in dependencies.items()})


class AddEdges:
    """A graph pass: the edges, in every graph that has all of the ops that they name.

    Attributes:
        graphs: the graphs that had them.
        reports: what the orderer returned for each.
    """

    def __init__(self, *edges: Edge, orderer: Orderer = add_control_deps) -> None:
        self.edges = edges
        self.orderer = orderer
        self.graphs: list[torch.fx.Graph] = []
        self.reports: list[Any] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Add the edges, if the graph has the ops."""
        nodes = self.ops(graph)
        if all(name in nodes for edge in self.edges for name in edge):
            dependencies: dict[torch.fx.Node, list[torch.fx.Node]] = {}
            for before, after in self.edges:
                dependencies.setdefault(nodes[after], []).append(nodes[before])
            self.graphs.append(graph)
            self.reports.append(self.orderer(graph, dependencies))

    def ops(self, graph: torch.fx.Graph) -> dict[str, torch.fx.Node]:
        """Return the ops of ``graph`` by the names that edges use."""
        return ops_by_name(graph)


def ops_by_name(graph: torch.fx.Graph) -> dict[str, torch.fx.Node]:
    """Return the ops of ``graph``; the first of each name has it with and without its number."""
    found: dict[str, torch.fx.Node] = {}
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            name = _op_name(node)
            counts[name] = counts.get(name, 0) + 1
            found.setdefault(name, node)
            found[f"{name}#{counts[name]}"] = node
    return found


def _op_name(node: torch.fx.Node) -> str:
    """Return ``mm`` for ``aten.mm.default``; a functionalized op goes by the name of the op itself."""
    target = node.args[0] if "auto_functionalized" in str(node.target) else node.target
    parts = str(target).split(".")
    return parts[1] if len(parts) == 3 else parts[-1]


# reorder_for_locality would move ops before any edge is there, and PyTorch's orderer takes no later dependency.
SETTINGS = {"reorder_for_locality": False}


def run_ordered(
    regional: Any,
    program: Callable[..., Any],
    *inputs: Any,
    edges: Sequence[Edge] | AddEdges,
    dynamic: bool | None = None,
    backward: Any = None,
    **configs: Any,
) -> Any:
    """Run ``program`` with ``edges`` added behind Inductor's own graph passes, and compare it with eager."""
    adding = edges if isinstance(edges, AddEdges) else AddEdges(*edges)
    settings = {**SETTINGS, **configs, "post_grad_custom_post_pass": adding}
    compiled = regional.compile(program, dynamic=dynamic, inductor_configs=settings)
    record = observe_and_compare(regional, compiled, program, inputs, backward)
    if adding.edges:
        assert adding.graphs, f"no graph had all ops of {adding.edges}"
    return record


def run_ordered_regions(
    regional: Any, program: Callable[..., Any], *inputs: Any, edges: Sequence[Edge] | AddEdges
) -> Any:
    """Run ``program`` with ``edges`` added to its graphs before its regions are compiled; compare it with eager."""
    adding = edges if isinstance(edges, AddEdges) else AddEdges(*edges)
    compiled = torch.compile(program, backend=ordered_regions(regional, adding), fullgraph=True)
    record = observe_and_compare(regional, compiled, program, inputs)
    assert adding.graphs, f"no graph had all ops of {adding.edges}"
    return record


def observe_and_compare(
    regional: Any, compiled: Any, program: Callable[..., Any], inputs: Sequence[Any], backward: Any = None
) -> Any:
    """Run ``compiled`` and ``program`` on copies of ``inputs``; results, gradients and written inputs must agree."""
    mine, eager = _copies(inputs), _copies(inputs)
    torch.manual_seed(regional.seed)
    record = regional.run(compiled, *mine, backward=backward, as_is=True)
    if not any(tensor.requires_grad for tensor in mine):
        torch.manual_seed(regional.seed)
        torch.testing.assert_close(record.output, program(*eager))
        torch.testing.assert_close(mine, eager)
    return record


def _copies(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]


def ordered_regions(regional: Any, adding: AddEdges) -> Callable[..., Any]:
    """Return the backend under test with ``adding`` in front of its region compiler; skip where it has none."""
    compile_regions = _region_compiler(regional)

    def compile_ordered(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        for part in list(module.modules()):  # without the bodies that the edges bring
            if isinstance(part, torch.fx.GraphModule):
                adding(part.graph)
                part.recompile()
        return compile_regions(module, inputs)

    def backend(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with preserve_node_meta():
            return aot_autograd(fw_compiler=compile_ordered, bw_compiler=compile_ordered)(module, inputs)

    return backend


def _region_compiler(regional: Any) -> Callable[..., Any]:
    if regional.spec.graph_pass is None:
        pytest.skip(f"the BackendSpec of {regional.backend!r} gives no graph_pass to run behind another")
    compiler: Callable[..., Any] = regional.pipeline.terminal
    return compiler
