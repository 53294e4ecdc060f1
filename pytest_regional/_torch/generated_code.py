"""What Inductor knows when it writes a kernel launch: which nodes of the graph are behind it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import private_module, symbol

# Both code generators import the function by name, the rest of Inductor looks it up in its module at each call.
_HOLDERS = ("torch._inductor.debug", "torch._inductor.codegen.cpp", "torch._inductor.codegen.triton")
_FUNCTION = "set_kernel_post_grad_provenance_tracing"


@dataclass(frozen=True)
class RawLaunch:
    """One launch or extern call as Inductor wrote it.

    Attributes:
        kernel: its name in the wrapper.
        is_extern: whether Inductor generated no code for it.
        buffers: for each buffer it makes, the graph nodes behind it; of an extern call one entry without a name.
        node: the graph node that an extern call stands for, where Inductor knows.
    """

    kernel: str
    is_extern: bool
    buffers: tuple[tuple[str, tuple[Any, ...]], ...]
    node: Any = None


@contextlib.contextmanager
def recording_launches() -> Iterator[list[RawLaunch]]:
    """Record the launches that Inductor writes while the context lasts.

    Inductor tells every launch to ``torch._inductor.debug.set_kernel_post_grad_provenance_tracing``, which drops it
    unless ``config.trace.provenance_tracking_level`` is set. Listening there, rather than setting the level, leaves the
    generated code and its cache keys as they are (2.11, 2.13, 2.15).
    """
    launches: list[RawLaunch] = []
    # All of them first: a module imported while another is wrapped would take the wrapper for the original.
    originals = {holder: symbol(holder, _FUNCTION) for holder in _HOLDERS}
    with contextlib.ExitStack() as stack:
        for holder, original in originals.items():
            stack.enter_context(_wrapped(holder, original, launches))
        yield launches


@contextlib.contextmanager
def _wrapped(holder: str, original: Callable[..., Any], launches: list[RawLaunch]) -> Iterator[None]:
    module = private_module(holder)
    setattr(module, _FUNCTION, _listener(original, launches))
    try:
        yield
    finally:
        setattr(module, _FUNCTION, original)


def _listener(original: Callable[..., Any], launches: list[RawLaunch]) -> Callable[..., Any]:
    # A code generation inside another tells the inner listener alone.
    inductors = getattr(original, "__wrapped__", original)

    @functools.wraps(inductors)
    def listen(node_schedule: Any, kernel_name: str, is_extern: bool = False) -> Any:
        launches.append((_extern if is_extern else _fused)(kernel_name, node_schedule))
        return inductors(node_schedule, kernel_name, is_extern)

    return listen


def _extern(name: str, kernel: Any) -> RawLaunch:
    return RawLaunch(name, True, (("", _nodes(kernel.origins)),), kernel.origin_node)


def _fused(name: str, schedule: Any) -> RawLaunch:
    """Read the schedule of a fused kernel; markers between its nodes are classes and have no nodes."""
    buffers = []
    outer = _outer_graphs()
    for scheduled in schedule:
        for inner in scheduled.get_nodes() if hasattr(scheduled, "get_nodes") else ():
            if inner.node is not None:
                nodes = tuple(node for node in _nodes(inner.node.origins) if node.graph not in outer)
                buffers += [(buffer, nodes) for buffer in inner.get_buffer_names()]
    return RawLaunch(name, False, tuple(buffers))


def _nodes(origins: Any) -> tuple[Any, ...]:
    """Return the graph nodes among ``origins``, which Inductor declares as nodes of either kind."""
    return tuple(origin for origin in origins if isinstance(origin, symbol("torch.fx", "Node")))


def _outer_graphs() -> list[Any]:
    """Return the graphs around the subgraph being lowered: their nodes call it and compute nothing in it.

    ``torch._inductor.virtualized.V.graph`` is the ``GraphLowering`` at work; a ``SubgraphLowering`` has a ``parent``
    (2.11, 2.13, 2.15).
    """
    lowering = symbol("torch._inductor.virtualized", "V").graph
    graphs = []
    while lowering := getattr(lowering, "parent", None):
        graphs.append(lowering.graph)
    return graphs
