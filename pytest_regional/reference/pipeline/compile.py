"""``compile``: capture, partition, passes; what comes out trains as the model does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch.fx

from pytest_regional._torch.autograd_cache import output_code
from pytest_regional._torch.donation import donate_nothing
from pytest_regional._torch.joint_graph import CompiledJoint, compile_joint, entered
from pytest_regional._torch.region_compile import use_boxed_codegen
from pytest_regional.reference.artifacts import UnsavableArtifactError
from pytest_regional.reference.caching.output_code import CompiledGraph
from pytest_regional.reference.pipeline.cache import key_of, load_or_compile
from pytest_regional.reference.pipeline.capture import Decompositions, JointGraph, capture
from pytest_regional.reference.pipeline.errors import PassOrderError
from pytest_regional.reference.pipeline.module import CompiledModule
from pytest_regional.reference.pipeline.partition import (
    PartitionedGraphs,
    PartitionFunction,
    checked_graphs,
    is_outermost,
    partition_function,
)
from pytest_regional.reference.pipeline.pass_pipeline import PassPipeline
from pytest_regional.reference.pipeline.report import PipelineReport

Passes = PassPipeline | Iterable[Any]


def compile(
    model: Callable[..., Any] | JointGraph | PartitionedGraphs,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    passes: Passes = (),
    disable: Iterable[str] = (),
    partitioner: str | PartitionFunction = "default",
    decompositions: Decompositions | None = None,
    dynamic: bool = False,
    strict: bool = True,
    cache: bool = False,
) -> CompiledModule:
    """Compile ``model``: capture, joint passes, partition, passes on forward and backward.

    Without a terminal pass the graphs run as they are, op by op. All is compiled at once, the backward too; nothing
    runs, and the model keeps its parameters, which the result shares.

    Args:
        model: A module or function; or what ``capture`` or ``partition`` returned, which stays as it is.
        args: Example inputs, as ``capture`` takes them; like the next, not given for what is captured already.
        kwargs: Example keyword arguments.
        passes: What runs on the graphs, a list or a ``PassPipeline``: compilers, too, are passes.
        disable: Names of passes to leave out.
        partitioner: As ``partition`` takes it; not given for what is partitioned already.
        decompositions: As ``capture`` takes them, as for the next two.
        dynamic: As above.
        strict: As above.
        cache: Whether to load what an earlier compile of equal graphs with equal passes left in the outer cache, and
            to leave it there. Every pass needs a ``uuid()``, and a partitioner that is a function, too.

    Raises:
        CaptureError: the model is no single graph.
        PipelineError: the passes cannot be run, or one of them failed.
    """
    disable = tuple(disable)
    pipeline = passes if isinstance(passes, PassPipeline) else PassPipeline(passes)
    pipeline = pipeline.without(*disable) if disable else pipeline
    identity: str | PartitionFunction
    if isinstance(model, PartitionedGraphs):
        _refuse_joint_passes(pipeline)
        joint, graphs = model.joint.copy(), [model.forward, model.backward]
        split, identity = model.as_partition_function(), model.partitioner
    else:
        if isinstance(model, JointGraph):
            joint = model.copy()
        else:
            joint = capture(model, args, kwargs, decompositions=decompositions, dynamic=dynamic, strict=strict)
        graphs, split, identity = [joint.graph_module], partition_function(partitioner), partitioner
    compile_now = functools.partial(_compiled, joint, pipeline, split)
    if cache:
        make_key = functools.partial(key_of, graphs, joint.checks.guards, pipeline, identity)
        function, report = load_or_compile(make_key, compile_now)
    else:
        function, report = compile_now()
    return CompiledModule(joint.model, function, joint.checks, report)


def _compiled(
    joint: JointGraph, pipeline: PassPipeline, split: PartitionFunction
) -> tuple[CompiledJoint, PipelineReport]:
    """Compile ``joint``, which is consumed."""
    if joint.kind == "joint":
        with entered(joint.context), joint.exported.fake_mode:
            joint.graph_module = pipeline.run(joint.graph_module, joint.example_inputs, "joint")
    kinds = ("forward", "backward") if joint.kind == "joint" else ("inference", "inference")
    forward, backward = (functools.partial(_run_passes, pipeline, kind) for kind in kinds)
    function = compile_joint(
        joint.exported, joint.context, partition=_checked(split), forward=forward, backward=backward
    )
    return function, pipeline.report


def _refuse_joint_passes(pipeline: PassPipeline) -> None:
    late = pipeline.names_on("joint")
    if late:
        raise PassOrderError(
            f"{', '.join(map(repr, late))} run on joint graphs, and this one is partitioned already: run them on "
            f"joint.graph_module before partition(), or leave them out.",
            late,
        )


def _checked(split: PartitionFunction) -> PartitionFunction:
    """Have what a user's partitioner returns checked."""

    def checked(gm: torch.fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
        graphs = split(gm, inputs, **keywords)
        return checked_graphs(graphs, split) if is_outermost(gm) else graphs

    return checked


def _run_passes(pipeline: PassPipeline, kind: str, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Run the passes on a graph of AOTAutograd's, and return what it can call and store."""
    result = pipeline.run(gm, inputs, kind)
    if isinstance(result, output_code()):
        return result
    if isinstance(result, torch.fx.GraphModule):
        if kind == "backward":
            donate_nothing()  # a graph of operators overwrites no saved value
        use_boxed_codegen(result)
        return CompiledGraph(result)
    return CompiledCallable(result, pipeline.names_on(kind)[-1])


class CompiledCallable(output_code()):  # type: ignore[misc]
    """What a terminal pass of the user's returned: it runs, and cannot be stored."""

    def __init__(self, function: Callable[[Sequence[Any]], Any], pass_name: str) -> None:
        super().__init__()
        self._function = function
        self._pass_name = pass_name
        self._boxed = bool(getattr(function, "_boxed_call", False))
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> Any:
        """Run it; a callable that is not boxed gets its inputs one by one."""
        if self._boxed:
            return self._function(inputs)
        values = tuple(inputs)
        inputs.clear()
        return self._function(*values)

    def prepare_for_serialization(self) -> None:
        """Refuse.

        Raises:
            UnsavableArtifactError: always, naming the pass.
        """
        raise UnsavableArtifactError(
            f"what pass {self._pass_name!r} returned cannot be saved: a terminal pass has to return a graph module, or "
            f"an OutputCode of Inductor's."
        )

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Nothing is left to do."""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Take no bundle."""
