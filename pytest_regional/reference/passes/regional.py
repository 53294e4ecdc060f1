"""``regional_inductor`` as the last pass of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from pytest_regional.reference.failure import OnRegionError
from pytest_regional.reference.passes.version import OWN_CODE
from pytest_regional.reference.pipeline.graph_pass import DEFAULT_GRAPHS, Pass
from pytest_regional.reference.regional_inductor import regional_inductor


@dataclass(frozen=True)
class RegionalInductor(Pass):
    """Compiles the annotated regions and leaves the rest: :func:`regional_inductor`, terminal.

    Attributes:
        share_identical: Whether partitions equal up to names are compiled once.
        on_region_error: ``raise`` a RegionCompileError, or run that region ``eager`` with one warning.
    """

    name = "regional_inductor"
    terminal = True
    version = (OWN_CODE, torch.__version__)
    share_identical: bool = True
    on_region_error: OnRegionError = "raise"
    graphs: tuple[str, ...] = DEFAULT_GRAPHS

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = ()) -> Any:
        """Return ``gm`` with its regions compiled; it takes one list of inputs, which it empties."""
        return regional_inductor(
            gm, *example_inputs, share_identical=self.share_identical, on_region_error=self.on_region_error
        )
