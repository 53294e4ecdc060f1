"""The node that Inductor failed on."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import torch.fx

from pytest_regional._torch.full_inductor import nodes_are_lowered_by
from pytest_regional.reference.full_inductor.errors import FullInductorError
from pytest_regional.reference.naming import source_line


def failure(error: Exception, graph: str) -> FullInductorError:
    """Return the error that says which graph, and which node of it, Inductor did not compile, and why."""
    if isinstance(error, FullInductorError):
        return type(error)(f"the {graph} graph cannot be compiled: {error}", graph, error.node)
    node = _last_lowered(error)
    reason = str(error).strip().splitlines() or [""]
    message = f"the {graph} graph did not compile{_where(node)}: {type(error).__name__}: {reason[0]}"
    return FullInductorError(message, graph, None if node is None else node.name)


def _where(node: torch.fx.Node | None) -> str:
    if node is None:
        return ""
    line = source_line([node])
    return f", at node {node.name!r} ({node.target})" + (f", from {line}" if line else "")


def _last_lowered(error: BaseException) -> torch.fx.Node | None:
    """Return the node whose lowering raised: the innermost frame that lowers one knows it as ``n``."""
    found = None
    for cause in _causes(error):
        for traceback in _frames(cause.__traceback__):
            frame = traceback.tb_frame
            if frame.f_code.co_name == nodes_are_lowered_by() and isinstance(frame.f_locals.get("n"), torch.fx.Node):
                found = frame.f_locals["n"]
    return found


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next
