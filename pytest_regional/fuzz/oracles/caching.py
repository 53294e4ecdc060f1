"""The oracles of caches: ``counters``, ``warm``, ``annotations_in_key`` and ``uuid_in_key``.

A backend without a cache of whole results still has Inductor's, region by region. PyTorch can be told to cache whole
results of its regional backend as well (``force_autograd_cache``); what is demanded of a key then is demanded of it.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import replace

import torch

from pytest_regional._torch import config
from pytest_regional.fuzz.model.program import Program, Region, Step
from pytest_regional.fuzz.oracles.example_run import ExampleRun, NoClaim, Oracle, Run, kinds_of
from pytest_regional.fuzz.oracles.parity import raise_failure
from pytest_regional.fuzz.settings import INTERPRETED
from pytest_regional.harness.counters import CounterLog, Counters, describe
from pytest_regional.harness.parity.compare import compare


def check_counters(example: ExampleRun) -> None:
    """Raise where counters contradict each other, or what was seen."""
    run = example.cold
    origin, detail = next(_contradictions(example, _counters(run)), ("", ""))
    if origin:
        moved = "\n".join(describe(run.events))
        raise example.violation("counters", "compile", f"{detail}\n{moved}", origin=origin)


def _contradictions(example: ExampleRun, counters: Counters) -> Iterator[tuple[str, str]]:
    """Yield origin and detail of each contradiction."""
    for name in ("recompiles", "fallbacks"):
        if counters[name]:
            yield f"{name} on a first compile", f"{name} is {counters[name]} on a first compile of one function"
    graphs = example.cold.watched.graphs
    kinds = sorted(graph.kind for graph in graphs) if _is_one_result(example) else []
    if len(kinds) > 2 or kinds.count("inference") + kinds.count("forward") > 1:
        yield "a graph is compiled twice", f"one function gave the graphs {kinds}"
    hits, misses, bypasses, saves = (counters[f"cache_{name}"] for name in ("hits", "misses", "bypasses", "saves"))
    if hits and _is_one_result(example):
        yield "a hit in an empty cache", f"cache_hits is {hits} though all caches are empty"
    if example.regional.supports("outer_cache") and graphs and not may_start_over(example):
        if misses + bypasses < 1 or misses > 1:
            yield "lookups of one graph", f"one Dynamo graph gave {misses} misses and {bypasses} bypasses"
        elif not bypasses and saves != 1 and not is_never_saved(example):
            yield "saves of one graph", f"a miss without a bypass gave {saves} saves"
        on_regions, runs = counters["region_pre_grad_calls"], counters["pre_grad_calls"]
        if example.pass_uuid is not None and on_regions:
            yield "the pre-grad pass runs on regions", f"it ran {on_regions} times on regions"
        elif example.pass_uuid is not None and runs != 1:
            yield "runs of the pre-grad pass", f"it ran {runs} times on a miss"
    by_inductor = all(map(example.regional.supports, ("regions", "inductor_code")))
    if by_inductor and example.mode not in INTERPRETED:
        partitions = sum(len(graph.partitions) for graph in graphs)
        answered = counters["region_compiles"] + counters["region_cache_hits"]
        if answered != partitions:
            yield (
                "partitions are neither compiled nor loaded"
                if answered < partitions
                else "more compiles than partitions",
                f"{partitions} partitions were handed to Inductor; {counters['region_compiles']} code generations and "
                f"{counters['region_cache_hits']} cache hits came of it",
            )
    if example.cold.later:
        yield "the second call moves counters", ", ".join(str(event) for event in example.cold.later[:3])


def _is_one_result(example: ExampleRun) -> bool:
    """Tell whether the backend promises to compile what Dynamo hands over as one graph.

    Any other may split it, and hand the pieces to AOTAutograd one by one; pieces that are alike are hits of each other.
    """
    return any(example.regional.supports(name) for name in ("regions", "outer_cache"))


def may_start_over(example: ExampleRun) -> bool:
    """Tell whether Dynamo may hand the graph over twice: each time is a lookup, and a run of the pass."""
    # It finds behind the lookup that a size is not dynamic, or takes a float64 without dimensions for a Python number
    # (TensorifyScalarRestartAnalysis, which AOTAutograd raises through any backend; 2.11 to 2.15).
    program = example.program
    numbers = any(value.dim() == 0 and value.dtype == torch.float64 for value in program.inputs())
    return bool(program.dynamic) or numbers or any(argument.dynamic for argument in program.arguments)


def is_never_saved(example: ExampleRun) -> bool:
    """Tell whether AOTAutograd's cache leaves out what whole-graph Inductor made, without counting a bypass."""
    # Inductor gives a graph without operators, mostly a backward, no key (script empty_backward_is_not_saved.py).
    empty = (not any(node.operator for node in graph.nodes) for graph in example.cold.watched.graphs)
    return not example.regional.supports("regions") and any(empty)


