"""``compile``: capture, partition and passes; the result trains like the model."""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from pytest_regional._base.cache_keys import keep_texts, why_missed
from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.aot_autograd import donate_nothing
from pytest_regional._torch.autograd_cache import caches_are_on, count_outcome
from pytest_regional._torch.caches import inductor_cache_dir
from pytest_regional._torch.config import global_state, portable_settings
from pytest_regional._torch.fx_graphs import attribute, is_graph_module, use_boxed_codegen
from pytest_regional._torch.inductor import is_boxed, output_code
from pytest_regional._torch.joint_graph import CompiledJoint, compile_joint
from pytest_regional._torch.tracing import entered
from pytest_regional.reference.artifacts import UnsavableArtifactError, savable
from pytest_regional.reference.caching.container import (
    TargetFingerprint,
    UnstorableError,
    this_machine,
    warn_of_unusable_entry,
)
from pytest_regional.reference.caching.outer import UNUSABLE, annotations_of, digest, named_texts
from pytest_regional.reference.caching.program import CompiledGraph
from pytest_regional.reference.caching.store import open_store, record
from pytest_regional.reference.pass_protocol import PassOrderError
from pytest_regional.reference.pipeline.call import CompiledModule, PipelineReport, dump_joint, load_joint
from pytest_regional.reference.pipeline.capture import (
    Decompositions,
    JointGraph,
    PartitionedGraphs,
    PartitionFunction,
    capture,
    checked_graphs,
    is_outermost,
    partition_function,
)
from pytest_regional.reference.pipeline.pass_pipeline import PassPipeline

#: Increased whenever the format of entries or keys changes.
FORMAT = 3

Compiled = tuple[CompiledJoint, PipelineReport]


@dataclass(frozen=True)
class ModuleKey:
    """The parts of the key; all fields are included.

    Attributes:
        format: of the entries.
        graphs: texts of the graphs before any pass, with shapes, dtypes, strides and devices.
        constants: digests of the tensors in them.
        annotations: of every node, which the texts omit.
        guards: the trace's assumptions about symbolic sizes.
        passes: the uuid of the pipeline.
        partitioner: its name, or its uuid.
        settings: of Inductor and AOTAutograd.
        state: the global state that Dynamo guards: threads, precision, determinism, autocast.
        machine: versions of the code generators, and the target CPU or GPU.
    """

    format: int
    graphs: tuple[str, ...]
    constants: tuple[str, ...]
    annotations: tuple[str, ...]
    guards: str | None
    passes: Hashable
    partitioner: Any
    settings: Any
    state: str
    machine: TargetFingerprint


def key_of(
    graphs: list[torch.fx.GraphModule], guards: str | None, pipeline: PassPipeline, partitioner: Any
) -> ModuleKey:
    """Collect what decides the result of compiling ``graphs``: a joint graph, or a forward and a backward.

    Raises:
        UnstorableError: something in it means nothing in another process: a pass without a uuid, a function as
            partitioner, a value in an annotation or a setting.
    """
    if pipeline.passes_without_uuid:
        names = ", ".join(map(repr, pipeline.passes_without_uuid))
        raise UnstorableError(f"passes without a uuid: {names}; give each one that changes when its code does")
    return ModuleKey(
        FORMAT,
        tuple(map(code_of, graphs)),
        tuple(line for gm in graphs for line in _constants(gm)),
        tuple(line for gm in graphs for line in annotations_of(gm)),
        guards,
        pipeline.uuid(),
        partitioner,
        portable_settings(),
        str(global_state()),
        this_machine(),
    )


def load_or_compile(make_key: Callable[[], ModuleKey], compile_now: Callable[[], Compiled]) -> Compiled:
    """Return the entry of the outer cache, or compile and store it.

    Lookups use the same counters as the backend. Models that cannot be looked up or stored are compiled and counted as
    a bypass with the reason.
    """
    if not caches_are_on():
        return compile_now()
    try:
        details = make_key()
        key = digest(details)
    except UnstorableError as error:
        count_outcome("bypass", str(error))
        return compile_now()
    found = _find(key)
    if found is not None:
        count_outcome("hit")
        return found
    texts = named_texts(details)
    count_outcome("miss", why_missed(inductor_cache_dir(), texts))
    compiled = compile_now()
    if _save(key, compiled):
        keep_texts(inductor_cache_dir(), key, texts)
    return compiled


