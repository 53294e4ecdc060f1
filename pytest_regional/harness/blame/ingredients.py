"""What compiled code depends on, and so what the key of a cache has to hold: the ingredients of the key.

Where a cache is to blame, the calls of the backend that had the same answer differ in an ingredient that the key lacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_regional._torch.config import DYNAMO, FUNCTORCH, INDUCTOR, config_values
from pytest_regional.harness.observe import annotated

Ingredients = Mapping[str, str]
"""By name, what one call of a backend was made with."""

#: More different ones are not listed.
_MOST = 3


def ingredients_of(gm: Any) -> Ingredients:
    """Return what the code of one of Dynamo's graphs depends on, as it is now."""
    return dict(_ingredients(gm))


def _ingredients(gm: Any) -> Iterator[tuple[str, str]]:
    yield "the program", gm.code
    yield "the annotations", str([*map(annotated.annotation_of, annotated.nodes_of(gm))])
    yield "the inputs", str(inputs_of(gm))
    yield from modes()
    yield "the number of threads", str(torch.get_num_threads())
    for module in (INDUCTOR, FUNCTORCH, DYNAMO):
        for name, value in config_values(module).items():
            yield f"{module}.{name}", _plain(value)


def inputs_of(gm: Any) -> list[str]:
    """Return dtype, shape, strides, device and ``requires_grad`` of each input of one of Dynamo's graphs."""
    return [_input(node) for node in gm.graph.find_nodes(op="placeholder")]


def modes() -> Iterator[tuple[str, str]]:
    """Yield the modes of PyTorch that code depends on, by name, as they are now."""
    for device in ("cpu", "cuda"):
        enabled = torch.is_autocast_enabled(device)
        yield f"autocast of {device}", str(torch.get_autocast_dtype(device)) if enabled else "off"
    yield "the default dtype", str(torch.get_default_dtype())
    yield "whether gradients are recorded", str(torch.is_grad_enabled())
    yield "deterministic algorithms", str(torch.are_deterministic_algorithms_enabled())
    yield "the precision of products", torch.get_float32_matmul_precision()


def _input(node: Any) -> str:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return str(value)
    strides = list(value.stride()) if value.layout == torch.strided else value.layout
    return f"{value.dtype} {list(value.shape)} {strides} {value.device} {value.requires_grad}"


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