# Warm


def check_warm(example: ExampleRun) -> None:
    """Raise where the same program after a restart is compiled again, or computes anything else."""
    reasons = [event.cause for event in example.events("cache_bypasses", "region_cache_bypasses")]
    if reasons:
        raise NoClaim(f"it is not cached: {reasons[0]}")
    if not example.cold.watched.graphs:
        raise NoClaim("nothing was compiled")
    outer = bool(example.regional.supports("outer_cache"))
    if not outer and (example.mode in INTERPRETED or not example.regional.supports("inductor_code")):
        raise NoClaim("the backend keeps no whole results, and Inductor compiles no regions in this mode")
    example.regional.restart()
    warm = example.run(example.program, calls=1)
    raise_failure(example, warm, "warm", "restart")
    _check_nothing_compiled(example, warm, outer)
    report = compare(example.cold.executions[0], warm.executions[0], level="bitwise")
    if not report.ok:
        raise example.violation(
            "warm",
            "restart",
            f"what was loaded differs from what was compiled: {'; '.join(map(str, report.mismatches[:3]))}",
            origin=f"loaded differs: {kinds_of(report.mismatches)}",
        )


def _check_nothing_compiled(example: ExampleRun, warm: Run, outer: bool) -> None:
    counters = _counters(warm)
    # What Dynamo hands over before it starts over is looked up, and never was saved.
    misses = 0 if may_start_over(example) else counters.cache_misses
    runs = 0 if may_start_over(example) else counters.pre_grad_calls
    partitions = sum(len(graph.partitions) for graph in warm.watched.graphs)
    wrong = ""
    if outer and (counters.cache_hits != 1 or misses):
        wrong = f"{counters.cache_hits} hits and {counters.cache_misses} misses of the whole result"
        origin = "no hit"
    elif counters.region_compiles or (outer and partitions):
        wrong, origin = f"{counters.region_compiles or partitions} regions compiled again", "regions compiled again"
    elif runs:
        wrong, origin = f"the pre-grad pass ran {runs} times on a hit", "pre-grad pass on a hit"
    if wrong:
        raise example.violation("warm", "restart", f"the same program after a restart: {wrong}", origin=origin)


def _counters(run: Run) -> Counters:
    return CounterLog(list(run.events)).counters()


# Keys


def check_annotations_in_key(example: ExampleRun) -> None:
    """Raise where another annotation is answered with what was compiled for the first one."""
    caches = [example.regional.supports(name) for name in ("outer_cache", "pytorch_outer_cache")]
    if not any(caches):
        raise NoClaim(f"the backend keeps no whole results ({caches[0].reason}; {caches[1].reason})")
    change, changed = changed_program(example)
    own = bool(caches[0])
    with contextlib.nullcontext() if own else config.forced_autograd_cache():
        if not own:  # PyTorch's cache keeps whole results only now
            example.regional._reset(keep_code=True)
            raise_failure(example, example.run(example.program, calls=1), "annotations_in_key")
        example.regional.restart()
        run = example.run(changed, calls=1)
    raise_failure(example, run, "annotations_in_key", "restart")
    if _counters(run).cache_hits:
        raise example.violation(
            "annotations_in_key",
            "restart",
            f"compiled after a restart with {change}, the program is answered with what was compiled before",
            origin=f"stale hit: {change}",
        )


