"""The backend: what ``torch.compile`` calls with a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx.traceback
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.fx.passes.regional_inductor import regional_inductor

from .clock import timed


def _compile_graph(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile the regions of one graph of AOTAutograd's with PyTorch's own compiler, a clock around the whole."""
    nodes = len(gm.graph.nodes)
    compiled = regional_inductor(gm, example_inputs)
    return timed(compiled if getattr(compiled, "_boxed_call", False) else make_boxed_func(compiled), nodes)


def clocked(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile Dynamo's graph: ``torch.compile(model, backend="clocked")``."""
    backend = aot_autograd(fw_compiler=_compile_graph, bw_compiler=_compile_graph)
    # Annotations travel in the metadata of nodes.
    with torch.fx.traceback.preserve_node_meta():
        return backend(gm, example_inputs)
