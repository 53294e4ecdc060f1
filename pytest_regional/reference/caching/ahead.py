"""The key of a program in the outer cache, computed without compiling or running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.autograd_cache import UncacheableGraphError
from pytest_regional.reference.caching.outer import KeyFound
from pytest_regional.reference.dynamo_backend import compile_dynamo_graph
from pytest_regional.reference.options import BackendOptions


def cache_key(
    fn: Callable[..., Any],
    *inputs: Any,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return the key under which ``torch.compile(fn, backend="regional")`` looks the result up, in hexadecimal.

    Nothing is compiled, nothing of ``fn`` runs, and nothing is stored. Pre-grad passes that are ``early`` run, on a
    copy of the graph that nobody uses: what they leave is part of the key.

    Args:
        fn: a function or module that Dynamo captures as one graph.
        inputs: its arguments.
        dynamic: as ``torch.compile``'s.
        options: as ``torch.compile``'s with ``backend="regional"``.

    Raises:
        UncacheableGraphError: the outer cache is bypassed for this program; the message says why.
    """
    chosen = BackendOptions.merged(options)
    found: list[KeyFound] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        try:
            return compile_dynamo_graph(gm, example_inputs, chosen, key_only=True)
        except KeyFound as key:
            found.append(key)
            raise

    try:
        torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)(*inputs)
    except Exception:
        # Dynamo wraps whatever ends a compile, KeyFound included.
        if not found:
            raise
    if not found:
        raise UncacheableGraphError("nothing in it is compiled: Dynamo found no graph to hand to the backend")
    if found[0].key is None:
        raise UncacheableGraphError(found[0].reason)
    return found[0].key
