"""What happens when a region does not compile: an error that names it, or eager execution with a warning."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import torch.fx

from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.region_compile import count_fallback, restart_exceptions
from pytest_regional.reference.calling import Compiled
from pytest_regional.reference.compile_regions import RegionCompiler, RegionInputError, RegionRequest
from pytest_regional.reference.naming import op_names, shortened, source_line

OnRegionError = Literal["raise", "eager"]


class RegionCompileError(RuntimeError):
    """Inductor failed on a region; the cause is chained."""


class RegionFallbackWarning(UserWarning):
    """A region runs eagerly because it did not compile."""


@dataclass(frozen=True)
class GuardedCompiler:
    """A region compiler that applies a failure policy to another."""

    compiler: RegionCompiler
    on_region_error: OnRegionError = "raise"

    def __post_init__(self) -> None:
        if self.on_region_error not in ("raise", "eager"):
            raise ValueError(f"on_region_error={self.on_region_error!r} is unknown: use 'raise' or 'eager'")

    def __call__(self, request: RegionRequest) -> Compiled:
        """Compile ``request``.

        Raises:
            RegionCompileError: naming region and ops, when that fails and the policy is ``raise``.
        """
        spare = _copy(request.module) if self.on_region_error == "eager" else None
        try:
            return self.compiler(request)
        except Exception as error:
            if isinstance(error, (*restart_exceptions(), MissingTorchSymbolError, RegionInputError)):
                raise
            failure = RegionCompileError(_describe(request, error))
            if spare is None:
                raise failure from error
            warnings.warn(f"{failure}; it runs eagerly", RegionFallbackWarning, stacklevel=2)
            count_fallback()
            return spare


def _copy(module: torch.fx.GraphModule) -> Compiled:
    """Copy the graph, which a compiler may consume; attributes are shared."""
    graph = torch.fx.Graph()
    output = graph.graph_copy(module.graph, {})
    graph.output(output)
    copied: Compiled = torch.fx.GraphModule(module, graph)
    return copied


def _describe(request: RegionRequest, error: Exception) -> str:
    nodes = request.region.partition.nodes
    line = source_line(nodes)
    where = f", from {line}" if line else ""
    reason = str(error).strip().splitlines() or [""]
    return (
        f"region {request.key.label!r} ({request.name}: {shortened(op_names(nodes))}{where}) did not compile: "
        f"{type(error).__name__}: {reason[0]}"
    )
