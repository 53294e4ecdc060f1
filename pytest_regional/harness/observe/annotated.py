"""Read region annotations off a graph as an onlooker: lenient where the reference backend is strict."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from pytest_regional._torch import fx_graphs, inductor
from pytest_regional._torch.fx_graphs import REGION_AFTER, misspelt_marks
from pytest_regional.harness.record import DEFAULT_REGION

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

ANNOTATION = "compile_with_inductor"
RegionId = tuple[str, str]
"""Region name and a printable form of its configs: enough to tell two regions of one graph apart."""


def nodes_of(gm: GraphModule) -> Iterator[Node]:
    """Yield the nodes of ``gm`` and of every graph module below it, each graph module once."""
    from torch.fx import GraphModule

    seen: set[int] = set()
    for module in gm.modules():
        if isinstance(module, GraphModule) and id(module) not in seen:
            seen.add(id(module))
            yield from module.graph.nodes


def annotation_of(node: Node) -> Any:
    """Return the node's ``compile_with_inductor`` value, or ``None`` for a node outside all regions."""
    custom = node.meta.get("custom")
    if node.op in ("placeholder", "output") or not isinstance(custom, dict):
        return None
    value = custom.get(ANNOTATION)
    # A bare annotate({"compile_with_inductor": None}) still marks the node.
    return DEFAULT_REGION if value is None and ANNOTATION in custom else value


def region_of(node: Node) -> RegionId | None:
    """Return the region that ``node`` belongs to, or ``None``."""
    value = annotation_of(node)
    if value is None:
        return None
    if not isinstance(value, dict):
        return DEFAULT_REGION, "{}"
    configs = configs_of(node)
    name = str(value["inductor_region"]) if "inductor_region" in value else DEFAULT_REGION
    return name, repr(sorted(configs.items(), key=lambda item: str(item[0])))


def configs_of(node: Node) -> dict[str, Any]:
    """Return the Inductor configuration that the node's annotation asks for."""
    value = annotation_of(node)
    configs = value.get("inductor_configs") if isinstance(value, dict) else None
    return dict(configs) if isinstance(configs, dict) else {}


def regions_before(node: Node) -> list[Any]:
    """Return the ids of regions that the node's annotation wants to have run before."""
    value = annotation_of(node)
    before = value.get(REGION_AFTER) if isinstance(value, dict) else None
    return list(before) if isinstance(before, (list, tuple)) else []


def other_annotations_of(node: Node) -> dict[Any, Any]:
    """Return what the node is annotated with for others than regional compilation."""
    custom = node.meta.get("custom")
    if node.op in ("placeholder", "output") or not isinstance(custom, dict):
        return {}
    return {key: value for key, value in custom.items() if key != ANNOTATION}


def misspelt_in(gm: GraphModule) -> list[str]:
    """Return the keys of annotations in ``gm`` that no backend reads and that are nearly that of regions."""
    return list(dict.fromkeys(key for node in nodes_of(gm) for key in misspelt_marks(node)))


def operator_of(node: Node) -> str | None:
    """Return the node's operator such as ``aten.mul.Tensor``, or ``None`` for plumbing (getitem, get_attr, ...)."""
    if node.op == "call_module":
        return str(node.target)
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op != "call_function" or getattr(node.target, "__module__", "") == "_operator":
        return None if node.op != "call_function" or _is_getitem(node) else str(getattr(node.target, "__name__", ""))
    text = str(node.target)
    return text if " " not in text else str(getattr(node.target, "__name__", text))


def _is_getitem(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def regions_in(gm: GraphModule) -> dict[RegionId, list[Node]]:
    """Return the nodes of each region of ``gm`` and its sub-graphs, in order of first appearance."""
    found: dict[RegionId, list[Node]] = {}
    for node in nodes_of(gm):
        region = region_of(node)
        if region is not None:
            found.setdefault(region, []).append(node)
    return found


def compiled_calls_in(result: Any) -> list[RegionId]:
    """Return the regions of the compiled calls in what a backend's compiler returned, as far as it shows them.

    A backend that shares one compile between equal partitions hands only the first to Inductor. The calls of the others
    can still be seen when the result is a graph module (or PyTorch's ``RegionalOutputCode`` around one) whose calls of
    compiled functions keep their region's annotation.
    """
    from torch.fx import GraphModule

    gm = fx_graphs.graph_module_in(result)
    if not isinstance(gm, GraphModule):
        return []
    calls = (node for node in nodes_of(gm) if node.op == "call_function" and isinstance(node.target, FunctionType))
    return [region for region in map(region_of, calls) if region is not None]


def holds_compiled_region(result: Any) -> bool:
    """Return whether what a backend's compiler returned calls a region that Inductor compiled, now or earlier."""
    from torch.fx import GraphModule

    gm = fx_graphs.graph_module_in(result)
    return isinstance(gm, GraphModule) and any(inductor.is_region_artifact(node.target) for node in nodes_of(gm))


def strip_region(gm: GraphModule, region_name: str) -> int:
    """Make every node of the region named ``region_name`` unannotated; return how many nodes changed.

    The annotation dictionary is replaced, not edited: nodes share it.
    """
    changed = 0
    for node in nodes_of(gm):
        region = region_of(node)
        if region is not None and region[0] == region_name:
            node.meta["custom"] = {k: v for k, v in node.meta["custom"].items() if k != ANNOTATION}
            changed += 1
    return changed
