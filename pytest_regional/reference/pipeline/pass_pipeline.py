"""``PassPipeline``: a list of passes that is itself a pass, also in Inductor's settings; fills in missing values."""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import time
import warnings
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx
from torch.fx.node import map_arg

from pytest_regional._base.errors import RegionalWarning
from pytest_regional._torch.compile_phases import logged
from pytest_regional._torch.dynamo import restart_exceptions
from pytest_regional._torch.fx_graphs import attribute, flatten, map_leaves
from pytest_regional._torch.inductor import custom_graph_pass_base
from pytest_regional._torch.operators import returns_nothing
from pytest_regional._torch.tracing import as_fake, fake_execution, fake_mode_of, unbacked_bindings
from pytest_regional.reference.pass_protocol import (
    GRAPH_KINDS,
    InvalidPassError,
    PassFailedError,
    UnknownPassError,
    stable_form,
)
from pytest_regional.reference.pipeline.call import PassReport, PipelineReport, Status, count_ops
from pytest_regional.reference.pipeline.pass_order import (
    DeclaredPass,
    Interface,
    checked_kind,
    declared_pass,
    in_order,
    near_misses,
    refuse_unmet,
)


def _value(node: torch.fx.Node, fake_mode: Any) -> Any:
    """Return the value of ``node`` for a call; tensors are copied, so that ``t_`` and similar ops change no other."""
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = attribute(node.graph.owning_module, node.target)
    if isinstance(value, torch.nn.Module):
        return value
    return map_leaves(lambda one: as_fake(one, fake_mode).detach() if isinstance(one, torch.Tensor) else one, value)


