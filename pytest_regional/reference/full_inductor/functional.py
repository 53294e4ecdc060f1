"""Inductor's graph passes take a graph for functional: nothing is written, but inputs at the very end."""

from __future__ import annotations

from collections.abc import Iterator

import torch.fx

from pytest_regional._torch.region_compile import is_op_overload, storage_key
from pytest_regional.reference.effects import written_arguments
from pytest_regional.reference.extract import called_attributes
from pytest_regional.reference.full_inductor.errors import NotFunctionalError

_EPILOGUE = ("aten::copy_", "aten::set_", "inductor::resize_storage_bytes_")
# These write to buffers that they are given for it, and Inductor lowers them as such.
_LOWERED_AS_WRITES = ("_c10d_functional", "symm_mem")


def check_functional(gm: torch.fx.GraphModule) -> None:
    """Check that ``gm`` and the bodies it calls write to nothing but inputs of ``gm``, after the last read.

    Raises:
        NotFunctionalError: naming the first node that does.
    """
    last_read = _last_reads(gm.graph)
    for position, node in enumerate(gm.graph.nodes):
        for target in _written(node):
            is_epilogue = _schema_name(node) in _EPILOGUE and target.op == "placeholder"
            if not is_epilogue or last_read.get(storage_key(target.meta.get("val")), -1) > position:
                raise NotFunctionalError(_complaint(node, target, is_epilogue), node=node.name)
    for body in called_attributes(gm).values():
        _check_body(body, set())


def _check_body(body: torch.fx.GraphModule, done: set[int]) -> None:
    if id(body) in done:
        return
    done.add(id(body))
    for node in body.graph.nodes:
        for target in _written(node):
            raise NotFunctionalError(f"in a body: {_complaint(node, target, False)}", node=node.name)
    for inner in called_attributes(body).values():
        _check_body(inner, done)


def _written(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    if getattr(node.target, "namespace", None) not in _LOWERED_AS_WRITES:
        yield from written_arguments(node)


def _last_reads(graph: torch.fx.Graph) -> dict[int | None, int]:
    """Return where each storage is last read, other than by what ends a graph; unknown storages are never."""
    last: dict[int | None, int] = {}
    for position, node in enumerate(graph.nodes):
        if node.op != "output" and _schema_name(node) not in _EPILOGUE:
            for source in node.all_input_nodes:
                last[storage_key(source.meta.get("val"))] = position
    last.pop(None, None)
    return last


def _schema_name(node: torch.fx.Node) -> str:
    return str(node.target._schema.name) if is_op_overload(node.target) else ""


def _complaint(node: torch.fx.Node, target: torch.fx.Node, is_too_early: bool) -> str:
    where = "and it is read again later" if is_too_early else "which is no input that is written at the end"
    return (
        f"node {node.name!r} ({node.target}) writes to {target.name!r}, {where}: Inductor takes whole graphs in "
        f"functional form. Capture the graph with AOTAutograd, or functionalize it (torch.func.functionalize)."
    )
