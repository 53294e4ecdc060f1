"""The laws ``compiles`` and ``parity``: what eager runs compiles, and computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from pytest_regional._torch.config import INDUCTOR, patched_config
from pytest_regional._torch.process_state import COMPILING
from pytest_regional.fuzz.oracles.example_run import Run, Trial
from pytest_regional.fuzz.oracles.oracle import (
    Law,
    LawBrokenError,
    NoClaim,
    frames_of,
    kinds_of,
    message_of,
    origin_of,
    root_of,
)
from pytest_regional.fuzz.oracles.watching import WatchedGraph, WatchedPartition
from pytest_regional.harness.parity.check import ParityCheck
from pytest_regional.harness.parity.compare import Mismatch
from pytest_regional.harness.parity.execution import Execution

#: Functions in which something compiles, as ``module:function``.
_COMPILING = (*COMPILING, "pytest_regional.harness.observe.observer:compile_graph")


def check_compiles(trial: Trial) -> None:
    """Raise where the compiler, or what it made, raises though eager does not."""
    raise_failure(trial, trial.cold)


def raise_failure(trial: Trial, run: Run, law: str = "compiles", stage: str = "") -> None:
    """Raise the error that says what a call of ``run`` raised; do nothing where none did."""
    for execution in run.executions:
        if execution.exception is not None:
            error = execution.exception
            root = root_of(error)
            raise trial.broken(
                law,
                stage or stage_of(execution),
                f"eager runs the program, the backend raises {type(root).__name__}: {message_of(root)}",
                origin=origin_of(error, getattr(trial.regional._spec.factory, "__module__", "")),
            ) from error


def stage_of(execution: Execution) -> str:
    """Return whether a failed execution failed when something compiled, when it ran, or in the backward."""
    if execution.stage == "backward":
        return "backward"
    error = execution.exception
    compiling = error is not None and any(name.startswith(_COMPILING) for name in frames_of(error))
    return "compile" if compiling else "run"


def goes_wrong_without_backend(trial: Trial, error: LawBrokenError) -> bool:
    """Return whether AOTAutograd alone, which compiles nothing, breaks the same law with the same origin."""
    program = trial.program
    # As the backend was asked: without the setting AOTAutograd drops draws whose results nobody reads.
    with trial.regional._observer.paused(), patched_config(INDUCTOR, {"fallback_random": True}):
        trial.regional.restart()
        compiled = torch.compile(program.function, backend="aot_eager", dynamic=program.dynamic, fullgraph=True)
        executions = []
        for case in trial.cases:
            executions.append(trial.execute(compiled, case.inputs))
            if executions[-1].exception is not None:
                break
    failed = executions[-1].exception
    if failed is not None:
        return error.law == "compiles" and origin_of(failed) == error.origin
    run = replace(trial.cold, executions=tuple(executions))
    return error.law == "parity" and kinds_of(mismatches_of(trial, run)) == error.origin


def check_parity(trial: Trial) -> None:
    """Raise where the first or the second call differs from eager."""
    check_compiles(trial)
    mismatches = mismatches_of(trial, trial.cold)
    if not mismatches:
        if not any(trial.report(call).compared for call in range(len(trial.cold.executions))):
            raise NoClaim("the program returns nothing that could be compared")
        return
    if {mismatch.kind for mismatch in mismatches} == {"stride"} and trial.fake_disagreement:
        raise NoClaim(f"PyTorch's fake operators have other strides than eager: {trial.fake_disagreement}")
    detail = "; ".join(map(str, mismatches[:4]))
    more = f"; and {len(mismatches) - 4} more" if len(mismatches) > 4 else ""
    raise trial.broken(
        "parity",
        "backward" if all("grad" in mismatch.where for mismatch in mismatches) else "run",
        f"{detail}{more}",
        origin=kinds_of(mismatches),
        region=_blame(trial) if trial.blame else None,
    )


def mismatches_of(trial: Trial, run: Run) -> list[Mismatch]:
    """Return all differences of both calls from eager; those of the second say so."""
    found = list(trial.report(0, run).mismatches)
    for call in range(1, len(run.executions)):
        found += [
            Mismatch(f"second call: {m.where}", m.kind, m.detail, m.evidence)
            for m in trial.report(call, run).mismatches
        ]
    return found or [
        mismatch
        for case, execution in zip(trial.cases, run.executions, strict=False)
        for mismatch in _draws(case.eager, execution)
    ]


def _draws(eager: Execution, execution: Execution) -> Iterator[Mismatch]:
    """Yield the random generators that eager left in another state: what is drawn next is other than eager's."""
    for name, state in eager.rng_after.items():
        left = execution.rng_after.get(name)
        if left is not None and not torch.equal(left, state):
            drew = "drew" if name in eager.rng_consumed else "did not draw"
            yield Mismatch("random state", "draws", f"the generator of {name} is elsewhere; eager {drew} from it", None)


