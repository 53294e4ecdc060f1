"""What compiled code depends on, and so what the key of a cache has to hold: the ingredients of the key.

They are read off Dynamo's graph and the process, whatever the backend's key holds. Where a cache gave one call the
answer to another, the calls differ in an ingredient that the key lacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_regional._cache_keys import Parts
from pytest_regional._torch.config import (
    DYNAMO,
    FUNCTORCH,
    INDUCTOR,
    config_values,
    portable_settings,
    pre_grad_custom_passes,
)
from pytest_regional._torch.distributed import groups_named_in
from pytest_regional._torch.fx_graphs import REGION_AFTER, attribute, is_graph_module
from pytest_regional._torch.key_details import tensor_text
from pytest_regional.harness.observe import annotated

Ingredients = Mapping[str, str]
"""By name, what one call of a backend was made with."""

#: More different ones are not listed.
_MOST = 3

#: Groups of which the calls of a backend are said to differ as a whole.
_WHOLE = {"graph": "the program", "annotations": "the annotations", "inputs": "the inputs"}


def ingredients_of(gm: Any) -> Ingredients:
    """Return what the code of one of Dynamo's graphs depends on, as it is now, and all settings."""
    groups = {**grouped_ingredients(gm), "settings": dict(_all_settings())}
    flat = {_WHOLE[group]: _plain(named) for group, named in groups.items() if group in _WHOLE}
    others = (named for group, named in groups.items() if group not in _WHOLE)
    return flat | {name: value for named in others for name, value in named.items()}


def grouped_ingredients(gm: Any) -> Parts:
    """Return what the code of one of Dynamo's graphs depends on, as it is now.

    Of settings, those that PyTorch itself keeps in its keys; of process groups, those that the graph names.
    """
    return {
        "graph": dict(_graph(gm)),
        "annotations": dict(_annotations(gm)),
        "inputs": dict(_inputs(gm)),
        "passes": dict(_passes()),
        "state": dict(_state()),
        "settings": dict(_settings()),
        "processes": {f"the process group {name!r}": said for name, said in groups_named_in(gm).items()},
    }


def ops_of(gm: Any) -> list[str]:
    """Return a line for each op of ``gm`` and of the bodies below it; values are numbers, as names say nothing."""
    numbers: dict[Any, str] = {}
    lines = []
    for number, node in enumerate(annotated.nodes_of(gm)):
        numbers[node] = f"%{number}"
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda used: _Number(numbers.get(used, "%?")))
        name = "" if node.op in ("placeholder", "output", "get_attr") else f" {_target(node)}"
        said = ", ".join([*map(repr, arguments[0]), *(f"{name}={one!r}" for name, one in arguments[1].items())])
        lines.append(f"{node.op}{name}" + (f"({said})" if said else ""))
    return lines


class _Number(str):
    """The number of a value, written without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _target(node: Any) -> str:
    if isinstance(node.target, str):
        return node.target
    text = str(node.target)
    module, name = getattr(node.target, "__module__", "") or "", getattr(node.target, "__name__", text)
    return text if " " not in text else f"{module.strip('_')}.{name}".lstrip(".")


def _graph(gm: Any) -> Iterator[tuple[str, str]]:
    yield "the graph", "\n".join(ops_of(gm))
    for node in gm.graph.find_nodes(op="get_attr"):
        value = attribute(gm, str(node.target))
        if isinstance(value, torch.Tensor):
            yield f"the constant {node.target}", tensor_text(value)
        elif not is_graph_module(value):
            yield f"the constant {node.target}", type(value).__qualname__


def _annotations(gm: Any) -> Iterator[tuple[str, str]]:
    regions: dict[str, list[tuple[int, Any]]] = {}
    for number, node in enumerate(annotated.nodes_of(gm)):
        region, others = annotated.region_of(node), annotated.other_annotations_of(node)
        if region is not None:
            regions.setdefault(region[0], []).append((number, node))
        if others:
            yield f"the other annotations of op %{number}", _plain(others)
    for at, (name, numbered) in enumerate(regions.items()):
        # By place, not by name: regions with other names hold the same ops.
        which = f"region {at}"
        yield f"the id of {which}", name
        yield f"the ops of {which}", ", ".join(f"%{number}" for number, _ in numbered)
        yield f"the configs of {which}", _each(annotated.configs_of(node) for _, node in numbered)
        yield f"what runs before {which} (after=)", _each(annotated.regions_before(node) for _, node in numbered)
        yield f"the form of the annotation of {which}", _each(_form(node) for _, node in numbered)


def _form(node: Any) -> Any:
    """Return what else a node's annotation says: its other entries, or what stands in place of entries."""
    value = annotated.annotation_of(node)
    known = ("inductor_region", "inductor_configs", REGION_AFTER)
    return {name: one for name, one in value.items() if name not in known} if isinstance(value, Mapping) else value


