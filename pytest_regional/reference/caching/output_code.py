"""What the backend hands to AOTAutograd: a graph with compiled regions that a cache entry can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx

from pytest_regional._torch.autograd_cache import output_code
from pytest_regional.reference.caching.program import dump_program, load_program


class CompiledGraph(output_code()):  # type: ignore[misc]
    """A graph that takes one list of inputs; as bytes between ``prepare_for_serialization`` and ``post_compile``."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        super().__init__()
        self._graph_module: torch.fx.GraphModule | None = graph_module
        self._program = b""
        self._boxed_call = True

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run the graph, which empties ``inputs``."""
        return self._graph_module(inputs)  # type: ignore[misc]

    def prepare_for_serialization(self) -> None:
        """Turn the graph into bytes (on the copy of this object that is stored).

        Raises:
            UnsavableGraphError: it holds something that cannot be stored.
        """
        if self._graph_module is not None:
            self._program = dump_program(self._graph_module)
            self._graph_module = None

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Turn the bytes into a graph, if this object was stored."""
        if self._graph_module is None:
            self._graph_module = load_program(self._program)
            self._program = b""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Take no bundle: regions bring their own kernels."""
