"""``explain_pipeline``: a pipeline's effect on a model as text: regions, partitions, passes, times."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from pytest_regional.reference.explanation import Explainer, Explanation
from pytest_regional.reference.pass_protocol import Pass
from pytest_regional.reference.pipeline.capture import capture
from pytest_regional.reference.pipeline.compile import compile as compile_model
from pytest_regional.reference.pipeline.partition import PartitionFunction
from pytest_regional.reference.pipeline.pass_pipeline import PassPipeline
from pytest_regional.reference.pipeline.report import PipelineReport, count_ops


@dataclass(frozen=True)
class PipelineExplanation:
    """A pipeline's effect on a model; ``str()`` formats it.

    Attributes:
        model: its class, or the function's name.
        parameters: number of parameters.
        buffers: number of buffers.
        names: the passes in the order in which they ran.
        disabled: the disabled passes.
        seconds: times of capture and compile.
        graphs: the region plan and number of ops of each graph before the last pass.
        report: each pass's effect.
    """

    model: str
    parameters: int
    buffers: int
    names: tuple[str, ...]
    disabled: tuple[str, ...]
    seconds: Mapping[str, float]
    graphs: tuple[tuple[Explanation, int], ...]
    report: PipelineReport

    def __str__(self) -> str:
        times = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in self.seconds.items())
        off = f"  (disabled: {', '.join(self.disabled)})" if self.disabled else ""
        lines = [
            f"{self.model}: {self.parameters} parameters, {self.buffers} buffers; {times}",
            f"passes: {' -> '.join(self.names) or 'none'}{off}",
            "",
            str(self.report),
        ]
        for plan, ops in self.graphs:
            first, *rest = str(plan).splitlines()
            lines += ["", f"{first}, {ops} ops", *rest]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, for JSON."""
        return {
            "model": self.model,
            "parameters": self.parameters,
            "buffers": self.buffers,
            "passes": list(self.names),
            "disabled": list(self.disabled),
            "seconds": dict(self.seconds),
            "graphs": [
                {"kind": plan.kind, "ops": ops, "partitions": [_plain(one) for one in plan.partitions]}
                for plan, ops in self.graphs
            ],
            "report": [_plain(row) for row in self.report],
        }


def explain_pipeline(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    passes: Iterable[Any] = (),
    disable: Iterable[str] = (),
    partitioner: str | PartitionFunction = "default",
    dynamic: bool = False,
    strict: bool = True,
) -> PipelineExplanation:
    """Capture and compile ``model``, and describe it; arguments and errors are those of ``pipeline.compile``."""
    look = _InspectRegions()
    # First with the given passes: errors in them do not mention our own pass.
    given = PassPipeline(passes, disable)
    pipeline = PassPipeline([*given, look])
    began = time.perf_counter()
    joint = capture(model, args, kwargs, dynamic=dynamic, strict=strict)
    captured = time.perf_counter()
    compile_model(joint, passes=pipeline, partitioner=partitioner)
    compiled = time.perf_counter()
    rows = [row for row in pipeline.report if row.name != look.name]
    return PipelineExplanation(
        getattr(model, "__name__", type(model).__name__),
        len(joint.parameters),
        len(joint.buffers),
        given.names,
        given.disabled,
        {"capture": captured - began, "passes and compile": compiled - captured},
        tuple(look.plans),
        PipelineReport(tuple(rows)),
    )


@dataclass(frozen=True, eq=False)
class _InspectRegions(Pass):
    """Runs before the terminal pass and explains its input."""

    name = "inspect regions"
    plans: list[tuple[Explanation, int]] = field(default_factory=list)
    explainer: Explainer = field(default_factory=Explainer)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = (), *, graph: str = "forward") -> None:
        partitions = tuple(self.explainer.explained(gm, f"{graph}."))
        self.plans.append((Explanation(partitions, graph), sum(count_ops(gm).values())))


def _plain(value: Any) -> dict[str, Any]:
    return {one.name: _plain_value(getattr(value, one.name)) for one in dataclasses.fields(value)}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain_value(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
