"""Kernel launches as Inductor writes them: the graph nodes behind each."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from pytest_regional._torch import symbol
from pytest_regional._torch.inductor import virtualized
from pytest_regional._torch.patching import Maker, PatchPoint, patched

# Both code generators import the function by name; the rest of Inductor looks it up in its module at each call.
_TOLD = {
    holder: PatchPoint(holder, "set_kernel_post_grad_provenance_tracing")
    for holder in ("torch._inductor.debug", "torch._inductor.codegen.cpp", "torch._inductor.codegen.triton")
}
_LOOPS = {"loops": PatchPoint("torch._inductor.codegen.cpp:KernelGroup", "finalize_kernel")}
_RNG_OPS = {"replace": PatchPoint("torch._inductor.fx_passes.joint_graph", "replace_random_passes")}


@dataclass(frozen=True)
class RawLaunch:
    """One launch or extern call as Inductor wrote it.

    Attributes:
        kernel: its name in the wrapper.
        is_extern: whether Inductor generated no code for it.
        buffers: for each buffer it makes, the graph nodes behind it; an extern call has one entry without a name.
        node: the graph node of an extern call, if Inductor knows it.
        loops: for each buffer, the number of the loop that makes it; a C++ function may contain several.
        parts: for each buffer, the number of the scheduled part that makes it; a combined kernel has several, and each
            is given the parts of all.
    """

    kernel: str
    is_extern: bool
    buffers: tuple[tuple[str, tuple[Any, ...]], ...]
    node: Any = None
    loops: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()


_innermost: ContextVar[tuple[object, list[RawLaunch]] | None] = ContextVar("innermost recording", default=None)


@contextlib.contextmanager
def recording_launches(graph: object = None) -> Iterator[list[RawLaunch]]:
    """Record the launches that Inductor writes while the context lasts.

    Args:
        graph: what Inductor generates code for. Two observers of one code generation are given the same list; of two
            nested ones the inner list has the launches of the inner graph alone.

    Inductor reports every launch to ``torch._inductor.debug.set_kernel_post_grad_provenance_tracing``, which drops it
    unless ``config.trace.provenance_tracking_level`` is set. Wrapping the function, instead of setting the level, does
    not change the generated code and its cache keys (2.11, 2.13, 2.15).
    """
    innermost = _innermost.get()
    if graph is not None and innermost is not None and innermost[0] is graph:
        yield innermost[1]
        return
    launches: list[RawLaunch] = []
    loops: dict[Any, int] = {}
    makers: dict[str, Maker] = {name: lambda original: _listener(original, launches, loops) for name in _TOLD}
    makers["loops"] = lambda original: _loop_listener(original, loops)
    token = _innermost.set((graph, launches))
    try:
        with patched({**_TOLD, **_LOOPS}, makers):
            yield launches
    finally:
        _innermost.reset(token)


def _listener(original: Callable[..., Any], launches: list[RawLaunch], loops: Mapping[Any, int]) -> Callable[..., Any]:
    # With nested code generations only the inner listener is called.
    inductors = getattr(original, "__wrapped__", original)

    @functools.wraps(inductors)
    def listen(node_schedule: Any, kernel_name: str, is_extern: bool = False) -> Any:
        launches.append(_extern(kernel_name, node_schedule) if is_extern else _fused(kernel_name, node_schedule, loops))
        return inductors(node_schedule, kernel_name, is_extern)

    return listen


def _loop_listener(original: Callable[..., Any], loops: dict[Any, int]) -> Callable[..., Any]:
    """Note which scheduler nodes share a loop: each call of ``KernelGroup.finalize_kernel`` ends one (2.11 to 2.15)."""
    inductors = getattr(original, "__wrapped__", original)
    numbers = itertools.count()

    @functools.wraps(inductors)
    def listen(group: Any, kernel: Any, nodes: Any) -> Any:
        loops.update(dict.fromkeys(nodes, next(numbers)))
        return inductors(group, kernel, nodes)

    return listen


def _extern(name: str, kernel: Any) -> RawLaunch:
    return RawLaunch(name, True, (("", _nodes(kernel.origins)),), kernel.origin_node)


def _fused(name: str, schedule: Any, loops: Mapping[Any, int]) -> RawLaunch:
    """Read the schedule of a fused kernel; markers between its nodes are classes without nodes."""
    buffers: list[tuple[str, tuple[Any, ...]]] = []
    numbers: list[int] = []
    parts: list[int] = []
    outer = _outer_graphs()
    for part, scheduled in enumerate(schedule):
        for inner in scheduled.get_nodes() if hasattr(scheduled, "get_nodes") else ():
            if inner.node is not None:
                nodes = tuple(node for node in _nodes(inner.node.origins) if node.graph not in outer)
                made = [(buffer, nodes) for buffer in inner.get_buffer_names()]
                buffers += made
                numbers += [loops.get(inner, 0)] * len(made)
                parts += [part] * len(made)
    return RawLaunch(name, False, tuple(buffers), loops=tuple(numbers), parts=tuple(parts))


def _nodes(origins: Any) -> tuple[Any, ...]:
    """Return the graph nodes among ``origins``, which Inductor declares as nodes of either kind."""
    return tuple(origin for origin in origins if isinstance(origin, symbol("torch.fx", "Node")))


def _outer_graphs() -> list[Any]:
    """Return the graphs around the subgraph being lowered: their nodes call it and compute nothing in it.

    ``torch._inductor.virtualized.V.graph`` is the current ``GraphLowering``; a ``SubgraphLowering`` has a ``parent``
    (2.11, 2.13, 2.15).
    """
    lowering = virtualized().graph
    graphs = []
    while lowering := getattr(lowering, "parent", None):
        graphs.append(lowering.graph)
    return graphs
