"""What decides whether two regions share their code, in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional._cache_keys import RegionKey
from pytest_regional._torch.config import backward_lowered_at_once
from pytest_regional._torch.fx_graphs import called_attributes, clone_graph, use_boxed_codegen
from pytest_regional._torch.operators import is_op_overload
from pytest_regional.reference.compile_regions import request_for
from pytest_regional.reference.dynamo_backend import through_aot_autograd
from pytest_regional.reference.extract import ExtractedRegion, bodies_inside, extract_partitions
from pytest_regional.reference.fingerprint import Description, Identity, Reference
from pytest_regional.reference.options import BackendOptions
from pytest_regional.reference.ordering.whole_regions import plan_in_order
from pytest_regional.reference.pre_grad import run_pre_grad_passes


def region_keys(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], chosen: BackendOptions) -> Iterator[RegionKey]:
    """Yield the keys of the regions in the graphs that AOTAutograd makes of Dynamo's graph ``gm``, which is changed."""
    seen: list[RegionKey] = []

    def noting(kind: str) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Any]:
        def note(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
            seen.extend(_keys_in(clone_graph(graph), f"{kind}.", set()))
            use_boxed_codegen(graph)
            return graph

        return note

    compilers = {f"{short}_compiler": noting(kind) for short, kind in _KINDS.items()}
    run_pre_grad_passes(gm)
    with backward_lowered_at_once():
        through_aot_autograd(gm, example_inputs, chosen.partitioner, **compilers)
    yield from seen


_KINDS = {"fw": "forward", "bw": "backward", "inference": "inference"}


def _keys_in(gm: torch.fx.GraphModule, path: str, done: set[int]) -> Iterator[RegionKey]:
    """Yield the keys of the regions of ``gm``, which is changed, and of the bodies outside of its regions."""
    done.add(id(gm))
    plan = plan_in_order(gm.graph)
    regions = extract_partitions(gm, plan.partitions, plan.edges)
    for region in regions:
        yield _key_of(region, path)
    carried = bodies_inside(regions)
    for name, body in called_attributes(gm).items():
        if id(body) not in done | carried:
            yield from _keys_in(body, f"{path}{name}.", done)


def _key_of(region: ExtractedRegion, path: str) -> RegionKey:
    request = request_for(region)
    description = Description()
    lines, results, order = description.add_region(request)
    names = [*map(_name_of, enumerate(lines))]
    ingredients = {
        "the configs": _said(request.key.configs),
        **{name: _line(line) for name, line in zip(names, lines, strict=True)},
        "the results": _said(results),
        "the order of its ops": _said(order),
    }
    key = hashlib.sha256(json.dumps(ingredients).encode()).hexdigest()
    return RegionKey(path + region.name, request.key.label, key, ingredients, description.symbolic)


def _name_of(numbered: tuple[int, Any]) -> str:
    """Return what the line ``%number`` of a region is called."""
    number, line = numbered
    return f"{line[0] if line[0] in ('input', 'attribute') else 'op'} %{number}"


def _line(line: Any) -> str:
    """Return a line of a region: an op as it is called, then what its value looks like."""
    if len(line) != 6 or not isinstance(line[0], str):
        return _said(line[1:])
    _, target, args, kwargs, value, others = line
    notes = f", annotated {_said(others)}" if _said(others) != "{}" else ""
    call = ", ".join(part for part in (_said(args)[1:-1], _said(kwargs)[1:-1]) if part)
    return f"{_said(target)}({call}) -> {_said(value)}{notes}"


def _said(value: Any) -> str:
    """Return the text of a part of a fingerprint: without the types that keep 1, 1.0 and True apart where it shows."""
    if isinstance(value, Reference):
        return f"%{int(value)}"
    if isinstance(value, Identity):
        return f"{type(value.value).__name__} at {id(value.value):#x} of this process"
    if isinstance(value, tuple):
        return _said_tuple(value)
    if isinstance(value, type):
        return value.__name__
    if is_op_overload(value) or isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    return str(getattr(value, "__name__", None) or repr(value))


def _said_tuple(value: tuple[Any, ...]) -> str:
    kind = value[0] if len(value) == 2 and isinstance(value[0], str) else ""
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](value[1])
    if kind in _FROZEN:
        return _said(value[1])
    if value and isinstance(value[0], type) and issubclass(value[0], torch.Tensor):
        return _said_tensor(*value[1:])
    return f"({_items(value)})" if len(value) != 1 else _said(value[0])


def _items(value: Any) -> str:
    return ", ".join(map(_said, value))


def _entries(value: Any) -> str:
    return ", ".join(f"{name}: {_said(one)}" for name, one in value)


_CONTAINERS: Mapping[str, Callable[[Any], str]] = {
    "tuple": lambda items: f"({_items(items)})",
    "list": lambda items: f"[{_items(items)}]",
    "dict": lambda items: f"{{{_entries(items)}}}",
    "set": lambda items: f"{{{_items(sorted(items, key=_said))}}}",
    "frozenset": lambda items: f"{{{_items(sorted(items, key=_said))}}}",
}
_FROZEN = frozenset(("int", "float", "bool", "str", "NoneType", "complex", "Reference", "dtype", "device", "layout"))


def _said_tensor(
    dtype: Any, device: str, layout: str, requires_grad: bool, storage: Any, sizes: Any, *strided: Any
) -> str:
    words = [_said(dtype), f"[{', '.join(map(str, sizes))}]"]
    if strided:
        words.append(f"strides [{', '.join(map(str, strided[0]))}]")
        words += [f"offset {strided[1]}"] if strided[1] else []
    words += [layout] if layout != "torch.strided" else []
    words += [f"on {device}"]
    words += ["requires grad"] if requires_grad else []
    words += [f"in storage {storage}"] if storage is not None else []
    return " ".join(words)
