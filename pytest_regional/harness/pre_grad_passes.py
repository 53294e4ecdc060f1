"""A counting pre-grad pass: what ``pre_grad_pass(uuid=...)`` makes, and how its runs reach the observer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pytest_regional._torch.inductor import custom_graph_pass_base

#: Marks passes that tell the observer of each run themselves, whoever runs them.
COUNTS_ITSELF = "counts_itself"

#: How the lookup of a whole Dynamo graph's result ended; ``none``: there was no lookup.
OUTCOMES = ("hit", "miss", "bypass", "none")


@dataclass
class DynamoGraph:
    """One Dynamo graph handed to a backend, as its pre-grad passes see it; the observer fills it in.

    A pass that runs early runs before the lookup, so that the outcome comes after the run: both are kept here.
    """

    outcome: str = "none"
    _runs: dict[int, GraphRuns] = field(default_factory=dict)

    def runs_of(self, custom: Any) -> GraphRuns:
        """Return the runs of ``custom`` on this graph, which the pass lists from now on."""
        if id(custom) not in self._runs:
            self._runs[id(custom)] = GraphRuns(self)
            custom.graphs.append(self._runs[id(custom)])
        return self._runs[id(custom)]


@dataclass
class GraphRuns:
    """How often one pass ran on one Dynamo graph."""

    graph: DynamoGraph = field(repr=False)
    calls: int = 0
    body_calls: int = 0


def is_body(graph: Any, module: Any) -> bool:
    """Say whether ``graph`` is that of an operator's body inside Dynamo's ``module``, not of the module itself."""
    inner = (child for child in module.modules() if child is not module)
    return graph is not None and any(getattr(child, "graph", None) is graph for child in inner)


class PassCounts:
    """The counts of a counting pass: plain data of this process.

    Attributes:
        calls: all runs, on whole Dynamo graphs, bodies of operators in them, on regions, and by hand.
        region_calls: those on the subgraph of one region, which no regional backend should make.
        graphs: the Dynamo graphs that were compiled with this pass configured.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.region_calls = 0
        self.graphs: list[GraphRuns] = []

    @property
    def calls_by_compile(self) -> tuple[int, ...]:
        """The runs on each Dynamo graph handed to the backend with this pass configured, in order; 0 where it did not.

        Runs on a region's subgraph or on the body of an operator are not among them.
        """
        return tuple(runs.calls for runs in self.graphs)

    @property
    def body_calls(self) -> int:
        """The runs on bodies of operators such as ``checkpoint``, which Inductor hands to passes one by one."""
        return sum(runs.body_calls for runs in self.graphs)

    @property
    def calls_by_outcome(self) -> dict[str, int]:
        """The same runs by how the lookup of that graph's result ended: ``hit``, ``miss``, ``bypass`` or ``none``."""
        return {outcome: sum(r.calls for r in self.graphs if r.graph.outcome == outcome) for outcome in OUTCOMES}


def counting_pass(uuid: object = None, transform: Callable[[Any], None] | None = None) -> Any:
    """Return a ``CustomGraphPass`` that counts its runs; see :class:`PassCounts` for what it counts.

    Args:
        uuid: what ``uuid()`` returns, whatever it is; ``None`` means that the pass has none.
        transform: called with the ``torch.fx.Graph`` and expected to change it in place; nothing by default.
    """
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be callable with a torch.fx.Graph, not {transform!r}")

    class CountingPass(custom_graph_pass_base(), PassCounts):  # type: ignore[misc]
        """Counts its runs and applies ``transform``."""

        counts_itself = True

        def __call__(self, graph: Any) -> None:
            self.calls += 1
            if _LISTENERS:
                _LISTENERS[-1](type(self).__name__, self, graph)
            if transform is not None:
                transform(graph)

        def uuid(self) -> Any:
            return uuid

        def __reduce__(self) -> Any:
            # Another process counts for itself.
            return counting_pass, (uuid, transform)

        def __repr__(self) -> str:
            return f"CountingPass(uuid={uuid!r}, calls={self.calls})"

    # The name in PyTorch's messages and ours.
    CountingPass.__qualname__ = "CountingPass"
    return CountingPass()


#: Called with the name, the pass and the graph of each run; the last one is called, that of the innermost harness.
_LISTENERS: list[Callable[[str, Any, Any], None]] = []


@contextlib.contextmanager
def runs_reported_to(listener: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Call ``listener(name, custom, graph)`` at each run of a counting pass while the context lasts."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)


def replacing(before: Any, after: Any) -> Callable[[Any], None]:
    """Return a transform that puts ``after`` for ``before``: a pass that changes results shows that it ran.

    Args:
        before: the target of nodes in Dynamo's graph: a function such as ``operator.add`` or ``torch.add``, the name of
            a method.
        after: the target they get.
    """

    def replace(graph: Any) -> None:
        for node in graph.nodes:
            if node.target == before:
                node.target = after

    return replace
