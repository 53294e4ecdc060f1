"""The outer cache for whole modules: what was compiled from equal graphs, by equal passes, is loaded instead."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.autograd_cache import caches_are_on, count_outcome
from pytest_regional._torch.joint_graph import CompiledJoint
from pytest_regional._torch.region_compile import compile_state, is_graph_module, portable_settings
from pytest_regional.reference.artifacts import UnsavableArtifactError, savable
from pytest_regional.reference.caching.errors import warn_of_unusable_entry
from pytest_regional.reference.caching.key import annotations_of
from pytest_regional.reference.caching.machine import Machine, this_machine
from pytest_regional.reference.caching.outer import UNUSABLE
from pytest_regional.reference.caching.portable import record
from pytest_regional.reference.caching.stable import UnstableValueError, digest
from pytest_regional.reference.caching.store import open_store
from pytest_regional.reference.extract import attribute
from pytest_regional.reference.pipeline.pass_pipeline import PassPipeline
from pytest_regional.reference.pipeline.report import PipelineReport
from pytest_regional.reference.pipeline.stored import dump_joint, load_joint

#: Raised whenever what is stored, or how it is found, changes its meaning.
FORMAT = 2

Compiled = tuple[CompiledJoint, PipelineReport]


@dataclass(frozen=True)
class ModuleKey:
    """What enters the key; every field does.

    Attributes:
        format: of the entries.
        graphs: texts of the graphs before any pass, with shapes, dtypes, strides and devices.
        constants: digests of the tensors in them.
        annotations: of every node, which the texts leave out.
        guards: what the trace assumed of symbolic sizes.
        passes: the uuid of the pipeline.
        partitioner: its name, or its uuid.
        settings: of Inductor and AOTAutograd.
        state: what Dynamo guards of the process: threads, precision, determinism, autocast.
        machine: versions of what generates the code, and the processor that it is generated for.
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
    machine: Machine

    def digest(self) -> str:
        """Return the key, in hexadecimal."""
        return digest(self)


def key_of(
    graphs: list[torch.fx.GraphModule], guards: str | None, pipeline: PassPipeline, partitioner: Any
) -> ModuleKey:
    """Collect what decides the result of compiling ``graphs``: a joint graph, or a forward and a backward.

    Raises:
        UnstableValueError: something in it means nothing in another process: a pass without a uuid, a function as
            partitioner, a value in an annotation or a setting.
    """
    if pipeline.passes_without_uuid:
        names = ", ".join(map(repr, pipeline.passes_without_uuid))
        raise UnstableValueError(f"passes without a uuid: {names}; give each one that changes when its code does")
    return ModuleKey(
        FORMAT,
        tuple(map(_text, graphs)),
        tuple(line for gm in graphs for line in _constants(gm)),
        tuple(line for gm in graphs for line in annotations_of(gm)),
        guards,
        pipeline.uuid(),
        partitioner,
        portable_settings(),
        str(compile_state()["global"]),
        this_machine(),
    )


def load_or_compile(make_key: Callable[[], ModuleKey], compile_now: Callable[[], Compiled]) -> Compiled:
    """Return what the outer cache holds, or compile and store it.

    Lookups are counted where the backend's are. What cannot be looked up or stored is compiled all the same, and
    counted as a bypass with the reason.
    """
    if not caches_are_on():
        return compile_now()
    try:
        key = make_key().digest()
    except UnstableValueError as error:
        count_outcome("bypass", str(error))
        return compile_now()
    found = _find(key)
    if found is not None:
        count_outcome("hit")
        return found
    count_outcome("miss")
    compiled = compile_now()
    _save(key, compiled)
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


def _save(key: str, compiled: Compiled) -> None:
    function, report = compiled
    try:
        with savable():
            payload = pickle.dumps((dump_joint(function), report))
    except UnsavableArtifactError as error:
        count_outcome("bypass", f"the result cannot be stored: {error}")
        return
    record(key, payload)
    if open_store().save(key, payload):
        count_outcome("saved")


def _text(gm: torch.fx.GraphModule) -> str:
    """Return the code of ``gm`` and its bodies; comments, which name the user's files, are left out."""
    text = gm.print_readable(print_output=False, include_stride=True, include_device=True, expanded_def=True)
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _constants(gm: torch.fx.GraphModule) -> Iterator[str]:
    for path, module in gm.named_modules():
        for node in module.graph.find_nodes(op="get_attr") if is_graph_module(module) else ():
            value = attribute(module, str(node.target))
            if not is_graph_module(value):
                yield f"{path}:{node.target}:{_digest(value, str(node.target))}"


def _digest(value: Any, name: str) -> str:
    if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
        raise UnstableValueError(f"constant {name} of the graph is a {type(value).__name__}")
    content = value.detach().cpu().contiguous().flatten().view(torch.uint8)
    described = f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device}"
    return f"{described} {hashlib.sha256(content.numpy().tobytes()).hexdigest()}"
