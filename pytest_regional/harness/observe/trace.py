"""What a compile did, as far as no other record holds it: regions of operators, the compiled order, shared code."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pytest_regional._torch import fx_graphs
from pytest_regional._torch.config import CONFIG_MODULES, config_default, config_state
from pytest_regional._torch.inductor import is_region_artifact
from pytest_regional.harness.cache_keys import inputs_of, modes
from pytest_regional.harness.observe import annotated
from pytest_regional.harness.observe.listeners import CompileListener

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

    from pytest_regional.harness.observe.observer import Observer


@dataclass(frozen=True)
class TracedOp:
    """One operator of a graph, and the name of its region; ``None`` outside of all."""

    name: str
    region: str | None


@dataclass(frozen=True)
class PartitionCall:
    """A call of a compiled partition of a region in a compiled graph.

    ``shares`` is which earlier call has the same code, such as ``forward, mlp``; empty for code of its own.
    """

    region: str
    shares: str = ""


@dataclass(frozen=True)
class GraphTrace:
    """One graph that AOTAutograd made, or Dynamo where the backend does without AOTAutograd."""

    kind: str  # ``"inference"``, ``"forward"`` or ``"backward"``
    ops: tuple[TracedOp, ...]  # its operators in order
    #: Inductor's, AOTAutograd's and Dynamo's settings that were not the default ones, as text
    settings: dict[str, str] = field(default_factory=dict)
    #: the compiled graph in order, as far as the backend shows it: operators that stay eager, and calls of partitions;
    #: empty where it shows nothing
    steps: tuple[str | PartitionCall, ...] = ()


@dataclass
class CompileTrace:
    """All graphs of one run."""

    graphs: list[GraphTrace] = field(default_factory=list)  # in the order of compilation
    inputs: list[list[str]] = field(default_factory=list)  # of each call of the backend, what is known of its inputs
    modes: dict[str, str] = field(default_factory=dict)  # the modes of PyTorch at the last call
    #: by number of a generated source, the bytes of what goes in and comes out; ``None`` if unknown
    bytes_at_border: dict[int, int | None] = field(default_factory=dict)


class TraceListener(CompileListener):
    """Fills a :class:`CompileTrace` while it is among ``Observer.listeners``."""

    def __init__(self, observer: Observer) -> None:
        self.trace = CompileTrace()
        self.observer = observer
        self._first = len(observer.sources)
        self._from_dynamo: list[GraphTrace] = []
        #: By identity of code, which is kept as well: the identity of an object that is gone may be another's later.
        self._owners: dict[int, tuple[Any, str]] = {}
        self._regions: dict[int, tuple[Any, str]] = {}

    def finished(self) -> CompileTrace:
        """Return the trace; graphs of Dynamo's are part of it where the backend does without AOTAutograd."""
        if not self.trace.graphs:
            self.trace.graphs = self._from_dynamo
        return self.trace

    def backend_called(self, gm: Any) -> None:
        """Note what the code depends on, and the graph."""
        self.trace.inputs.append(inputs_of(gm))
        self.trace.modes = dict(modes())
        self._from_dynamo.append(GraphTrace("inference", _ops_of(gm), _settings()))

    @contextlib.contextmanager
    def compiling_graph(self, kind: str, gm: Any) -> Iterator[Callable[[Any], None]]:
        """Note a graph before its compiler rewrites it, and what it becomes."""
        ops, settings, size = _ops_of(gm), _settings(), _bytes_at_border(gm)
        first = len(self.observer.sources)

        def finish(result: Any) -> None:
            self.trace.graphs.append(GraphTrace(kind, ops, settings, self._steps(kind, result)))
            self._note_size(first, size)

        yield finish

    @contextlib.contextmanager
    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> Iterator[Callable[[Any], None]]:
        """Note how large the values at the border of a partition are, and whose code it becomes."""
        size, first = _bytes_at_border(gm), len(self.observer.sources)
        names = "+".join(dict.fromkeys(name for name, _ in annotated.regions_in(gm)))

        def finish(result: Any) -> None:
            self._regions[id(result)] = result, names
            self._note_size(first, size)

        yield finish

    def _note_size(self, first: int, size: int | None) -> None:
        for number in range(first, len(self.observer.sources)):
            self.trace.bytes_at_border.setdefault(number - self._first, size)

    def _steps(self, kind: str, result: Any) -> tuple[str | PartitionCall, ...]:
        gm = fx_graphs.graph_module_in(result)
        if not isinstance(gm, torch.fx.GraphModule):
            return ()
        steps = [self._step(kind, node) for node in gm.graph.nodes]
        found = tuple(step for step in steps if step is not None)
        return found if any(isinstance(step, PartitionCall) for step in found) else ()

    def _step(self, kind: str, node: Node) -> str | PartitionCall | None:
        if not is_region_artifact(node.target):
            return annotated.operator_of(node)
        code = getattr(node.target, "__wrapped__", node.target)
        region = annotated.region_of(node)
        _, compiled_from = self._regions.get(id(code), (None, ""))
        name = region[0] if region else compiled_from or "unknown"
        if id(code) in self._owners:
            return PartitionCall(name, self._owners[id(code)][1])
        self._owners[id(code)] = code, f"{kind}, {name}"
        return PartitionCall(name)


def _ops_of(gm: GraphModule) -> tuple[TracedOp, ...]:
    found = ((annotated.operator_of(node), annotated.region_of(node)) for node in annotated.nodes_of(gm))
    return tuple(TracedOp(name, region[0] if region else None) for name, region in found if name)


def _settings() -> dict[str, str]:
    """Return the settings that differ from their defaults; without objects, whose text may hold an address."""
    return {
        f"{module}.{name}": json.dumps(value, sort_keys=True, skipkeys=True, default=lambda one: type(one).__qualname__)
        for module in CONFIG_MODULES
        for name, value in config_state(module).items()
        if value != config_default(module, name)
    }


def _bytes_at_border(gm: Any) -> int | None:
    """Return the bytes of all inputs and outputs of a graph; ``None`` where one has no value or a symbolic size."""
    outputs = [one for node in gm.graph.find_nodes(op="output") for one in node.all_input_nodes]
    values = [node.meta.get("val") for node in (*gm.graph.find_nodes(op="placeholder"), *outputs)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    known = len(tensors) == len(values) and all(type(size) is int for size in sizes)
    return sum(sizes) if known else None
