"""The key of the outer cache: everything that decides what a Dynamo graph is compiled to."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch.fx

from pytest_regional._torch.autograd_cache import GraphLookup
from pytest_regional._torch.region_compile import compile_state, is_graph_module
from pytest_regional.reference.caching.machine import Machine, this_machine
from pytest_regional.reference.caching.stable import UnstableValueError, digest, stable_text
from pytest_regional.reference.options import BackendOptions

#: Raised whenever what is stored, or how it is found, changes its meaning.
FORMAT = 1


@dataclass(frozen=True)
class KeyDetails:
    """What enters the key; every field does, by looping over them.

    Attributes:
        format: of the entries.
        program: PyTorch's own key: ops and constants of the graph, metadata of inputs, settings of Inductor and
            AOTAutograd, versions, sources of user-defined kernels.
        annotations: those of every node, configs of regions among them, which PyTorch's key leaves out.
        options: of the backend.
        passes: uuids of the pre-grad passes that run after a miss; none when they ran before the lookup.
        state: what Dynamo guards of the process: threads, precision, determinism, autocast.
        machine: versions of what generates the code, and the processor that it is generated for.
    """

    format: int
    program: str
    annotations: tuple[str, ...]
    options: BackendOptions
    passes: tuple[Hashable, ...]
    state: str
    machine: Machine

    def digest(self) -> str:
        """Return the key, in hexadecimal."""
        return digest(self)


def details_of(lookup: GraphLookup, options: BackendOptions, passes: tuple[Hashable, ...]) -> KeyDetails:
    """Collect what decides the result of compiling the graph that is looked up.

    Raises:
        UncacheableGraphError: PyTorch does not cache such a graph.
        UnstableValueError: an annotation holds a value that means nothing in another process.
    """
    return KeyDetails(
        FORMAT,
        lookup.key(),
        tuple(annotations_of(lookup.graph)),
        options,
        passes,
        str(compile_state()["global"]),
        this_machine(),
    )


def annotations_of(gm: torch.fx.GraphModule) -> Iterator[str]:
    """Yield a line for every annotated node of ``gm`` and of the bodies of its higher-order ops.

    Raises:
        UnstableValueError: naming the node.
    """
    texts: dict[int, str] = {}  # nodes of one ``with annotate(...)`` share a dictionary
    for path, module in gm.named_modules():
        if not is_graph_module(module):
            continue
        for index, node in enumerate(module.graph.nodes):
            custom = node.meta.get("custom")
            if custom:
                if id(custom) not in texts:
                    texts[id(custom)] = _text(node, custom)
                yield f"{path}:{index}:{texts[id(custom)]}"


def _text(node: torch.fx.Node, custom: Any) -> str:
    try:
        return stable_text(custom)
    except UnstableValueError as error:
        raise UnstableValueError(f"annotation of node {node.name}: {error}") from None