def _find(key: str) -> Compiled | None:
    for payload in open_store().candidates(key):
        try:
            function, report = pickle.loads(payload)
            compiled = load_joint(function), report
        except MissingTorchSymbolError:
            raise
        except UNUSABLE as error:
            warn_of_unusable_entry(error)
        else:
            record(key, payload)
            return compiled
    return None


def _save(key: str, compiled: Compiled) -> bool:
    function, report = compiled
    try:
        with savable():
            payload = pickle.dumps((dump_joint(function), report))
    except UnsavableArtifactError as error:
        count_outcome("bypass", f"the result cannot be stored: {error}")
        return False
    record(key, payload)
    saved = open_store().save(key, payload)
    if saved:
        count_outcome("saved")
    return saved


def code_of(gm: torch.fx.GraphModule) -> str:
    """Return the code of ``gm`` and its bodies, without comments, which name the user's files."""
    text = gm.print_readable(print_output=False, include_stride=True, include_device=True, expanded_def=True)
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return "\n".join(lines)


def _constants(gm: torch.fx.GraphModule) -> Iterator[str]:
    for path, module in gm.named_modules():
        for node in module.graph.find_nodes(op="get_attr") if is_graph_module(module) else ():
            value = attribute(module, str(node.target))
            if not is_graph_module(value):
                yield f"{path}:{node.target}:{_digest(value, str(node.target))}"


def _digest(value: Any, name: str) -> str:
    if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
        raise UnstorableError(f"constant {name} of the graph is a {type(value).__name__}")
    content = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    described = f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device}"
    return f"{described} {hashlib.sha256(content.numpy().tobytes()).hexdigest()}"


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

    Without a terminal pass the graphs run op by op. Everything is compiled at once, the backward too. Nothing runs, and
    the result shares the model's parameters.

    Args:
        model: A module or function; or the result of ``capture`` or ``partition``, which is not changed.
        args: Example inputs, as for ``capture``; like the next, omitted for a captured model.
        kwargs: Example keyword arguments.
        passes: Passes for the graphs, a list or a ``PassPipeline``; compilers are passes, too.
        disable: Names of passes to leave out.
        partitioner: As for ``partition``; omitted for a partitioned model.
        decompositions: As for ``capture``, like the next two.
        dynamic: As above.
        strict: As above.
        cache: Whether to use the outer cache for compiles of equal graphs with equal passes. Every pass needs a
            ``uuid()``, and so does a partitioner that is a function.

    Raises:
        PipelineError: the model cannot be captured as one graph, the passes cannot run, or one of them failed.
    """
    disable = tuple(disable)
    pipeline = passes if isinstance(passes, PassPipeline) else PassPipeline(passes)
    pipeline = pipeline.without(*disable) if disable else pipeline
    identity: str | PartitionFunction
    if isinstance(model, PartitionedGraphs):
        late = pipeline.names_on("joint")
        if late:
            raise PassOrderError(
                f"{', '.join(map(repr, late))} run on joint graphs, and this one is partitioned already: run them on "
                f"joint.graph_module before partition(), or leave them out.",
                late,
            )
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

    def checked(gm: torch.fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
        graphs = split(gm, inputs, **keywords)
        return checked_graphs(graphs, split) if is_outermost(gm) else graphs

    kinds = ("forward", "backward") if joint.kind == "joint" else ("inference", "inference")
    forward, backward = (functools.partial(_run_passes, pipeline, kind) for kind in kinds)
    function = compile_joint(joint.exported, joint.context, partition=checked, forward=forward, backward=backward)
    return function, pipeline.report


def _run_passes(pipeline: PassPipeline, kind: str, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Run the passes on AOTAutograd's graph, and return a result that it can call and store."""
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
    """The result of a user's terminal pass: it runs, but cannot be stored."""

    def __init__(self, function: Callable[[Sequence[Any]], Any], pass_name: str) -> None:
        super().__init__()
        self._function = function
        self._pass_name = pass_name
        self._boxed = is_boxed(function)
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> Any:
        """Run it; a callable that is not boxed gets separate inputs."""
        if self._boxed:
            return self._function(inputs)
        values = tuple(inputs)
        inputs.clear()
        return self._function(*values)

    def prepare_for_serialization(self) -> None:
        """Raise.

        Raises:
            UnsavableArtifactError: always, naming the pass.
        """
        raise UnsavableArtifactError(
            f"the result of pass {self._pass_name!r} cannot be saved: a terminal pass has to return a graph module, or "
            f"an OutputCode of Inductor's."
        )

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Do nothing."""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Take no bundle."""
