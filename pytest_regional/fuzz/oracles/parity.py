"""The oracles ``compiles``, ``parity``, ``configs``, ``inference``, ``refused`` and ``region_boundary``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_regional._torch.config import INDUCTOR, patched_config
from pytest_regional._torch.process_state import COMPILING
from pytest_regional.fuzz.oracles.example_run import ExampleRun, NoClaim, Oracle, OracleViolationError, Run, kinds_of
from pytest_regional.fuzz.oracles.watching import WatchedGraph, WatchedPartition
from pytest_regional.fuzz.settings import MODES
from pytest_regional.harness.parity.check import ParityCheck
from pytest_regional.harness.parity.compare import Mismatch, compare_exceptions
from pytest_regional.harness.parity.execution import Execution
from pytest_regional.harness.raised import frames_of, message_of, origin_of, root_of

#: Functions in which something compiles, as ``module:function``.
_COMPILING = (
    *COMPILING,
    "pytest_regional.harness.observe.observer:compile_graph",
    "pytest_regional.harness.compiling:_compile_aten_graph",
)


def check_compiles(example: ExampleRun) -> None:
    """Raise where the compiler, or what it made, raises though eager does not."""
    raise_failure(example, example.cold)


def raise_failure(example: ExampleRun, run: Run, oracle: str = "compiles", stage: str = "") -> None:
    """Raise the error that says what a call of ``run`` raised; do nothing where none did."""
    for execution in run.executions:
        said = "eager runs the program, the backend raises"
        raise_exception(example, execution, oracle, stage or stage_of(execution), said)


def raise_exception(example: ExampleRun, execution: Execution, oracle: str, stage: str, said: str) -> None:
    """Raise the error that says what a call raised, behind what is ``said`` of it; do nothing where it did not."""
    error = execution.exception
    if error is not None:
        root = root_of(error)
        raise example.violation(
            oracle,
            stage,
            f"{said} {type(root).__name__}: {message_of(root)}",
            origin=origin_of(error, getattr(example.regional._spec.factory, "__module__", "")),
        ) from error


def raise_mismatches(
    example: ExampleRun, mismatches: Sequence[Mismatch], oracle: str, said: str = "", stage: str = "run"
) -> None:
    """Raise the error that names differences, behind what is ``said`` of them; do nothing where there are none."""
    if mismatches:
        detail = f"{said}{'; '.join(map(str, mismatches[:4]))}"
        raise example.violation(oracle, stage, detail, origin=kinds_of(mismatches))


def stage_of(execution: Execution) -> str:
    """Return whether a failed execution failed when something compiled, when it ran, or in the backward."""
    if execution.stage == "backward":
        return "backward"
    error = execution.exception
    compiling = error is not None and any(name.startswith(_COMPILING) for name in frames_of(error))
    return "compile" if compiling else "run"


def goes_wrong_without_backend(example: ExampleRun, error: OracleViolationError) -> bool:
    """Return whether AOTAutograd alone, which compiles nothing, breaks the same oracle with the same origin."""
    if not example.captured:
        return False
    # On ``aot_eager``, up to the first case that fails.
    executions: tuple[Execution, ...] = ()
    with capture_alone(example) as alone:
        compiled = alone.compile(alone.program)
        for expected in example.expected:
            executions += (example.execute(compiled, expected.inputs),)
            if executions[-1].exception is not None:
                break
    failed = executions[-1].exception
    if failed is not None:
        return error.oracle == "compiles" and origin_of(failed) == error.origin
    run = replace(example.cold, executions=executions)
    return error.oracle == "parity" and kinds_of(mismatches_of(example, run)) == error.origin


@contextlib.contextmanager
def capture_alone(example: ExampleRun) -> Iterator[ExampleRun]:
    """Give an example run of the same program on AOTAutograd alone; nothing of it is counted."""
    # As the backend was asked: without the setting AOTAutograd drops draws whose results nobody reads.
    with example.regional.observer.paused(), patched_config(INDUCTOR, {"fallback_random": True}):
        example.regional.restart()
        yield ExampleRun(example.regional, example.program, example.mode, blame=False, form=example.form, alone=True)


def without_fake_strides(
    example: ExampleRun, inputs: tuple[torch.Tensor, ...], mismatches: Sequence[Mismatch]
) -> list[Mismatch]:
    """Return ``mismatches``, or none where they are of strides alone and PyTorch's fake operators have these."""
    if {mismatch.kind for mismatch in mismatches} == {"stride"} and example.fake_disagreement_on(inputs):
        return []
    return list(mismatches)