class PassPipeline:
    """Passes in their declared order, checked when the pipeline is made.

    Args:
        passes: passes in any form; the given order breaks ties.
        disable: exact names of passes to leave out.
        name: the pipeline's name as a pass of another one.

    Attributes:
        names: the enabled passes in the order in which they run.
        disabled: the names of the others, in the order given.
        graphs: the kinds of graphs of the enabled passes.
        terminal: whether an enabled pass is terminal.
    """

    requires: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()

    def __init__(self, passes: Iterable[Any] = (), disable: Iterable[str] = (), *, name: str = "pipeline") -> None:
        if isinstance(passes, str) or not isinstance(passes, Iterable):
            raise InvalidPassError(f"PassPipeline takes a list of passes, not {passes!r}.")
        self.name = name
        self._arrange(tuple(map(declared_pass, passes)), disable)
        for message in near_misses(self._given):
            warnings.warn(message, RegionalWarning, stacklevel=2)

    def _arrange(self, given: tuple[DeclaredPass, ...], disable: Iterable[str]) -> None:
        self._given = given
        asked = (disable,) if isinstance(disable, str) else tuple(disable)
        names = [one.name for one in given]
        for name in asked:
            if name not in names:
                close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
                hint = f" Is {close[0]!r} meant?" if close else ""
                raise UnknownPassError(
                    f"no pass is called {name!r}, so it cannot be disabled.{hint} Names are compared exactly; there "
                    f"are: {', '.join(map(repr, names)) or 'none'}."
                )
        self.disabled = tuple(dict.fromkeys(name for name in names if name in asked))
        self._passes = in_order(given, self.disabled)
        self._rows: dict[str, tuple[PassReport, ...]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the enabled passes in the order in which they run."""
        return tuple(one.name for one in self._passes)

    @property
    def graphs(self) -> tuple[str, ...]:
        """The kinds of graphs of the enabled passes; all kinds without passes."""
        return tuple(graph for graph in GRAPH_KINDS if self.names_on(graph)) or GRAPH_KINDS

    @property
    def terminal(self) -> bool:
        """Whether an enabled pass is terminal."""
        return any(one.terminal for one in self._passes)

    @property
    def changes_interface(self) -> bool:
        """Whether an enabled pass may change a graph's inputs and outputs."""
        return any(one.changes_interface for one in self._passes)

    @property
    def report(self) -> PipelineReport:
        """Effects of the latest run on each kind of graph."""
        return PipelineReport(tuple(row for graph in GRAPH_KINDS for row in self._rows.get(graph, ())))

    @property
    def passes_without_uuid(self) -> tuple[str, ...]:
        """The enabled passes that have no uuid, so that the pipeline has none."""
        return tuple(one.name for one in self._passes if one.uuid() is None)

    @property
    def uuids(self) -> dict[str, tuple[tuple[str, ...], Hashable | None]]:
        """Of each enabled pass, in order, the kinds of graphs and the uuid: what the pipeline's uuid is made of."""
        return {one.name: (one.graphs, one.uuid()) for one in self._passes}

    def names_on(self, graph: str) -> tuple[str, ...]:
        """Return the names of the enabled passes that run on ``graph``, in order."""
        return tuple(one.name for one in self._on(checked_kind(graph)))

    def without(self, *names: str) -> PassPipeline:
        """Return this pipeline with these passes disabled, too, and an empty report; without names, a copy."""
        less = PassPipeline(name=self.name)
        less._arrange(self._given, (*self.disabled, *names))  # warnings about the passes were given once
        return less

    def uuid(self) -> Hashable | None:
        """Return a digest of the enabled passes in order, the same in every process, or None if one has no uuid.

        Raises:
            PipelineError: a pass whose uuid is empty, changes, or means nothing in another process.
        """
        parts = [(name, *said) for name, said in self.uuids.items()]
        if any(uuid is None for *_, uuid in parts):
            return None
        return hashlib.sha256(repr(stable_form(("pipeline", *parts))).encode()).hexdigest()

    def run(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], graph: str = "forward") -> Any:
        """Run the passes for ``graph``, and return the resulting module, or the terminal pass's result.

        Raises:
            PipelineError: an unknown kind of graph.
            PassOrderError: a pass requires one that does not run on this graph.
            PassFailedError: a pass raised, left an invalid graph or another interface, or returned an unusable result.
        """
        refuse_unmet(self._passes, checked_kind(graph))
        run = _Run(graph, example_inputs, gm)
        try:
            for one in self._on(graph):
                run.take(one)
        finally:
            left_out = (one for one in self._given if one.name in self.disabled and graph in one.graphs)
            self._rows[graph] = (*run.rows, *(PassReport(one.name, graph, status="disabled") for one in left_out))
        return run.result

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = (), *, graph: str = "forward") -> Any:
        """Run like :meth:`run`: a pipeline is a pass."""
        return self.run(gm, example_inputs, graph)

    def _on(self, graph: str) -> list[DeclaredPass]:
        return [one for one in self._passes if graph in one.graphs]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the enabled passes, as given, in the order in which they run."""
        return (one.given for one in self._passes)

    def __len__(self) -> int:
        return len(self._passes)

    def __reduce__(self) -> Any:
        """Pickle and copy the passes as given; a copy has an empty report."""
        return functools.partial(PassPipeline, name=self.name), ([one.given for one in self._given], self.disabled)

    def __repr__(self) -> str:
        off = f", disable={self.disabled!r}" if self.disabled else ""
        return f"PassPipeline([{', '.join(self.names)}]{off})"


@dataclass
class _Run:
    """One run on one graph: the current module, and the report so far."""

    graph: str
    example_inputs: Sequence[Any]
    result: Any

    def __post_init__(self) -> None:
        self.rows: list[PassReport] = []
        self._ops: Counter[str] = count_ops(self.result)

    def take(self, one: DeclaredPass) -> None:
        """Run one pass, check its result, and report it."""
        before = Interface.of(self.result)
        without = {node.name for node in self.result.graph.nodes if "val" not in node.meta}
        began = time.perf_counter()
        try:
            # What a terminal pass does is a compile, whose steps PyTorch logs.
            with contextlib.nullcontext() if one.terminal else logged("regional.passes"):
                returned = one.call(self.result, self.example_inputs, self.graph)
            seconds = time.perf_counter() - began
            self.result = self._checked(one, returned)
            if not one.terminal:
                self._fill(one, without)
                self._compare(one, before)
        except Exception as error:
            self._note(one, time.perf_counter() - began, None, "failed")
            if isinstance(error, (PassFailedError, *restart_exceptions())):
                raise
            raise self._failed(one, f"raised {type(error).__name__}: {error}") from error
        ops = count_ops(self.result) if isinstance(self.result, torch.fx.GraphModule) else None
        self._note(one, seconds, ops, "compiled" if one.terminal else "ran")

    def _checked(self, one: DeclaredPass, returned: Any) -> Any:
        if one.terminal and returned is not None:
            if not callable(returned):
                raise self._failed(one, f"is terminal and returned {_described(returned)}, which cannot be called")
            return returned
        made = getattr(returned, "graph_module", returned)  # PassResult of torch.fx.passes
        if made is None or (one.keeps_graph and (made is self.result.graph or isinstance(made, int))):
            made = self.result
        if not isinstance(made, torch.fx.GraphModule) or (one.keeps_graph and made is not self.result):
            raise self._failed(one, f"returned {_described(returned)}. {_WHAT_TO_RETURN}")
        try:
            made.graph.output_node()
            made.graph.lint()
            made.recompile()
        except Exception as error:
            reason = str(error).strip() or f"{type(error).__name__}, without a message"
            raise self._failed(one, f"left an invalid graph: {reason}") from error
        return made

    def _fill(self, one: DeclaredPass, left_out: Collection[str]) -> None:
        """Give function calls without a value the result of the op on the values of their arguments.

        The ops run in the fake mode of the graph's values. Skipped are nodes in ``left_out``, those with an argument
        without a value, graphs without a fake mode, and bodies of higher-order ops.
        """
        nodes = self.result.graph.nodes
        lacking = [node for node in nodes if node.op == "call_function" and "val" not in node.meta]
        new = [node for node in lacking if node.name not in left_out and not returns_nothing(node.target)]
        leaves = (leaf for node in nodes for leaf in flatten(node.meta.get("val"))[0])
        fake_mode = fake_mode_of(leaves) if new else None
        if fake_mode is None:
            return
        with fake_execution(fake_mode):
            for node in new:
                values = {source: _value(source, fake_mode) for source in node.all_input_nodes}
                if any(value is None for value in values.values()):
                    continue
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                try:
                    result = node.target(*args, **kwargs)
                except restart_exceptions():
                    raise
                except Exception as error:
                    call = f"node {node.name!r} calls {node.target} on {node.args}, which fails on their values"
                    what = f"added a node that cannot run: {call}: {type(error).__name__}: {error}"
                    raise self._failed(one, what) from error
                if result is not None:
                    node.meta["val"] = result
                    bindings = unbacked_bindings(fake_mode, result)
                    if bindings:
                        node.meta["unbacked_bindings"] = bindings

    def _compare(self, one: DeclaredPass, before: Interface) -> None:
        changes = [] if one.changes_interface else [*before.changes_to(Interface.of(self.result))]
        if changes:
            what = f"changed what the graph takes or returns: {'; '.join(changes)}"
            raise self._failed(one, f"{what}. If that is intended, declare changes_interface = True")

    def _failed(self, one: DeclaredPass, what: str) -> PassFailedError:
        return PassFailedError(f"pass {one.name!r}, on the {self.graph} graph, {what}", one.name, self.graph)

    def _note(self, one: DeclaredPass, seconds: float, ops: Counter[str] | None, status: Status) -> None:
        before, after = self._ops, self._ops if ops is None else ops
        self.rows.append(
            PassReport(
                one.name,
                self.graph,
                seconds,
                ops_before=before.total(),
                ops_after=None if ops is None else ops.total(),
                added=dict(after - before),
                removed=dict(before - after),
                status=status,
                summary=one.summary(self.graph) if status != "failed" else "",
            )
        )
        self._ops = after


_WHAT_TO_RETURN = (
    "A pass returns None (it changed the graph in place) or a GraphModule; one that takes a Graph changes it in place; "
    "anything else is for a pass with terminal=True."
)


def _described(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.80}"


def as_inductor_pass(pipeline: PassPipeline, graph: str | None = None) -> Any:
    """Return a ``CustomGraphPass`` that runs ``pipeline`` and has its uuid, which is part of Inductor's keys.

    Without the pipeline's uuid the pass has none, and Inductor caches no graph that it ran on.

    Args:
        pipeline: passes that change their graph in place; none of them terminal.
        graph: the kind of graph to run as; by default ``backward`` if the graph takes tangents, ``forward`` if it takes
            AOTAutograd's primals, else ``inference``. In a setting for the joint graph, pass ``joint``.

    Raises:
        InvalidPassError: a pipeline with a terminal pass.
        PipelineError: an unknown kind of graph.
    """
    if graph is not None:
        checked_kind(graph)
    if pipeline.terminal:
        raise InvalidPassError(
            f"{pipeline!r} ends with a terminal pass, and Inductor continues with the graph: disable that pass."
        )

    class InductorPass(custom_graph_pass_base()):  # type: ignore[misc]
        """Runs a pipeline on Inductor's graph."""

        name = pipeline.name

        def __call__(self, fx_graph: torch.fx.Graph) -> None:
            _run(pipeline, fx_graph, graph or kind_of(fx_graph))

        def uuid(self) -> Hashable | None:
            uuid = pipeline.uuid()
            return None if uuid is None else (uuid, graph)

        def __reduce__(self) -> Any:
            return as_inductor_pass, (pipeline, graph)

    return InductorPass()


def kind_of(graph: torch.fx.Graph) -> str:
    """Return the kind of graph from AOTAutograd's input names; a joint graph looks like a backward one."""
    names = [str(node.target) for node in graph.find_nodes(op="placeholder")]
    if any(name.startswith("tangents_") for name in names):
        return "backward"
    return "forward" if any(name.startswith("primals_") for name in names) else "inference"


def _run(pipeline: PassPipeline, graph: torch.fx.Graph, kind: str) -> None:
    gm = graph.owning_module
    if gm is None:
        raise InvalidPassError(f"{pipeline!r} was given a graph without a GraphModule, which its passes need.")
    example_inputs = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    if pipeline.run(gm, example_inputs, kind) is not gm or gm.graph is not graph:
        raise PassFailedError(
            f"{pipeline!r}, on the {kind} graph, made another GraphModule, which Inductor would drop: its passes have "
            f"to change the graph in place.",
            pipeline.name,
            kind,
        )
