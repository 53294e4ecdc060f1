"""Region boundaries: what enters and leaves a compiled region is what the graph was traced with.

The outer graph was traced with fake values: their dtypes, shapes, strides and storages are what eager operators around
a region, and the region's own code, rely on. Here a compiled graph is run node by node, and every value that enters a
region, or that anybody else reads and a region made, is held against the fake value that stands for it.

Nodes that the backend added carry no fake value; what they read is not checked, so a backend may restore strides behind
a region. What they make of it, which stands for the region's value from there on, is checked in its place. Memory
shared by values whose fake values share none is a fault, unless the body of a higher-order operator hides it, or the
graph makes both of one value by views. Memory no longer shared is one only between a region's input and its output,
which the graph says is a view of it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from pytest_regional._torch import fx_graphs, inductor
from pytest_regional._torch.tracing import storage_key
from pytest_regional.fuzz.modes import MODES
from pytest_regional.fuzz.oracles.oracle import NoClaim, Oracle
from pytest_regional.harness.observe import annotated

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.fx import GraphModule, Node

    from pytest_regional.fuzz.oracles.example_run import ExampleRun


class BoundaryChecker:
    """Checks the values of one compiled graph, whenever it runs.

    Args:
        kind: of the graph, for messages.
        found: where messages go, each once.
        may_share: returns for a region's artifact, the position of a result, and that of another, or None for an input,
            whether they may share memory although their fake values do not.
        interpreted: whether regions run as eager operators.
    """

    def __init__(
        self, kind: str, found: list[str], may_share: Callable[[Any, int, int | None], bool], *, interpreted: bool
    ) -> None:
        self._kind, self._found, self._may_share, self._interpreted = kind, found, may_share, interpreted

    def watch(self, gm: GraphModule) -> None:
        """Have calls of ``gm`` checked."""
        boxed = fx_graphs.takes_one_list(gm)

        def forward(original: Any, inputs: tuple[Any, ...]) -> Any:
            given = list(inputs[0]) if boxed else list(inputs)
            if boxed:
                inputs[0].clear()
            return fx_graphs.run_checked(gm, given, self._check)

        fx_graphs.replace_forward(gm, forward)

    def _check(self, node: Node, given: tuple[Any, ...], result: Any) -> None:
        if inductor.artifact_behind(node.target) is not None:
            self._check_call(node, given, result)
        elif "val" in node.meta or node.op == "output":
            for argument, value in zip(node.all_input_nodes, given, strict=True):
                if _comes_from_region(argument):
                    self._compare(argument, value, "leaves", _made_by(argument))

    def _check_call(self, node: Node, given: tuple[Any, ...], result: Any) -> None:
        for argument, value in zip(node.all_input_nodes, given, strict=True):
            self._compare(argument, value, "enters", node)
        results = list(result) if isinstance(result, list | tuple) else [result]
        expected = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        leaving = {index: (user, results[index]) for index, user in expected.items() if index < len(results)}
        self._compare_memory(node, list(zip(node.all_input_nodes, given, strict=True)), leaving)

    def _compare(self, source: Node, value: Any, how: str, region: Node) -> None:
        wrong = difference(source.meta.get("val"), value, offset=how == "leaves" and not self._interpreted)
        if wrong:
            self._note(f"a value {how} {_region_name(region)} of the {self._kind} graph with {wrong}")

    def _compare_memory(
        self, region: Node, entering: list[tuple[Node, Any]], leaving: dict[int, tuple[Node, Any]]
    ) -> None:
        artifact = inductor.artifact_behind(region.target)
        output = f"an output of {_region_name(region)} of the {self._kind} graph"
        known: list[tuple[int | None, Node, Any]] = [(None, *one) for one in entering]
        for index, (node, value) in leaving.items():
            for other, of, held in known:
                said, is_so = _share(node.meta.get("val"), of.meta.get("val")), _share(value, held)
                if said is None or is_so is None or said == is_so:
                    continue
                what = "an input" if other is None else "another output"
                if is_so and not self._may_share(artifact, index, other):
                    self._note(f"{output} shares memory with {what}")
                elif not is_so and other is None and not _may_be_recomputed(node):
                    self._note(f"{output} is no view of {what} now")
            known.append((index, node, value))

    def _note(self, message: str) -> None:
        if message not in self._found:
            self._found.append(message)


def _may_be_recomputed(node: Node) -> bool:
    """Return whether ``node`` may be computed again, with the fake value of a twin, whose memory it does not share."""
    return node.meta.get("recompute") is not None


def _region_name(region: Node) -> str:
    found = annotated.region_of(region)
    return f"region {found[0]!r}" if found else "a region"


def _comes_from_region(node: Node) -> bool:
    return inductor.artifact_behind(_made_by(node).target) is not None


def _made_by(node: Node) -> Node:
    """Return what computed ``node``, through everything that only restores its strides."""
    while node.op == "call_function" and (node.target is operator.getitem or _restores(node)):
        node = node.all_input_nodes[0]
    return node


def _restores(node: Node) -> bool:
    """Return whether the backend added ``node`` behind a region: without a fake value, or with that of its input."""
    if inductor.artifact_behind(node.target) is not None or not node.all_input_nodes:
        return False
    value, source = node.meta.get("val"), node.all_input_nodes[0].meta.get("val")
    return value is None or source is None or value is source


def difference(expected: Any, value: Any, *, offset: bool = True) -> str:
    """Return in what ``value`` differs from the fake value that stands for it; empty where it does not.

    Args:
        expected: the fake value.
        value: the real one.
        offset: whether a storage offset counts that is aligned in the one only. Some eager operators, such as
            ``select_scatter``, keep their input's offset and their fake counterparts do not.
    """
    if not isinstance(expected, torch.Tensor) or not isinstance(value, torch.Tensor):
        return ""
    if expected.dtype != value.dtype:
        return f"dtype {value.dtype}, not {expected.dtype}"
    sizes = [(said, size) for said, size in zip(expected.shape, value.shape, strict=False) if type(said) is int]
    if expected.dim() != value.dim() or any(said != size for said, size in sizes):
        return f"shape {tuple(value.shape)}, not {tuple(expected.shape)}"
    if value.layout != torch.strided or expected.layout != torch.strided:
        return ""
    return _stride_difference(expected, value) or (_offset_difference(expected, value) if offset else "")


def _stride_difference(expected: torch.Tensor, value: torch.Tensor) -> str:
    strides = zip(value.shape, expected.stride(), value.stride(), strict=True)
    if value.numel() and any(size > 1 and type(said) is int and said != found for size, said, found in strides):
        return f"strides {value.stride()}, not {tuple(expected.stride())}"
    return ""


def _offset_difference(expected: torch.Tensor, value: torch.Tensor) -> str:
    said_offset, offset = expected.storage_offset(), value.storage_offset()
    if type(said_offset) is int and _is_aligned(said_offset, value) and not _is_aligned(offset, value):
        return f"storage offset {offset}, not {said_offset}"
    return ""


_ALIGNMENT = 16


def _is_aligned(offset: int, value: torch.Tensor) -> bool:
    return bool(offset * value.element_size() % _ALIGNMENT == 0)


def _share(one: Any, other: Any) -> bool | None:
    """Return whether two tensors share memory; None where that cannot be told."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return None
    if one.layout != torch.strided or other.layout != torch.strided or not one.numel() or not other.numel():
        return None
    return storage_key(one) == storage_key(other)


def check_region_boundary(example: ExampleRun) -> None:
    """Raise where a value crossed a boundary with another dtype, shape, layout or memory than the graph says."""
    graphs = example.cold.watched.graphs
    found = example.cold.watched.boundary_errors
    if all(" with strides" in message for message in found) and found and example.fake_disagreement:
        raise NoClaim(f"PyTorch's fake operators have other strides than eager: {example.fake_disagreement}")
    if found:
        kind = next(
            word for word in ("dtype", "shape", "strides", "storage offset", "memory", "view") if word in found[0]
        )
        stage = "backward" if "backward graph" in found[0] else "run"
        way = " that enters" if "enters" in found[0] else ""
        raise example.violation(
            "region_boundary", stage, "; ".join(found[:4]), origin=f"{kind} of a value{way} a region"
        )
    if not any(graph.shows and graph.calls for graph in graphs):
        raise NoClaim("no compiled graph shows the calls of its regions")


ORACLES = (
    Oracle(
        "region_boundary",
        "What crosses a region's boundary has the dtype, shape, strides and memory that the graph was traced with.",
        check_region_boundary,
        modes=MODES,
        requires=("regions",),
        place=20,
    ),
)
