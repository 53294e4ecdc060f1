"""``partition``: a joint graph split into forward and backward, without compiling them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch.fx

from pytest_regional._torch.fx_graphs import clone_graph
from pytest_regional._torch.joint_graph import compile_joint
from pytest_regional.reference.gradients import partitioner_for
from pytest_regional.reference.pass_protocol import PipelineError
from pytest_regional.reference.pipeline.capture import JointGraph

#: Takes a joint graph and its inputs, with AOTAutograd's keywords, and returns forward and backward.
PartitionFunction = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]

_NAMES = ("default", "min_cut")


@dataclass(frozen=True)
class PartitionedGraphs:
    """Forward and backward of a joint graph. Both may be changed before they are compiled.

    Attributes:
        joint: The original joint graph.
        forward: Takes the joint graph's inputs without tangents; returns its outputs, then saved values.
        backward: Takes saved values and tangents; returns gradients.
        partitioner: How they were split.
    """

    joint: JointGraph
    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    partitioner: str | PartitionFunction

    def __iter__(self) -> Iterator[torch.fx.GraphModule]:
        """Unpack: ``forward, backward = partition(joint)``."""
        return iter((self.forward, self.backward))

    def as_partition_function(self) -> PartitionFunction:
        """Return a partitioner that splits the joint graph into copies of these two."""
        split = partition_function(self.partitioner)

        def given(gm: torch.fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
            if is_outermost(gm):
                return clone_graph(self.forward), clone_graph(self.backward)
            return split(gm, inputs, **keywords)

        return given


def partition(joint: JointGraph, partitioner: str | PartitionFunction = "default") -> PartitionedGraphs:
    """Split ``joint``, which is not changed, into forward and backward.

    Args:
        joint: The result of ``capture``.
        partitioner: ``default`` saves the forward's values; ``min_cut`` recomputes cheap ones; or a function of the
            joint graph and its inputs, as in ``torch._functorch.partitioners``.

    Raises:
        PipelineError: there is no backward, or the partitioner did not return two graphs.
    """
    if joint.kind != "joint":
        raise PipelineError(
            f"{joint} has no backward to split off: nothing that it returns requires gradients. It is compiled whole."
        )
    split = partition_function(partitioner)

    def stop_at_outermost(gm: torch.fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
        graphs = checked_graphs(split(gm, inputs, **keywords), partitioner)
        if is_outermost(gm):
            raise _Partitioned(*graphs)
        return graphs

    mine = joint.copy()
    try:
        compile_joint(
            mine.exported, mine.context, partition=stop_at_outermost, forward=_not_reached, backward=_not_reached
        )
    except _Partitioned as found:
        return PartitionedGraphs(joint, found.forward, found.backward, partitioner)
    raise PipelineError(f"{joint} was not partitioned: AOTAutograd called no partitioner.")


def partition_function(partitioner: str | PartitionFunction) -> PartitionFunction:
    """Return the function that ``partitioner`` is or names.

    Raises:
        PipelineError: an unknown name.
    """
    if callable(partitioner):
        return partitioner
    if partitioner not in _NAMES:
        raise PipelineError(f"there is no partitioner {partitioner!r}: give {' or '.join(_NAMES)}, or a function.")
    return partitioner_for(partitioner)


def checked_graphs(result: Any, partitioner: str | PartitionFunction) -> Any:
    """Return ``result`` if it is two graph modules.

    Raises:
        PipelineError: it is not.
    """
    if isinstance(result, tuple) and len(result) == 2 and all(isinstance(gm, torch.fx.GraphModule) for gm in result):
        return result
    name = partitioner if isinstance(partitioner, str) else getattr(partitioner, "__qualname__", repr(partitioner))
    raise PipelineError(f"partitioner {name} returned {type(result).__name__}, not (forward, backward) graph modules.")


def is_outermost(gm: torch.fx.GraphModule) -> bool:
    """Return whether ``gm`` is a whole joint graph: AOTAutograd splits bodies of higher-order ops in the same way."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    return any("desc" in node.meta for node in placeholders)


class _Partitioned(Exception):
    def __init__(self, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule) -> None:
        self.forward = forward
        self.backward = backward


def _not_reached(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> NoReturn:
    raise PipelineError("a graph was about to be compiled during a partition-only run")
