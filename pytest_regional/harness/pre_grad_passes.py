"""How runs of pre-grad passes reach the observer, and the counting pass that ``pre_grad_pass(uuid=...)`` makes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pytest_regional._torch.config import INDUCTOR, inductor_config, patched_config, pre_grad_custom_passes
from pytest_regional._torch.inductor import custom_graph_pass_base
from pytest_regional._torch.pass_forms import pass_name

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
    """The counts of a counting pass: plain data of this process."""

    def __init__(self) -> None:
        self.calls = 0  # all runs, on whole Dynamo graphs, bodies of operators in them, on regions, and by hand
        self.region_calls = 0  # those on the subgraph of one region, which no regional backend should make
        self.graphs: list[GraphRuns] = []  # the Dynamo graphs that were compiled with this pass configured

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

        counts_itself = True  # it tells the observer of each run, whoever runs it

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


class _Counted:
    """A configured pass whose runs are reported; in everything else it is the pass that it stands for."""

    def __init__(self, custom: Any) -> None:
        self.__wrapped__ = custom

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _LISTENERS:
            _LISTENERS[-1](pass_name(self.__wrapped__), self.__wrapped__, next(iter(args), None))
        return self.__wrapped__(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == getattr(other, "__wrapped__", other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __reduce__(self) -> Any:
        return _same, (self.__wrapped__,)


def _same(custom: Any) -> Any:
    return custom


def _counted(custom: Any) -> Any:
    if getattr(custom, "counts_itself", False) or issubclass(type(custom), _Counted) or not callable(custom):
        return custom
    # Messages name a pass after its type.
    named = {"__qualname__": type(custom).__qualname__, "__module__": type(custom).__module__}
    return type(type(custom).__name__, (_Counted,), named)(custom)


@contextlib.contextmanager
def runs_counted() -> Iterator[None]:
    """Report each run of the passes in ``pre_grad_custom_pass``, whichever backend runs them, inside the context."""
    passes = [_counted(custom) for custom in pre_grad_custom_passes()]
    if all(new is old for new, old in zip(passes, pre_grad_custom_passes(), strict=True)):
        yield
        return
    configured = inductor_config().pre_grad_custom_pass
    several = isinstance(configured, list | tuple)
    with patched_config(INDUCTOR, {"pre_grad_custom_pass": type(configured)(passes) if several else passes[0]}):
        yield


#: Called with the name, the pass and the graph of each run; the last one is called, that of the innermost harness.
_LISTENERS: list[Callable[[str, Any, Any], None]] = []


@contextlib.contextmanager
def runs_reported_to(listener: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Call ``listener(name, custom, graph)`` at each run of a pass that is counted while the context lasts."""
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
