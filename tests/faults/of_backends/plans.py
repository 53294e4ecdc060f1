"""Faults of the plan: what is a region, what is compiled together, and what is not compiled at all."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch.fx

from pytest_regional._torch.fx_graphs import clone_graph
from pytest_regional.reference import Partition, PartitionPlan
from tests.faults.planting import Mutant, Patch
from tests.faults.rewriting import Keys, dissolved, is_backward, plans, region_keys

COUNTS = "suites/regions/test_partition_counts.py"
CONFIGS = "suites/regions/test_configs.py"
GRADIENTS = "suites/regions/test_gradients.py"
INTERLEAVED = "suites/regions/test_interleaved.py"
NESTING = "suites/regions/test_nesting.py"
LLAMA = "suites/models/test_llama.py"
ANY_ERROR = ("*",)


def _one_key(graph: torch.fx.Graph, keys: Keys) -> Keys:
    return {node: replace(key, region=None, label="default") for node, key in keys.items()}


def _first_config_wins(graph: torch.fx.Graph, keys: Keys) -> Keys:
    first: dict[Any, Any] = {}
    return {node: first.setdefault(key.region, key) for node, key in keys.items()}


def _last_region_left_out(graph: torch.fx.Graph, keys: Keys) -> Keys:
    known = list(dict.fromkeys(keys.values()))
    return keys if len(known) < 2 else {node: key for node, key in keys.items() if key != known[-1]}


def _none_in_backward(graph: torch.fx.Graph, keys: Keys) -> Keys:
    return {} if is_backward(graph.nodes) else keys


def _neighbours_too(graph: torch.fx.Graph, keys: Keys) -> Keys:
    """Let an op that reads one region alone belong to it."""
    grown = dict(keys)
    for node in graph.nodes:
        around = {grown.get(source) for source in node.all_input_nodes}
        if node.op == "call_function" and node not in grown and len(around) == 1 and None not in around:
            grown[node] = around.pop()  # type: ignore[assignment]
    return grown


def _last_op_left_out(graph: torch.fx.Graph, keys: Keys) -> Keys:
    by_key: dict[Any, list[torch.fx.Node]] = {}
    for node, key in keys.items():
        by_key.setdefault(key, []).append(node)
    last = {nodes[-1] for nodes in by_key.values() if len(nodes) > 1}
    return {node: key for node, key in keys.items() if node not in last}


def _views_left_out(graph: torch.fx.Graph, keys: Keys) -> Keys:
    views = ("view", "t", "transpose", "permute", "expand", "select", "slice", "squeeze", "unsqueeze", "_unsafe_view")
    return {node: key for node, key in keys.items() if getattr(node.target, "_opname", "") not in views}


def _one_run_a_key(original: Any) -> Any:
    def fewest_runs(dag: Any) -> tuple[list[list[int]], int]:
        runs: dict[int, list[int]] = {}
        for i, key in enumerate(dag.keys):
            if key is not None:
                runs.setdefault(key, []).append(i)
        return list(runs.values()), len(runs)

    return fewest_runs


def _adjacent_runs(original: Any) -> Any:
    def fewest_runs(dag: Any) -> tuple[list[list[int]], int]:
        runs: list[list[int]] = []
        before = None
        for i, key in enumerate(dag.keys):
            if key is not None:
                if key == before:
                    runs[-1].append(i)
                else:
                    runs.append([i])
            before = key
        return runs, original(dag)[1]

    return fewest_runs


def _single_ops(original: Any) -> Any:
    return lambda dag: ([[i] for i, key in enumerate(dag.keys) if key is not None], original(dag)[1])


def _later_partitions_eager(plan: PartitionPlan) -> PartitionPlan:
    seen: set[Any] = set()

    def again(partition: Partition) -> bool:
        if partition.key in seen:
            return True
        seen.add(partition.key)
        return False

    return dissolved(plan, again)


def _small_partitions_eager(plan: PartitionPlan) -> PartitionPlan:
    if len(plan.partitions) < 2:  # a test that compiles nothing would be told so, whatever it checks
        return plan
    return dissolved(plan, lambda partition: len(partition.nodes) == 1)


def _compiled_twice(original: Any) -> Any:
    def compile_module(request: Any, module: torch.fx.GraphModule) -> Any:
        original(request, clone_graph(module))
        return original(request, module)

    return compile_module


def _operands_of_earlier_runs_forgotten(original: Any) -> Any:
    """Bound a node that moves by the operands of its own run alone, though others may have moved past it."""

    def place(keys: Any, before: Any, after: Any, runs: list[list[int]]) -> list[list[int]]:
        run_of = {i: number for number, run in enumerate(runs) for i in run}
        own = [[j for j in operands if run_of.get(j, -1) == run_of.get(i)] for i, operands in enumerate(before)]
        return original(keys, own, after, runs)

    return place


_coin = random.Random(0)


def _another_order_each_time(original: Any) -> Any:
    """Execute now in one order, now in another: each of them is right."""

    def topological(after: Mapping[int, Iterable[int]], blocked: dict[int, int]) -> Iterator[int]:
        if _coin.random() < 0.5:
            yield from original(after, blocked)
            return
        ready = sorted(unit for unit, count in blocked.items() if not count)
        while ready:
            unit = ready.pop()
            yield unit
            for other in after[unit]:
                blocked[other] -= 1
                if not blocked[other]:
                    ready.append(other)

    return topological


FAULTS = (
    Mutant(
        "region_keys_merged",
        "all region ids are one region, as in torch 2.11",
        ("plan", "configs"),
        (COUNTS, INTERLEAVED, CONFIGS),
        (region_keys(_one_key),),
    ),
    Mutant(
        "configs_merged",
        "of two configs of one region id the first wins, and both are one partition",
        ("plan", "configs"),
        (CONFIGS,),
        (region_keys(_first_config_wins),),
    ),
    Mutant(
        "cycle_check_dropped",
        "each region is one partition, also where two regions wait for each other",
        ("compiles", "plan"),
        (INTERLEAVED,),
        (Patch("partition:_fewest_runs", _one_run_a_key),),
        errors=ANY_ERROR,
    ),
    Mutant(
        "independent_op_splits_region",
        "whatever stands between two ops of a region divides it",
        ("plan",),
        (COUNTS,),
        (Patch("partition:_fewest_runs", _adjacent_runs),),
    ),
    Mutant(
        "every_op_alone",
        "every op is a partition of its own",
        ("plan",),
        (COUNTS,),
        (Patch("partition:_fewest_runs", _single_ops),),
    ),
    Mutant(
        "region_silently_eager",
        "of several regions of a graph the last runs eager",
        ("plan",),
        (COUNTS, INTERLEAVED),
        (region_keys(_last_region_left_out),),
    ),
    Mutant(
        "nothing_compiled",
        "every region runs eager",
        ("plan",),
        (COUNTS, INTERLEAVED),
        (region_keys(lambda graph, keys: {}),),
    ),
    Mutant(
        "backward_silently_eager",
        "no region of a backward graph is compiled",
        ("plan",),
        (COUNTS, LLAMA),
        (region_keys(_none_in_backward),),
    ),
    Mutant(
        "second_partition_eager",
        "a region that needs two partitions runs the second eager",
        ("plan",),
        (COUNTS, INTERLEAVED),
        (plans(_later_partitions_eager),),
    ),
    Mutant(
        "lone_op_eager",
        "beside other partitions, one of a single op runs eager",
        ("plan",),
        (COUNTS, INTERLEAVED),
        (plans(_small_partitions_eager),),
    ),
    Mutant(
        "boundary_swallows_neighbour",
        "an op behind a region that reads nothing else is compiled with it",
        ("plan",),
        (COUNTS, "suites/regions/test_common_subexpressions.py", "suites/regions/test_nesting.py"),
        (region_keys(_neighbours_too),),
    ),
    Mutant(
        "last_op_left_out",
        "the last op of every region stays eager",
        ("plan",),
        (COUNTS, "suites/regions/test_nesting.py", LLAMA),
        (region_keys(_last_op_left_out),),
    ),
    Mutant(
        "views_left_out",
        "views of a region stay eager and divide it",
        ("plan",),
        (COUNTS, LLAMA, "suites/models/test_moe.py"),
        (region_keys(_views_left_out),),
    ),
    Mutant(
        "bodies_skipped",
        "regions in the bodies of higher-order operators are not found",
        ("plan",),
        ("suites/regions/test_nested_compile_region.py", NESTING, "suites/regions/test_control_flow.py"),
        (Patch("regional_inductor:called_attributes", lambda original: lambda gm: {}),),
        needs=("family:nested", "family:checkpoint", "family:cond", "family:loop", "family:call"),
    ),
    Mutant(
        "moved_operands_forgotten",
        "a node moves to a run before that of an operand, which moved as well: the partitions wait for each other",
        ("compiles",),
        (INTERLEAVED, "suites/regions/test_recurrent.py"),
        (Patch("partition:place_in_program_order", _operands_of_earlier_runs_forgotten),),
        errors=ANY_ERROR,
    ),
    Mutant(
        "sums_of_gradients_outside",
        "the sum of two gradients of a region is in no region, and divides its backward",
        (),
        (GRADIENTS,),
        (Patch("partition:with_sums_of_gradients", lambda original: lambda graph, keys, ordered=(): keys),),
    ),
    Mutant(
        "lost_gradients_outside",
        "gradients of an op in place are in no region",
        (),
        (GRADIENTS,),
        (Patch("gradients:annotate_lost_gradients", lambda original: lambda joint: 0),),
    ),
    Mutant(
        "compiled_twice",
        "every region is compiled twice, and the first result is thrown away",
        ("counters", "plan"),
        (COUNTS, INTERLEAVED, "suites/caching/test_hits.py"),
        (Patch("compile_regions:_compile_module", _compiled_twice),),
    ),
    Mutant(
        "order_changes_each_time",
        "independent ops and partitions run now in one order, now in another",
        ("determinism",),
        ("suites/regions/test_determinism.py",),
        (Patch("partition:_topological", _another_order_each_time),),
    ),
)
