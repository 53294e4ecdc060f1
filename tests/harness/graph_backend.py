"""A backend that has nothing of Inductor's: it runs Dynamo's graph as it is, and gives results without gradients.

What fails on it demands more of a backend than it says in ``requires``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_regional import BackendSpec, GraphCapabilities, Support, unsupported


class InferenceCapabilities(GraphCapabilities):
    """Values, and no gradients."""

    @property
    def backward(self) -> Support:
        """Programs that train are compiled, backward included."""
        return unsupported("it is for inference")


def without_gradients(gm: Any, example_inputs: Any) -> Callable[..., Any]:
    """Run the graph where nothing requires a gradient."""

    def run(*inputs: Any) -> Any:
        with torch.no_grad():
            return gm.forward(*inputs)

    return run


specification = BackendSpec("graphs_alone", lambda: without_gradients, InferenceCapabilities(), inductor=False)
