"""The law ``counters``: a first compile moves the counters as its graphs and partitions say, a second call none."""

from __future__ import annotations

from pytest_regional.fuzz.oracles.law import Law
from pytest_regional.fuzz.oracles.trial import Trial
from pytest_regional.harness.counters import CounterLog, Counters, describe


def check_counters(trial: Trial) -> None:
    """Raise where counters contradict each other, or what was seen."""
    run = trial.cold
    counters = CounterLog(list(run.events)).counters()
    wrong = [*_of_graphs(trial, counters), *_of_outer_cache(trial, counters), *_of_regions(trial, counters)]
    if run.later:
        wrong.append(("the second call moves counters", ", ".join(str(event) for event in run.later[:3])))
    if wrong:
        origin, detail = wrong[0]
        moved = "\n".join(line for line in describe(run.events) if not line.endswith("= 0"))
        raise trial.broken("counters", "compile", f"{detail}\n{moved}", origin=origin)


Wrong = list[tuple[str, str]]


def _of_graphs(trial: Trial, counters: Counters) -> Wrong:
    wrong = [
        (f"{name} on a first compile", f"{name} is {counters[name]} on a first compile of one function")
        for name in ("recompiles", "fallbacks")
        if counters[name]
    ]
    kinds = sorted(graph.kind for graph in trial.cold.watched.graphs) if _is_one_result(trial) else []
    if len(kinds) > 2 or kinds.count("inference") + kinds.count("forward") > 1:
        wrong.append(("a graph is compiled twice", f"one function gave the graphs {kinds}"))
    return wrong


def _of_outer_cache(trial: Trial, counters: Counters) -> Wrong:
    hits, misses, bypasses, saves = (counters[f"cache_{name}"] for name in ("hits", "misses", "bypasses", "saves"))
    wrong: Wrong = []
    if hits and _is_one_result(trial):
        wrong.append(("a hit in an empty cache", f"cache_hits is {hits} though all caches are empty"))
    if not trial.regional.spec.supports("outer_cache") or not trial.cold.watched.graphs:
        return wrong
    if may_start_over(trial):
        return wrong
    if misses + bypasses < 1 or misses > 1:
        wrong.append(("lookups of one graph", f"one Dynamo graph gave {misses} misses and {bypasses} bypasses"))
    elif not bypasses and saves != 1 and not is_never_saved(trial):
        wrong.append(("saves of one graph", f"a miss without a bypass gave {saves} saves"))
    return wrong + _of_passes(trial, counters)


def _is_one_result(trial: Trial) -> bool:
    """Tell whether the backend promises to compile what Dynamo hands over as one graph.

    Any other may split it, and hand the pieces to AOTAutograd one by one; pieces that are alike are hits of each other.
    """
    return any(trial.regional.spec.supports(name) for name in ("regions", "outer_cache"))


def may_start_over(trial: Trial) -> bool:
    """Tell whether Dynamo may hand the graph over twice: each time is a lookup, and a run of the pass."""
    # It finds behind the lookup that a size is not dynamic, or takes a float64 without dimensions for a Python number
    # (TensorifyScalarRestartAnalysis, which AOTAutograd raises through any backend; 2.11 to 2.15).
    arguments = trial.program.arguments
    numbers = any(argument.shape == () and argument.dtype == "float64" for argument in arguments)
    return bool(trial.program.dynamic) or numbers or any(argument.dynamic for argument in arguments)


def is_never_saved(trial: Trial) -> bool:
    """Tell whether AOTAutograd's cache leaves out what whole-graph Inductor made, without counting a bypass."""
    # Inductor gives a graph without operators, mostly a backward, no key (script empty_backward_is_not_saved.py).
    empty = (not any(node.operator for node in graph.nodes) for graph in trial.cold.watched.graphs)
    return not trial.regional.spec.supports("regions") and any(empty)


def _of_passes(trial: Trial, counters: Counters) -> Wrong:
    if trial.pass_uuid is None:
        return []
    if counters["region_pre_grad_calls"]:
        return [("the pre-grad pass runs on regions", f"it ran {counters['region_pre_grad_calls']} times on regions")]
    if counters["pre_grad_calls"] != 1:
        return [("runs of the pre-grad pass", f"it ran {counters['pre_grad_calls']} times on a miss")]
    return []


def _of_regions(trial: Trial, counters: Counters) -> Wrong:
    if trial.lane == "structure" or not trial.regional.spec.supports("regions"):
        return []
    partitions = sum(len(graph.partitions) for graph in trial.cold.watched.graphs)
    answered = counters["region_compiles"] + counters["region_cache_hits"]
    if answered != partitions:
        return [
            (
                "partitions are neither compiled nor loaded"
                if answered < partitions
                else "more compiles than partitions",
                f"{partitions} partitions were handed to Inductor; {counters['region_compiles']} code generations and "
                f"{counters['region_cache_hits']} cache hits came of it",
            )
        ]
    return []


LAWS = (
    Law(
        "counters",
        "A first compile looks up, misses, saves and compiles each partition once; a second call does nothing.",
        check_counters,
    ),
)
