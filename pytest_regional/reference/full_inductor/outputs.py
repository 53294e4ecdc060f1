"""Outputs of a graph: distinct tensors stay distinct, functional form, buffer donation."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.fx

from pytest_regional._torch.aot_autograd import backward_keeps_graph, buffer_donation, donate_nothing
from pytest_regional._torch.fx_graphs import called_attributes, snapshot
from pytest_regional._torch.inductor import compiled_fx_graph
from pytest_regional._torch.operators import is_op_overload, schema_of
from pytest_regional._torch.tracing import detect_fake_mode, fake_execution, storage_key
from pytest_regional.reference.effects import written_arguments
from pytest_regional.reference.full_inductor.errors import FullInductorError


def with_outputs_apart(
    gm: torch.fx.GraphModule, change: Callable[[torch.fx.GraphModule], torch.fx.GraphModule]
) -> torch.fx.GraphModule:
    """Return ``change(gm)``, whose outputs share memory with each other or with inputs only if they did before.

    Inductor's passes merge ``y`` and ``y * 1``. If both are saved for a backward that may overwrite its inputs, that
    would corrupt the other, or an input of the user's.
    """
    # A node's own value is not reliable afterwards: Inductor gives a node the metadata of the node it replaces.
    storages = {node: _storage(node) for node in gm.graph.nodes}
    before = [_storage(output) for output in _outputs(gm)]
    gm = change(gm)
    owners = {storage: storage for storage in storages.values()}
    output = gm.graph.output_node()
    apart = []
    for result, key in zip(_outputs(gm), before, strict=True):
        now = storages.get(result, _storage(result)) if isinstance(result, torch.fx.Node) else None
        is_merged = now is not None and owners.setdefault(now, key) != key
        apart.append(_clone(gm.graph, result) if is_merged else result)
    output.args = (tuple(apart),)
    return gm


def _outputs(gm: torch.fx.GraphModule) -> Sequence[torch.fx.node.Argument]:
    outputs = gm.graph.output_node().args[0]
    assert isinstance(outputs, (tuple, list))
    return outputs


def _storage(value: torch.fx.node.Argument) -> int | None:
    return storage_key(value.meta.get("val")) if isinstance(value, torch.fx.Node) else None


def _clone(graph: torch.fx.Graph, value: torch.fx.node.Argument) -> torch.fx.Node:
    assert isinstance(value, torch.fx.Node)
    with graph.inserting_before(graph.output_node()):
        clone = graph.call_function(torch.ops.aten.clone.default, (value,))
    with fake_execution(detect_fake_mode([value.meta["val"]])):
        clone.meta["val"] = snapshot(torch.ops.aten.clone.default(value.meta["val"]))
    return clone


_EPILOGUE = ("aten::copy_", "aten::set_", "inductor::resize_storage_bytes_")
# These write to buffers passed for that purpose, and Inductor lowers them as such.
_LOWERED_AS_WRITES = ("_c10d_functional", "symm_mem")


def check_functional(gm: torch.fx.GraphModule) -> None:
    """Check that ``gm`` and the bodies it calls write only to inputs of ``gm``, after the last read.

    Raises:
        FullInductorError: naming the first node that does.
    """
    last_read = _last_reads(gm.graph)
    for position, node in enumerate(gm.graph.nodes):
        for target in _written(node):
            is_epilogue = _schema_name(node) in _EPILOGUE and target.op == "placeholder"
            if not is_epilogue or last_read.get(storage_key(target.meta.get("val")), -1) > position:
                raise FullInductorError(_complaint(node, target, is_epilogue), node=node.name)
    for body in called_attributes(gm).values():
        _check_body(body, set())


def _check_body(body: torch.fx.GraphModule, done: set[int]) -> None:
    if id(body) in done:
        return
    done.add(id(body))
    for node in body.graph.nodes:
        for target in _written(node):
            raise FullInductorError(f"in a body: {_complaint(node, target, False)}", node=node.name)
    for inner in called_attributes(body).values():
        _check_body(inner, done)


def _written(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    if getattr(node.target, "namespace", None) not in _LOWERED_AS_WRITES:
        yield from written_arguments(node)


def _last_reads(graph: torch.fx.Graph) -> dict[int | None, int]:
    """Return the last read of each storage, except by the graph's end; unknown storages have none."""
    last: dict[int | None, int] = {}
    for position, node in enumerate(graph.nodes):
        if node.op != "output" and _schema_name(node) not in _EPILOGUE:
            for source in node.all_input_nodes:
                last[storage_key(source.meta.get("val"))] = position
    last.pop(None, None)
    return last


def _schema_name(node: torch.fx.Node) -> str:
    return str(schema_of(node.target).name) if is_op_overload(node.target) else ""


def _complaint(node: torch.fx.Node, target: torch.fx.Node, is_too_early: bool) -> str:
    where = "and it is read again later" if is_too_early else "which is not an input written at the end"
    return (
        f"node {node.name!r} ({node.target}) writes to {target.name!r}, {where}: Inductor takes whole graphs in "
        f"functional form. Capture the graph with AOTAutograd, or functionalize it (torch.func.functionalize)."
    )


def donate_unshared_inputs(gm: torch.fx.GraphModule) -> contextlib.AbstractContextManager[Sequence[int]]:
    """Donate only inputs that no other input is a view of; the context yields the donated indices.

    AOTAutograd checks for views among the forward's inputs and outputs, but not among saved values. Without Inductor's
    passes on the joint graph, a value and its ``detach`` are both saved: overwriting one of them overwrites both.
    """
    keys = [storage_key(node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")]
    counts = Counter(keys)
    return buffer_donation(lambda index: counts[keys[index]] == 1)


def able_to_run_again(compiled: Callable[..., Any], donated: Sequence[int]) -> Callable[..., Any]:
    """Make a compiled backward keep its donated inputs if its graph is kept.

    AOTAutograd decides when a backward first runs, and refuses to keep the graph later. A backward compiled ahead must
    be correct for both.
    """
    if isinstance(compiled, compiled_fx_graph()):
        compiled.__class__ = RunsAgain
        compiled.donated = tuple(donated)
        donate_nothing()  # AOTAutograd need not check it
    return compiled


class RunsAgain(compiled_fx_graph()):  # type: ignore[misc]
    """Inductor's backward, which overwrites copies if the graph is kept; otherwise unchanged.

    Attributes:
        donated: the indices of the inputs that the generated code may write into.
    """

    donated: tuple[int, ...]

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the backward, which clears ``inputs``."""
        if self.donated and backward_keeps_graph():
            for index in self.donated:
                inputs[index] = _copy(inputs[index])
        return super().__call__(inputs)


def _copy(value: Any) -> Any:
    """Copy a tensor with its memory layout, including gaps and overlaps."""
    if not isinstance(value, torch.Tensor):
        return value
    memory = value.untyped_storage().clone()
    return value.new_empty(0).set_(memory, value.storage_offset(), value.size(), value.stride())


def return_tuple(gm: torch.fx.GraphModule) -> bool:
    """Make ``gm`` return a tuple; return whether it did not.

    FullInductorError: it returns something other than a value, a tuple or a list.
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
    """Returns the single value of a compiled function's tuple; takes and clears one list of inputs."""

    compiled: Callable[..., Any]
    _boxed_call: ClassVar[bool] = True

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the compiled graph."""
        (result,) = self.compiled(inputs)
        return result
