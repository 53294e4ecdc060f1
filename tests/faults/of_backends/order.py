"""Faults of requested order: edges are read and lost, in the plan or in the code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.fx

from pytest_regional.reference import plan_partitions
from tests.faults.planting import Mutant, Patch
from tests.faults.rewriting import modules

EDGES = "suites/control_deps/test_region_edges.py"
RANDOM = "suites/control_deps/test_random_orders.py"
WHOLE = "suites/control_deps/test_whole_regions.py"
TWINS = "suites/control_deps/test_twins.py"


def _buffers_forgotten(module: torch.fx.GraphModule) -> None:
    """Forget which values get a buffer, so that somebody can wait for them."""
    for node in module.graph.nodes:
        node.meta.pop("inductor_realize_to_strides", None)


def _forgotten_by_plan(original: Any) -> Any:
    def plan(graph: Any) -> Any:
        made = original(graph)
        return replace(made, partitions=plan_partitions(graph))

    return plan


def _forgotten_in_regions(original: Any) -> Any:
    return lambda regions, edges: None


def _without_edges(original: Any) -> Any:
    def compile_in_order(write: Any, compile_module: Any) -> Any:
        return original(lambda: (write()[0], ()), compile_module)

    return compile_in_order


def _first_edge_alone(original: Any) -> Any:
    def compile_in_order(write: Any, compile_module: Any) -> Any:
        def first() -> Any:
            module, edges = write()
            return module, edges[:1]

        return original(first, compile_module)

    return compile_in_order


FAULTS = (
    Mutant(
        "edges_ignored_in_plan",
        "order edges between partitions are dropped",
        ("order",),
        (EDGES, RANDOM, WHOLE),
        (Patch("regional_inductor:plan_in_order", _forgotten_by_plan),),
    ),
    Mutant(
        "edges_ignored_in_regions",
        "order edges inside a region do not reach its compiler",
        ("order",),
        (EDGES, RANDOM),
        (Patch("extract:_assign_order", _forgotten_in_regions),),
        needs=("inside:independent",),
        modes=("emulated",),
    ),
    Mutant(
        "edges_dropped_in_code",
        "order edges inside a region are taken out before Inductor and not put in again",
        ("order",),
        (EDGES, RANDOM),
        (Patch("compile_regions:compile_in_order", _without_edges),),
        needs=("inside:independent",),
        modes=("emulated",),
    ),
    Mutant(
        "one_edge_in_code",
        "of several order edges inside a region one reaches the code",
        ("order",),
        (RANDOM, EDGES),
        (Patch("compile_regions:compile_in_order", _first_edge_alone),),
        needs=("inside:independent",),
        modes=("emulated",),
    ),
    Mutant(
        "fused_across_edges",
        "a value that others wait for is computed again inside its users, so nobody waits",
        ("order",),
        (TWINS, RANDOM, "suites/control_deps/test_order.py"),
        (
            Patch("ordering.edges:as_dependency_target", lambda original: lambda node: node, counted=False),
            modules(_buffers_forgotten),
        ),
        needs=("inside:independent",),
        modes=("emulated",),
    ),
    Mutant(
        "whole_regions_unordered",
        "after=[...] of a region is read over",
        ("region_order",),
        (WHOLE,),
        needs=("region:after",),
        patches=(Patch("ordering.whole_regions:order_of_regions", lambda original: lambda graph: []),),
    ),
)
