"""The call through which every backward enters PyTorch's engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from pytest_regional._torch.seams import Seam, wrapping

_SEAMS = {
    # What torch.autograd.backward and grad call when they are done with their arguments (2.11 to 2.15).
    # torch.compiler replaces it in the same way for its own tracing.
    "engine": Seam("torch.autograd", "_engine_run_backward"),
}


def backwards_inside(
    context: Callable[[], contextlib.AbstractContextManager[Any]],
) -> contextlib.AbstractContextManager[None]:
    """Run every backward that starts in the body inside a fresh ``context()``.

    A mode of Python is off while it handles a function, so it is off for the whole of a backward that it sees start;
    what that backward recomputes (checkpointing) would escape it.
    """

    def run(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with context():
            return original(*arguments, **options)

    return wrapping(_SEAMS, {"engine": run})


__all__ = ["backwards_inside"]
