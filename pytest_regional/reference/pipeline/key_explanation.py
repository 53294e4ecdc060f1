"""The key of a pipeline's result in the outer cache with everything in it, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_regional._cache_keys import CacheKey, Parts
from pytest_regional._torch.autograd_cache import caches_are_on
from pytest_regional._torch.config import FUNCTORCH, INDUCTOR
from pytest_regional.reference.caching.code import UnstableValueError
from pytest_regional.reference.caching.key import stable_text
from pytest_regional.reference.key_explanation import state_in_words
from pytest_regional.reference.pipeline.capture import JointGraph, capture
from pytest_regional.reference.pipeline.compile import ModuleKey, Passes, code_of, key_of
from pytest_regional.reference.pipeline.partition import PartitionFunction
from pytest_regional.reference.pipeline.pass_pipeline import PassPipeline


def explain_pipeline_key(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    passes: Passes = (),
    partitioner: str | PartitionFunction = "default",
    dynamic: bool = False,
) -> tuple[CacheKey, tuple[str, ...]]:
    """Return the key that ``pipeline.compile(..., cache=True)`` looks a model up with, and the names of its inputs.

    The model is captured; nothing is compiled, looked up or stored. Arguments and errors are those of
    ``pipeline.compile``.
    """
    pipeline = passes if isinstance(passes, PassPipeline) else PassPipeline(passes)
    joint = capture(model, args, kwargs, dynamic=dynamic)
    names = tuple(str(value).replace("input ", "argument ") for value in joint.inputs)
    if not caches_are_on():
        return CacheKey("", "the outer cache is switched off"), names
    try:
        key = key_of([joint.graph_module], joint.checks.guards, pipeline, partitioner)
        return CacheKey(key.digest(), "", _parts(joint, pipeline, key)), names
    except UnstableValueError as error:
        return CacheKey("", str(error)), names


def _parts(joint: JointGraph, pipeline: PassPipeline, key: ModuleKey) -> Parts:
    return {
        "graph": dict(_graph(joint, key)),
        "annotations": dict(_annotations(key)),
        "inputs": dict(_inputs(joint)),
        "passes": dict(_passes(pipeline)),
        "settings": dict(_settings(key.settings)),
        "state": state_in_words(key.state),
        "options": {
            "the partitioner": key.partitioner if isinstance(key.partitioner, str) else stable_text(key.partitioner)
        },
        "machine": {name: str(value) for name, value in key.machine.as_dict().items()},
        "others": {"the format of entries": str(key.format)},
    }


def _graph(joint: JointGraph, key: ModuleKey) -> Iterator[tuple[str, str]]:
    # Without shapes, which are those of the inputs, and without what is freed where.
    calls = re.findall(r"^\s*(\w+)(?:: \"[^\"]*\")? = ([^;\n]+)", code_of(joint.graph_module), re.MULTILINE)
    yield "the graph", "\n".join(f"{name} = {call.strip()}" for name, call in calls if call.strip() != "None")
    for line in key.constants:
        path, name, digest = line.split(":", 2)
        yield f"the constant {path}{'.' * bool(path)}{name}", digest
    yield "the guards on symbolic sizes", str(key.guards)
    yield "everything else of the graph", ", ".join(key.graphs)


def _annotations(key: ModuleKey) -> Iterator[tuple[str, str]]:
    for line in key.annotations:
        path, at, text = line.split(":", 2)
        yield f"the annotation of node {f'{path}:' * bool(path)}{at}", text


def _inputs(joint: JointGraph) -> Iterator[tuple[str, str]]:
    for index, value in enumerate(joint.example_inputs):
        if not isinstance(value, torch.Tensor):
            yield f"input {index}", str(value)
            continue
        yield f"input {index}, shape", str(list(value.shape))
        yield f"input {index}, dtype", str(value.dtype)
        if value.layout == torch.strided:
            yield f"input {index}, stride", str(list(value.stride()))
        yield f"input {index}, device", str(value.device)


def _passes(pipeline: PassPipeline) -> Iterator[tuple[str, str]]:
    yield "the order of the passes", ", ".join(pipeline.names) or "none"
    for name, (graphs, uuid) in pipeline.uuids.items():
        yield f"pass {name!r}", f"uuid {uuid!r} on graphs {', '.join(graphs)}"


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    modules = {"inductor": INDUCTOR, "functorch": FUNCTORCH}
    for which, values in settings.items():
        for name, value in values.items():
            yield (
                f"{modules[which]}.{name}",
                json.dumps(value, default=lambda one: type(one).__qualname__, skipkeys=True),
            )


__all__ = ["explain_pipeline_key"]