def _each(values: Iterator[Any]) -> str:
    """Return what nodes say, once each."""
    return ", ".join(dict.fromkeys(map(_plain, values)))


def inputs_of(gm: Any) -> list[str]:
    """Return dtype, shape, strides, device and ``requires_grad`` of each input of one of Dynamo's graphs."""
    return [_input(node.meta.get("example_value")) for node in gm.graph.find_nodes(op="placeholder")]


def _input(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    strides = list(value.stride()) if value.layout == torch.strided else value.layout
    return f"{value.dtype} {list(value.shape)} {strides} {value.device} {value.requires_grad}"


def _inputs(gm: Any) -> Iterator[tuple[str, str]]:
    for index, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor):
            yield f"input {index}", str(value)
            continue
        yield f"input {index}, shape", str(list(value.shape))
        yield f"input {index}, dtype", str(value.dtype)
        if value.layout == torch.strided:
            yield f"input {index}, stride", str(list(value.stride()))
            yield f"input {index}, storage_offset", str(value.storage_offset())
        else:
            yield f"input {index}, layout", str(value.layout)
        yield f"input {index}, device", str(value.device)
        yield f"input {index}, requires_grad", str(value.requires_grad)


def _passes() -> Iterator[tuple[str, str]]:
    uuids = [getattr(one, "uuid", None) for one in pre_grad_custom_passes()]
    yield "the pre-grad passes", _plain([uuid() if callable(uuid) else None for uuid in uuids])


def modes() -> Iterator[tuple[str, str]]:
    """Yield the modes of PyTorch that code depends on, by name, as they are now."""
    for device in ("cpu", "cuda"):
        enabled = torch.is_autocast_enabled(device)
        yield f"autocast of {device}", str(torch.get_autocast_dtype(device)) if enabled else "off"
    yield "the default dtype", str(torch.get_default_dtype())
    yield "whether gradients are recorded", str(torch.is_grad_enabled())
    yield "deterministic algorithms", str(torch.are_deterministic_algorithms_enabled())
    yield "the precision of products", torch.get_float32_matmul_precision()


def _state() -> Iterator[tuple[str, str]]:
    yield from modes()
    yield "the number of threads", str(torch.get_num_threads())


def _all_settings() -> Iterator[tuple[str, str]]:
    for module in (INDUCTOR, FUNCTORCH, DYNAMO):
        for name, value in config_values(module).items():
            yield f"{module}.{name}", _plain(value)


def _settings() -> Iterator[tuple[str, str]]:
    modules = {"inductor": INDUCTOR, "functorch": FUNCTORCH}
    for which, values in portable_settings().items():
        for name, value in values.items():
            yield f"{modules[which]}.{name}", _plain(value)


def _plain(value: Any) -> str:
    """Return a setting as text; of an object, such as a pass, its class, as its text may hold an address."""
    return json.dumps(value, default=lambda one: type(one).__qualname__, sort_keys=True, skipkeys=True)


def different(calls: Sequence[Ingredients]) -> str:
    """Return in a sentence in what calls of a backend differ; empty where they do not, or in too much."""
    names = dict.fromkeys(name for call in calls for name in call)
    values = {name: list(dict.fromkeys(call.get(name, "") for call in calls)) for name in names}
    differ = {name: several for name, several in values.items() if len(several) > 1}
    if not 0 < len(differ) <= _MOST:
        return ""
    said = (f"{name} ({' then '.join(several)})" if _is_short(several) else name for name, several in differ.items())
    return f"the calls differ in {', '.join(said)}"


def _is_short(values: Sequence[str]) -> bool:
    return sum(map(len, values)) <= 60 and not any("\n" in value for value in values)