def check_parity(example: ExampleRun) -> None:
    """Raise where the first or the second call differs from eager."""
    check_compiles(example)
    mismatches = mismatches_of(example, example.cold)
    if not mismatches:
        if not any(example.report(call).compared for call in range(len(example.cold.executions))):
            raise NoClaim("the program returns nothing that could be compared")
        return
    if {mismatch.kind for mismatch in mismatches} == {"stride"} and example.fake_disagreement:
        raise NoClaim(f"PyTorch's fake operators have other strides than eager: {example.fake_disagreement}")
    detail = "; ".join(map(str, mismatches[:4]))
    blamed = None
    if example.blame:
        parity = ParityCheck(
            example.regional,
            example.program.function,
            example.expected[0].inputs,
            backward=None if example.trains else False,
            options=example.options(example.program),
        )
        blamed = parity.blame_for(example.expected[1].inputs)
    more = f"; and {len(mismatches) - 4} more" if len(mismatches) > 4 else ""
    raise example.violation(
        "parity",
        "backward" if all("grad" in mismatch.where for mismatch in mismatches) else "run",
        f"{detail}{more}",
        origin=kinds_of(mismatches),
        region=blamed,
    )


def mismatches_of(example: ExampleRun, run: Run) -> list[Mismatch]:
    """Return all differences of both calls from eager; those of the second say so, but for generators' states.

    What state a generator is left in follows from what is drawn, and says nothing more where values differ.
    """
    reports = [example.report(call, run).mismatches for call in range(len(run.executions))]
    found = list(reports[0]) if reports else []
    for mismatches in reports[1:]:
        found += [m if m.kind == "draws" else replace(m, where=f"second call: {m.where}") for m in mismatches]
    return [mismatch for mismatch in found if mismatch.kind != "draws"] or found


def check_configs(example: ExampleRun) -> None:
    """Raise where a partition was compiled under other settings, or where settings are others afterwards."""
    watched = example.cold.watched
    changed = [name for name, value in watched.settings_before.items() if watched.settings_after[name] != value]
    if changed:
        named = ", ".join(f"torch._inductor.config.{name}" for name in changed[:3])
        raise example.violation(
            "configs", "run", f"after the compile {named} is not what it was", origin="settings leak"
        )
    graphs = [graph for graph in watched.graphs if graph.partitions]
    if not graphs:
        raise NoClaim("no region was handed to Inductor")
    for graph in graphs:
        for partition in graph.partitions:
            _check_partition(example, graph, partition)
        _check_calls(example, graph)


def _check_partition(example: ExampleRun, graph: WatchedGraph, partition: WatchedPartition) -> None:
    for asked in partition.asked or ({},):
        expected = {**graph.settings, **{name: asked[name] for name in asked if name in partition.seen}}
        wrong = [name for name, value in expected.items() if partition.seen[name] != value]
        if wrong:
            name = wrong[0]
            region = partition.regions[0][0] if partition.regions else None
            raise example.violation(
                "configs",
                "backward" if graph.kind == "backward" else "compile",
                f"a partition of region {region!r} of the {graph.kind} graph was compiled with "
                f"{name}={partition.seen[name]!r}; {_reason(asked, name)} {expected[name]!r}",
                origin=f"a setting that the annotation {'names' if name in asked else 'does not name'}",
                region=region,
            )


