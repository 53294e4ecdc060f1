"""A counting pre-grad pass: what ``pre_grad_pass(uuid=...)`` makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_regional._torch.passes import custom_graph_pass_base

#: Marks passes that tell the observer of each run themselves, whoever runs them.
COUNTS_ITSELF = "counts_itself"


def observe_call(custom: Any) -> None:
    """Tell the running harness, if any, that ``custom`` ran."""
    from .regional import running

    harness = running()
    if harness is not None:
        harness.observer.pass_ran(type(custom).__name__)


def counting_pass(uuid: object = None, transform: Callable[[Any], None] | None = None) -> Any:
    """Return a ``CustomGraphPass`` that counts its runs in ``.calls``.

    Args:
        uuid: what ``uuid()`` returns; ``None`` means that the pass has none.
        transform: called with the ``torch.fx.Graph`` and expected to change it in place; nothing by default.
    """
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be callable with a torch.fx.Graph, not {transform!r}")

    class CountingPass(custom_graph_pass_base()):  # type: ignore[misc]
        """Counts its runs and applies ``transform``."""

        counts_itself = True

        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, graph: Any) -> None:
            self.calls += 1
            observe_call(self)
            if transform is not None:
                transform(graph)

        def uuid(self) -> Any:
            return uuid

        def __repr__(self) -> str:
            return f"CountingPass(uuid={uuid!r}, calls={self.calls})"

    return CountingPass()
