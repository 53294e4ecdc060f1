"""Graphs that return one value and no tuple: ``make_fx`` makes them, and Inductor does not take them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.fx

from pytest_regional.reference.full_inductor.errors import FullInductorError


def return_tuple(gm: torch.fx.GraphModule) -> bool:
    """Make ``gm`` return a tuple; return whether it did not.

    Raises:
        FullInductorError: it returns something else than a value, a tuple or a list.
    """
    output = gm.graph.output_node()
    (result,) = output.args
    if isinstance(result, (tuple, list)):
        return False
    if not isinstance(result, torch.fx.Node):
        raise FullInductorError(
            f"the graph returns a {type(result).__name__}: let it return a tuple, as AOTAutograd's graphs do."
        )
    output.args = ((result,),)
    gm.recompile()
    return True


@dataclass(frozen=True)
class OnlyOutput:
    """Calls what returns one value in a tuple and returns the value; takes one list of inputs and empties it."""

    compiled: Callable[..., Any]
    _boxed_call: ClassVar[bool] = True

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the compiled graph."""
        (result,) = self.compiled(inputs)
        return result