def _blame(trial: Trial) -> str:
    backward = None if trial.trains else False
    check = ParityCheck(trial.regional, trial.program.function, trial.cases[0].inputs, backward, "close", None, None)
    return check.blame_for(trial.cases[1].inputs)


LAWS = (
    Law("compiles", "What eager runs compiles and runs: forward, backward, and again on other inputs.", check_compiles),
    Law(
        "parity",
        "Values, gradients, mutations, aliases, strides and dtypes are eager's, and again on other inputs.",
        check_parity,
    ),
)


def check_configs(trial: Trial) -> None:
    """Raise where a partition was compiled under other settings, or where settings are others afterwards."""
    run = trial.cold
    changed = [name for name, value in run.settings_before.items() if run.settings_after[name] != value]
    if changed:
        raise trial.broken(
            "configs", "run", f"after the compile {_named(changed)} is not what it was", origin="settings leak"
        )
    graphs = [graph for graph in run.watched.graphs if graph.partitions]
    if not graphs:
        raise NoClaim("no region was handed to Inductor")
    for graph in graphs:
        for partition in graph.partitions:
            _check_partition(trial, graph, partition)
        _check_calls(trial, graph)


def _check_partition(trial: Trial, graph: WatchedGraph, partition: WatchedPartition) -> None:
    for asked in partition.asked or ({},):
        expected = {**graph.settings, **{name: asked[name] for name in asked if name in partition.seen}}
        wrong = [name for name, value in expected.items() if partition.seen[name] != value]
        if wrong:
            name = wrong[0]
            region = partition.regions[0][0] if partition.regions else None
            raise trial.broken(
                "configs",
                "backward" if graph.kind == "backward" else "compile",
                f"a partition of region {region!r} of the {graph.kind} graph was compiled with "
                f"{name}={partition.seen[name]!r}; {_reason(asked, name)} {expected[name]!r}",
                origin=f"a setting that the annotation {'names' if name in asked else 'does not name'}",
                region=region,
            )


def _check_calls(trial: Trial, graph: WatchedGraph) -> None:
    """Judge whose code the regions of the result call: of several that are equal one may have been compiled for all."""
    for artifact, region, asked in zip(graph.calls, graph.called, graph.configs, strict=True):
        partition = trial.cold.watched.artifacts.get(artifact)
        if asked is None or partition is None:
            continue
        expected = {**graph.settings, **asked}
        wrong = [name for name in partition.seen if partition.seen[name] != expected.get(name)]
        if wrong:
            raise trial.broken(
                "configs",
                "backward" if graph.kind == "backward" else "compile",
                f"region {region!r} of the {graph.kind} graph calls what was compiled with "
                f"{wrong[0]}={partition.seen[wrong[0]]!r}; {_reason(asked, wrong[0])} {expected.get(wrong[0])!r}",
                origin="a call of code that has other settings",
                region=region,
            )


def _reason(asked: dict[str, Any], name: str) -> str:
    return "its annotation says" if name in asked else "its annotation says nothing of it, and outside it is"


def _named(names: list[str]) -> str:
    return ", ".join(f"torch._inductor.config.{name}" for name in names[:3])


OF_CONFIGS = (
    Law(
        "configs",
        "Each region compile, forward and backward, sees the Inductor settings of its annotation, the rest as outside.",
        check_configs,
        requires=("regions", "region_configs"),
    ),
)


def check_inference(trial: Trial) -> None:
    """Raise where the program without gradients fails or differs from eager, its training compiled before."""
    if not trial.trains:
        raise NoClaim("the program is for inference already")
    _ = trial.cold
    inference = Trial(trial.regional, replace(trial.program, training=False), trial.lane, blame=False)
    run = inference.run(inference.program)
    raise_failure(inference, run, "inference")
    mismatches = mismatches_of(inference, run)
    if mismatches:
        raise inference.broken(
            "inference",
            "run",
            f"without gradients: {'; '.join(map(str, mismatches[:4]))}",
            origin=kinds_of(mismatches),
        )


OF_MODES = (
    Law(
        "inference",
        "A program that trains gives eager's values without gradients too, compiled beside its training graphs.",
        check_inference,
        every=4,
    ),
)
