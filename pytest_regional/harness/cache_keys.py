"""What compiled code depends on, and with which keys a backend's cache is looked up for a program.

The first, the ingredients, are read off Dynamo's graph and the process, whatever the backend's key holds. Where a cache
gave one call the answer to another, the calls differ in an ingredient that the key lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from pytest_regional._base.cache_keys import CacheKey, KeyTexts
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch import config
from pytest_regional._torch.autograd_cache import tensor_text
from pytest_regional._torch.distributed import groups_named_in
from pytest_regional._torch.fx_graphs import REGION_AFTER, attribute, clone_graph, is_graph_module
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness.observe import annotated

#: More different ones are not listed.
_MOST = 3


def ingredients_of(gm: Any) -> KeyTexts:
    """Return what the code of one of Dynamo's graphs depends on, as it is now, and all settings."""
    settings = {
        f"{module}.{name}": _plain(value)
        for module in (config.INDUCTOR, config.FUNCTORCH, config.DYNAMO)
        for name, value in config.config_values(module).items()
    }
    return graph_ingredients(gm) | settings


def graph_ingredients(gm: Any, *, annotations: bool = True) -> dict[str, str]:
    """Return what the code of one of Dynamo's graphs depends on, as it is now.

    Of settings, those that PyTorch itself keeps in its keys; of process groups, those that the graph names.
    """
    uuids = [getattr(one, "uuid", None) for one in config.pre_grad_custom_passes()]
    modules = {"inductor": config.INDUCTOR, "functorch": config.FUNCTORCH}
    settings = {
        f"{modules[which]}.{name}": _plain(value)
        for which, values in config.portable_settings().items()
        for name, value in values.items()
    }
    return {
        **dict(_graph(gm)),
        **dict(_annotations(gm) if annotations else ()),
        **{f"input {index}": text for index, text in enumerate(inputs_of(gm))},
        "the pre-grad passes": _plain([uuid() if callable(uuid) else None for uuid in uuids]),
        **dict(modes()),
        "the number of threads": str(torch.get_num_threads()),
        **settings,
        **{f"the process group {name!r}": said for name, said in groups_named_in(gm).items()},
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
        yield (
            f"the annotation of region {at}",
            f"id: {name}\n"
            f"ops: {', '.join(f'%{number}' for number, _ in numbered)}\n"
            f"configs: {_each(annotated.configs_of(node) for _, node in numbered)}\n"
            f"after: {_each(annotated.regions_before(node) for _, node in numbered)}\n"
            f"form: {_each(_form(node) for _, node in numbered)}",
        )


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


def modes() -> Iterator[tuple[str, str]]:
    """Yield the modes of PyTorch that code depends on, by name, as they are now."""
    for device in ("cpu", "cuda"):
        enabled = torch.is_autocast_enabled(device)
        yield f"autocast of {device}", str(torch.get_autocast_dtype(device)) if enabled else "off"
    yield "the default dtype", str(torch.get_default_dtype())
    yield "whether gradients are recorded", str(torch.is_grad_enabled())
    yield "deterministic algorithms", str(torch.are_deterministic_algorithms_enabled())
    yield "the precision of products", torch.get_float32_matmul_precision()


def _plain(value: Any) -> str:
    """Return a setting as text; of an object, such as a pass, its class, as its text may hold an address."""
    return json.dumps(value, default=lambda one: type(one).__qualname__, sort_keys=True, skipkeys=True)


def different(calls: Sequence[KeyTexts]) -> str:
    """Return in a sentence in what calls of a backend differ; empty where they do not, or in too much."""
    names = dict.fromkeys(name for call in calls for name in call)
    values = {name: list(dict.fromkeys(call.get(name, "") for call in calls)) for name in names}
    differ = {name: several for name, several in values.items() if len(several) > 1}
    if not 0 < len(differ) <= _MOST:
        return ""
    said = []
    for name, several in differ.items():
        is_short = sum(map(len, several)) <= 60 and not any("\n" in value for value in several)
        said.append(f"{name} ({' then '.join(several)})" if is_short else name)
    return f"the calls differ in {', '.join(said)}"


@dataclass(frozen=True)
class ProgramKeys:
    """The keys of a program."""

    program: str  # what it is called
    backend: str  # name of the backend
    graphs: tuple[CacheKey, ...]  # their keys, in the order in which Dynamo captured them


@dataclass(frozen=True)
class SavedKeys(ProgramKeys):
    """The keys of a program as a file holds them."""

    version: Literal[2] = 2


def keys_of(
    spec: BackendSpec,
    program: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool | None = None,
) -> ProgramKeys:
    """Return the keys of ``fn``, which runs once, eagerly.

    Raises:
        RegionalValueError: the specification of the backend has no ``cache_key``, or nothing of it would be compiled.
    """
    ask = spec.cache_key
    if ask is None:
        raise RegionalValueError(
            f"backend {spec.name!r} does not say with which key its cache is looked up: its BackendSpec has no "
            f"cache_key. The backends reference, torch and inductor have one."
        )
    graphs: list[CacheKey] = []

    def backend(gm: Any, example_inputs: Sequence[Any]) -> Any:
        ingredients = graph_ingredients(gm, annotations=bool(spec.supports("regions")))
        # Not the graph itself: what asks for its key may change it, and a copy has another key.
        eager = clone_graph(gm).forward
        graphs.append(replace(ask(gm, example_inputs), ingredients=ingredients))
        return eager

    torch.compile(fn, backend=backend, dynamic=dynamic)(*args, **kwargs)
    if not graphs:
        raise RegionalValueError(f"nothing of {program} is compiled: Dynamo hands no graph of it to a backend")
    return ProgramKeys(program, spec.name, tuple(graphs))