def changed_program(example: ExampleRun) -> tuple[str, Program]:
    """Return the program with one annotation changed, and in which way.

    Raises:
        NoClaim: no operator that reaches a graph is annotated.
    """
    program = example.program
    in_graphs = {name for graph in example.cold.watched.graphs if graph.kind != "backward" for name, _ in graph.regions}
    regions = [step.region for step in _live_steps(program) if step.region is not None]
    chosen = next((one for one in regions if ("default" if one.name is None else str(one.name)) in in_graphs), None)
    if chosen is None:
        raise NoClaim("no operator that reaches a graph is annotated")
    spec = example.regional._spec
    needed = {"another region id": "region_ids", "another config": "region_configs", "no annotation": "regions"}
    changes = [change for change, capability in needed.items() if spec.supports(capability)]
    change = changes[zlib.crc32(program.source.encode()) % len(changes)]
    changed = program.with_steps(tuple(_changed(step, chosen, change) for step in program.steps))
    if [step.region for step in _live_steps(changed)] == [step.region for step in _live_steps(program)]:
        raise NoClaim("what is left around the operator says the same")
    return change, changed


def _live_steps(program: Program) -> list[Step]:
    """Return the steps that an output depends on, or that write; no calls, whose blocks may say for themselves."""
    wanted = set(program.outputs)
    live = []
    for step in reversed(program.steps):
        if not step.results or wanted.intersection(step.results):
            wanted.update(step.operands)
            live.append(step)
    return [step for step in live[::-1] if not step.blocks]


def _changed(step: Step, chosen: Region, change: str) -> Step:
    changed = {
        "another region id": (replace(chosen, name="renamed"),),
        "another config": (replace(chosen, configs=tuple({**dict(chosen.configs), "max_fusion_size": 3}.items())),),
        "no annotation": (),
    }[change]
    return replace(step, scope=tuple(one for old in step.scope for one in (changed if old == chosen else (old,))))


def check_uuid_in_key(example: ExampleRun) -> None:
    """Raise where a pre-grad pass with another uuid is answered with what was compiled with the first one."""
    if example.pass_uuid is None:
        raise NoClaim("the backend takes no pre-grad pass, or none that runs late")
    if any(example.events("cache_bypasses")):
        raise NoClaim("it is not cached")
    example.regional.restart()
    run = example.run(example.program, calls=1, pass_uuid=f"not {example.pass_uuid}")
    raise_failure(example, run, "uuid_in_key", "restart")
    if _counters(run).cache_hits:
        raise example.violation(
            "uuid_in_key",
            "restart",
            "a pre-grad pass with another uuid is answered with what was compiled with the first",
            origin="stale hit",
        )


ORACLES = (
    Oracle(
        "warm",
        "The same program after a restart is loaded: nothing is compiled, and it computes the very same bits.",
        check_warm,
        requires=("regions",),
        every=2,
        place=80,
    ),
    Oracle(
        "uuid_in_key",
        "With another uuid of a late pre-grad pass the program is never answered with the old code.",
        check_uuid_in_key,
        requires=("regions", "outer_cache", "pre_grad_passes", "pre_grad_timing"),
        every=8,
        place=90,
    ),
    Oracle(
        "annotations_in_key",
        "The same program with another region id, other configs or no annotation is never answered with the old code.",
        check_annotations_in_key,
        requires=("regions",),
        every=4,
        place=100,
    ),
    Oracle(
        "counters",
        "A first compile looks up, misses, saves and compiles each partition once; a second call does nothing.",
        check_counters,
        place=60,
    ),
)