def _check_calls(example: ExampleRun, graph: WatchedGraph) -> None:
    """Check whose code the regions of the result call: of several that are equal one may have been compiled for all."""
    for artifact, region, asked in zip(graph.calls, graph.called, graph.configs, strict=True):
        partition = example.cold.watched.artifacts.get(artifact)
        if asked is None or partition is None:
            continue
        expected = {**graph.settings, **asked}
        wrong = [name for name in partition.seen if partition.seen[name] != expected.get(name)]
        if wrong:
            raise example.violation(
                "configs",
                "backward" if graph.kind == "backward" else "compile",
                f"region {region!r} of the {graph.kind} graph calls what was compiled with "
                f"{wrong[0]}={partition.seen[wrong[0]]!r}; {_reason(asked, wrong[0])} {expected.get(wrong[0])!r}",
                origin="a call of code that has other settings",
                region=region,
            )


def _reason(asked: dict[str, Any], name: str) -> str:
    return "its annotation says" if name in asked else "its annotation says nothing of it, and outside it is"


def check_inference(example: ExampleRun) -> None:
    """Raise where the program without gradients fails or differs from eager, its training compiled before."""
    if not example.trains:
        raise NoClaim("the program is for inference already")
    _ = example.cold
    inference = example.of(replace(example.program, training=False))
    run = inference.run(inference.program)
    raise_failure(inference, run, "inference")
    mismatches = without_fake_strides(inference, inference.expected[0].inputs, mismatches_of(inference, run))
    raise_mismatches(inference, mismatches, "inference", "without gradients: ")


def check_refused(example: ExampleRun) -> None:
    """Raise where the backend runs a program that eager refuses, or raises another class of exception."""
    inputs = example.program.inputs(example.regional.device, 1)
    with example.regional.observer.paused():
        eager = example.execute(example.program.function, inputs)
    if eager.exception is None:
        raise NoClaim("eager runs the program")
    example.regional._reset(keep_code=True)
    compiled = example.execute(example.compile(example.program), inputs)
    report = compare_exceptions(eager, compiled)
    if not report.ok:
        found = "nothing raised" if compiled.exception is None else type(root_of(compiled.exception)).__name__
        origin = f"{found} for {type(eager.exception).__name__}"
        raise example.violation("refused", "run", str(report.mismatches[0]), origin=origin)


def check_region_boundary(example: ExampleRun) -> None:
    """Raise where a value crossed a boundary with another dtype, shape, layout or memory than the graph says."""
    graphs = example.cold.watched.graphs
    found = example.cold.watched.boundary_errors
    if all(" with strides" in message for message in found) and found and example.fake_disagreement:
        raise NoClaim(f"PyTorch's fake operators have other strides than eager: {example.fake_disagreement}")
    if found:
        kind = next(
            word for word in ("dtype", "shape", "strides", "storage offset", "memory", "view") if word in found[0]
        )
        stage = "backward" if "backward graph" in found[0] else "run"
        way = " that enters" if "enters" in found[0] else ""
        raise example.violation(
            "region_boundary", stage, "; ".join(found[:4]), origin=f"{kind} of a value{way} a region"
        )
    if not any(graph.shows and graph.calls for graph in graphs):
        raise NoClaim("no compiled graph shows the calls of its regions")


ORACLES = (
    Oracle(
        "compiles",
        "What eager runs compiles and runs: forward, backward, and again on other inputs.",
        check_compiles,
        modes=MODES,
        place=0,
        scripted=True,
    ),
    Oracle(
        "parity",
        "Values, gradients, mutations, aliases, strides and dtypes are eager's, and again on other inputs.",
        check_parity,
        modes=MODES,
        place=10,
        scripted=True,
    ),
    Oracle(
        "configs",
        "Each region compile, forward and backward, sees the Inductor settings of its annotation, the rest as outside.",
        check_configs,
        modes=MODES,
        requires=("regions", "region_configs"),
        place=40,
    ),
    Oracle(
        "inference",
        "A program that trains gives eager's values without gradients too, compiled beside its training graphs.",
        check_inference,
        every=4,
        place=140,
        fails_in_capture=True,
        after_parity=True,
    ),
    Oracle(
        "refused",
        "What eager refuses raises the same class of exception when it is compiled.",
        check_refused,
        every=0,
        place=230,
        fails_in_capture=True,
    ),
    Oracle(
        "region_boundary",
        "What crosses a region's boundary has the dtype, shape, strides and memory that the graph was traced with.",
        check_region_boundary,
        modes=MODES,
        requires=("regions",),
        place=20,
    ),
)
