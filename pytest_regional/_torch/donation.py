"""Donated buffers: values saved for a backward that its compiled code may overwrite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytest_regional._torch import private_module, symbol


def donate_nothing() -> None:
    """Tell AOTAutograd that the graph which is being compiled overwrites no saved value, so it may run again.

    ``ViewAndMutationMeta.bw_donated_idxs`` of the ambient tracing context (2.11 to 2.15). AOTAutograd fills it when it
    splits a graph, before the forward is compiled. While it is not an empty list (None counts too), a backward that
    keeps its graph is an error, whatever the compiler made of the permission. A backward that compiles when it first
    runs, and then keeps its graph, is handled so by AOTAutograd itself. With tensor subclasses there is metadata of the
    graph within and without, which share the list: so it is emptied, and not replaced.
    """
    metadata = _metadata()
    if metadata is None:
        return
    if metadata.bw_donated_idxs is None:
        metadata.bw_donated_idxs = []
    metadata.bw_donated_idxs.clear()


@contextlib.contextmanager
def donating(may_be_donated: Callable[[int], bool]) -> Iterator[Sequence[int]]:
    """Donate fewer inputs of the backward: only those, by index, that may be. Yields the indices.

    ``ViewAndMutationMeta.bw_donated_idxs`` says which inputs Inductor may write its results into (2.11 to 2.15). With
    tokens of effects in front of the forward's inputs, AOTAutograd numbers what it compares them with wrongly, so then
    nothing is donated.
    """
    metadata = _metadata()
    donated = getattr(metadata, "bw_donated_idxs", None)
    if metadata is None or donated is None:
        yield ()
        return
    chosen = [] if metadata.tokens else [index for index in donated if may_be_donated(index)]
    metadata.bw_donated_idxs = chosen
    try:
        yield chosen
    finally:
        metadata.bw_donated_idxs = donated


@contextlib.contextmanager
def without_donation() -> Iterator[None]:
    """Have AOTAutograd find nothing to donate.

    ``torch._functorch._aot_autograd.graph_compile.collect_bw_donated_buffer_idxs`` (2.11 to 2.15) finds it. Its setting
    ``donated_buffer=False`` would not do: the backward asks for the setting as well, when it runs.
    """
    module: Any = private_module("torch._functorch._aot_autograd.graph_compile")
    original = symbol(module.__name__, "collect_bw_donated_buffer_idxs")
    module.collect_bw_donated_buffer_idxs = lambda *graphs: []
    try:
        yield
    finally:
        module.collect_bw_donated_buffer_idxs = original


def backward_keeps_graph() -> bool:
    """Return whether the backward that is running may run again; outside of one it may.

    ``torch._C._autograd._get_current_graph_task_keep_graph`` (2.11 to 2.15), which AOTAutograd asks too.
    """
    return bool(symbol("torch._C._autograd", "_get_current_graph_task_keep_graph")())


def compiled_fx_graph() -> Any:
    """``torch._inductor.output_code.CompiledFxGraph``: what Inductor makes of a whole graph (2.11 to 2.15)."""
    return symbol("torch._inductor.output_code", "CompiledFxGraph")


def _metadata() -> Any:
    """Return what AOTAutograd knows of the graph that it compiles (``TracingContext.fw_metadata``, 2.11 to 2.15)."""
    return getattr(symbol("torch._guards", "TracingContext").try_get(), "fw_metadata", None)
