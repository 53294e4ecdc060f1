"""The key of the outer cache with everything in it, in words: why two programs share, or do not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.fx

from pytest_regional._cache_keys import CacheKey, Parts
from pytest_regional._torch.autograd_cache import caches_are_on
from pytest_regional._torch.config import autocast_devices
from pytest_regional._torch.fx_graphs import clone_graph
from pytest_regional._torch.key_details import recorded_details
from pytest_regional.reference.caching.key import KeyDetails, fields_of, stable_text
from pytest_regional.reference.caching.outer import KeyFound
from pytest_regional.reference.dynamo_backend import compile_dynamo_graph
from pytest_regional.reference.options import BackendOptions
from pytest_regional.reference.region_keys import region_keys


def explain_key(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> CacheKey:
    """Return the key that the backend looks ``gm`` up with, what it is made of, and the keys of its regions.

    Nothing is compiled, looked up or stored. Pre-grad passes that run before the lookup change ``gm``.

    Args:
        gm: a graph that Dynamo captured.
        example_inputs: its (fake) inputs.
        options: of the backend.

    Raises:
        RegionalValueError: an unknown option or an invalid value.
        RegionalError: an annotation is not understood, or a pre-grad pass cannot run.
    """
    chosen = BackendOptions.merged(options)
    regions = tuple(region_keys(clone_graph(gm), example_inputs, chosen)) if chosen.share_identical else ()
    if not (chosen.outer_cache and caches_are_on()):
        return CacheKey("", "the outer cache is switched off", {}, regions)
    with recorded_details() as recorded:
        try:
            compile_dynamo_graph(gm, example_inputs, chosen, key_only=True)
        except KeyFound as found:
            if found.details is None:
                return CacheKey("", found.reason, {}, regions)
            known = recorded.ingredients if found.details.program == recorded.key else None
            return CacheKey(found.key or "", found.reason, parts_of(found.details, known), regions)
    return CacheKey("", "AOTAutograd looks up no cache for it", {}, regions)


def parts_of(details: KeyDetails, pytorchs: Parts | None) -> Parts:
    """Return what a key is made of, by group and name.

    Args:
        details: of the key.
        pytorchs: what PyTorch's own key, which is a part of it, is made of; None where that is another text.
    """
    # A dictionary for each: equal names are one ingredient, and what PyTorch says of it is the same.
    made = {
        group: dict(named)
        for group, named in (pytorchs or {"graph": {"the code of the graph": details.program}}).items()
    }
    for group, named in _own(details):
        made[group] = {**named, **made.get(group, {})}
    return made


def _own(details: KeyDetails) -> Iterator[tuple[str, dict[str, str]]]:
    lines = [line.split(":", 2) for line in details.annotations]
    yield "annotations", {f"the annotation of node {f'{path}:' * bool(path)}{at}": text for path, at, text in lines}
    yield (
        "inputs",
        {f"{name}, shared memory": place for name, _, place in (each.partition(": ") for each in details.memory)},
    )
    yield "graph", {name: text for name, _, text in (each.rpartition(": ") for each in details.code)}
    yield "passes", {"the uuids of pre-grad passes that run after the lookup": stable_text(details.passes)}
    groups = (group.rpartition(": ") for group in details.groups)
    yield "processes", {f"the process group {name!r}": size for name, _, size in groups}
    yield "state", state_in_words(details.state)
    yield "options", {f"option {name}": str(value) for name, value in fields_of(details.options).items()}
    yield "machine", {name: str(value) for name, value in details.machine.as_dict().items()}
    known = {"program", "annotations", "code", "memory", "passes", "groups", "state", "options", "machine"}
    others = {each.name: stable_text(getattr(details, each.name)) for each in fields(details) if each.name not in known}
    yield "others", {f"the {name} of entries": value for name, value in others.items()}


#: What the state that Dynamo guards is called, by its name there; others keep their name.
_STATE = {
    "grad_mode": "whether gradients are recorded",
    "deterministic_algorithms": "deterministic algorithms",
    "num_threads": "the number of threads",
}


def state_in_words(text: str) -> dict[str, str]:
    """Return what the text of the state that Dynamo guards says, by name."""
    values: dict[str, Any] = json.loads(text) if text else {}
    named = {"autocast": values.pop("autocast_state"), "dtype": values.pop("default_dtype")} if values else {}
    said = {_STATE.get(name, name): str(value) for name, value in values.items()}
    if named:
        said["the default dtype"] = _dtype(named["dtype"])
        said |= _autocast(named["autocast"])
    return said


def _autocast(state: Mapping[str, Any]) -> dict[str, str]:
    said = {}
    devices = autocast_devices()
    for index, (enabled, dtype) in enumerate(zip(state["enabled"], state["dtype"], strict=True)):
        device = devices[index] if index < len(devices) else f"device type {index}"
        said[f"autocast of {device}"] = _dtype(dtype) if enabled else "off"
    return said


#: Scalar types as PyTorch numbers them (``c10/core/ScalarType.h``), those that autocast and defaults may be.
_DTYPES = {5: torch.float16, 6: torch.float32, 7: torch.float64, 15: torch.bfloat16}


def _dtype(number: int) -> str:
    return str(_DTYPES.get(number, f"scalar type {number}"))
