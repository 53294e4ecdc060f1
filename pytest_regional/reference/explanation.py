"""``explain``: the region plan of a graph as text; ``explain_program`` for all graphs of a function."""

from __future__ import annotations

import copy
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
import torch.fx

from pytest_regional._torch.config import backward_lowered_at_once
from pytest_regional._torch.fx_graphs import called_attributes, use_boxed_codegen
from pytest_regional.reference.compile_regions import fingerprint, require_values
from pytest_regional.reference.dynamo_backend import through_aot_autograd
from pytest_regional.reference.effects import Barrier, order_edges
from pytest_regional.reference.extract import bodies_inside, extract_partitions
from pytest_regional.reference.options import Partitioner
from pytest_regional.reference.ordering.whole_regions import OrderedPlan, plan_in_order
from pytest_regional.reference.partition import Partition
from pytest_regional.reference.pass_protocol import plan_pre_grad
from pytest_regional.reference.regions import op_names, source_line


@dataclass(frozen=True)
class ExplainedPartition:
    """One partition of a region.

    Attributes:
        name: Its call's name in the compiled graph; in the body of a higher-order op, after the body's path.
        region: Label of the region.
        configs: Inductor configs of the region.
        ops: Names of the ops, in order.
        split_by: What separates it from the region's previous partition: the name of a node, or a region that depends
            on the previous one and is needed by this one.
        split_at: The user's line of that node.
        shared_with: Name of the earlier partition that this one is identical to.
    """

    name: str
    region: str
    configs: Mapping[str, Any]
    ops: tuple[str, ...]
    split_by: str | None = None
    split_at: str | None = None
    shared_with: str | None = None

    def __str__(self) -> str:
        where = f" at {self.split_at}" if self.split_at else ""
        notes = [f"split by {self.split_by}{where}"] if self.split_by else []
        notes += [f"shares {self.shared_with}"] if self.shared_with else []
        return f"  {self.name}: {', '.join(self.ops)}" + (f"  ({'; '.join(notes)})" if notes else "")


@dataclass(frozen=True)
class Explanation:
    """The region plan of one graph: ``kind`` is inference, forward or backward if AOTAutograd made it."""

    partitions: tuple[ExplainedPartition, ...]
    kind: str = ""

    @property
    def regions(self) -> tuple[str, ...]:
        """Labels of the regions, in order of appearance."""
        return tuple(dict.fromkeys(partition.region for partition in self.partitions))

    def __str__(self) -> str:
        by_key: dict[str, list[ExplainedPartition]] = defaultdict(list)
        for partition in self.partitions:
            configs = f" {dict(partition.configs)}" if partition.configs else ""
            by_key[f"region {partition.region!r}{configs}"].append(partition)
        lines = [f"{self.kind} graph"] if self.kind else []
        for region, mine in by_key.items():
            lines += [f"{region}: {len(mine)} partition(s)", *map(str, mine)]
        return "\n".join(lines if self.partitions else [*lines, "no regions"])


def explain(gm: torch.fx.GraphModule, *, show: bool = True) -> Explanation:
    """Return, and print unless ``show`` is false, how ``gm`` would be split into regions; ``gm`` is not changed."""
    explanation = Explanation(tuple(Explainer().explained(gm)))
    if show:
        print(explanation)
    return explanation


def explain_program(
    fn: Callable[..., Any],
    *inputs: Any,
    partitioner: Partitioner = "default",
    dynamic: bool | None = None,
    show: bool = True,
) -> tuple[Explanation, ...]:
    """Return, and print unless ``show`` is false, the region plan of every graph of ``fn`` for ``inputs``.

    Captures the program like ``torch.compile`` and runs it once, eagerly; Inductor compiles nothing. ``fn`` may be
    compiled already. Give an input ``requires_grad=True`` to see the forward and the backward graph.
    """
    seen: list[Explanation] = []
    # The backward can share regions of the forward.
    explainer = Explainer()

    def note(kind: str) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Any]:
        def explain_graph(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
            seen.append(Explanation(tuple(explainer.explained(graph, f"{kind}.")), kind))
            use_boxed_codegen(graph)
            return graph

        return explain_graph

    compilers = {f"{short}_compiler": note(kind) for short, kind in _KINDS.items()}

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        plan_pre_grad().run(gm)
        return through_aot_autograd(gm, example_inputs, partitioner, **compilers)

    with backward_lowered_at_once():
        torch.compile(_never_compiled_before(fn), backend=backend, dynamic=dynamic)(*inputs)
    if show:
        print(*seen, sep="\n")
    return tuple(seen)


_KINDS = {"fw": "forward", "bw": "backward", "inference": "inference"}


def _never_compiled_before(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``fn`` into a function with a new code object: Dynamo counts recompilations by code object."""

    def program(*inputs: Any) -> Any:
        return fn(*inputs)

    return types.FunctionType(program.__code__.replace(), program.__globals__, closure=program.__closure__)


@dataclass
class Explainer:
    """Explains graphs that are compiled together, so that they can share regions."""

    first: dict[Any, str] = field(default_factory=dict)

    def explained(
        self, gm: torch.fx.GraphModule, graph_name: str = "", path: str = "", done: set[int] | None = None
    ) -> Iterator[ExplainedPartition]:
        """Yield the partitions of ``gm``, and of the bodies outside of its regions that are not ``done``."""
        done = set() if done is None else done
        done.add(id(gm))
        duplicate = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
        plan = plan_in_order(duplicate.graph)
        dividers = dict(_dividers(duplicate.graph, plan))
        regions = extract_partitions(duplicate, plan.partitions, plan.edges)
        names = {region.partition: region.name for region in regions}
        for region in regions:
            name, partition = path + region.name, region.partition
            divider = dividers.get(partition)
            split_by, split_at = (None, None) if divider is None else divider.in_words(names)
            require_values(region)
            original = self.first.setdefault(fingerprint(region).token, graph_name + name)
            shared = None if original == graph_name + name else original.removeprefix(graph_name)
            key, ops = partition.key, op_names(partition.nodes)
            yield ExplainedPartition(name, key.label, key.settings, ops, split_by, split_at, shared)
        carried = bodies_inside(regions)
        for name, body in called_attributes(duplicate).items():
            if id(body) not in done | carried:
                yield from self.explained(body, graph_name, f"{path}{name}.", done)


@dataclass(frozen=True)
class _Divider:
    """What separates two partitions of one region, other than the order of other regions."""

    unit: torch.fx.Node | Partition | Barrier | None
    requested: bool = False

    def in_words(self, names: Mapping[Partition, str]) -> tuple[str, str | None]:
        """Return a description of it, and the user's line."""
        if self.unit is None:
            return "the order of other regions", None
        if isinstance(self.unit, Barrier):
            return f"the order in annotations: {self.unit.name}", None
        by_order = ", by requested order" if self.requested else ""
        if isinstance(self.unit, Partition):
            return f"region {self.unit.key.label!r} ({names[self.unit]}){by_order}", source_line(self.unit.nodes)
        return f"{self.unit.name}{by_order}", source_line([self.unit])


def _dividers(graph: torch.fx.Graph, plan: OrderedPlan) -> Iterator[tuple[Partition, _Divider]]:
    """Yield, for each partition but the first of a key, what separates it from the previous one."""
    partitions = plan.partitions.partitions
    order = _Order.of(graph, plan)
    by_values = _Order.of(graph, replace(plan, edges=(), barriers=()))
    last: dict[object, Partition] = {}
    for partition in partitions:
        earlier = last.get(partition.key)
        if earlier is not None:
            unit = by_values.between(earlier, partition)
            yield partition, _Divider(unit or order.between(earlier, partition), requested=unit is None)
        last[partition.key] = partition


_Unit: TypeAlias = "torch.fx.Node | Barrier"


@dataclass
class _Order:
    """The required order of nodes and of whole partitions."""

    before: Mapping[_Unit, list[_Unit]]
    position: Mapping[_Unit, int]
    home: Mapping[_Unit, Partition]

    @classmethod
    def of(cls, graph: torch.fx.Graph, plan: OrderedPlan) -> _Order:
        before: dict[_Unit, list[_Unit]] = defaultdict(list)
        for node in graph.nodes:
            before[node] += node.all_input_nodes
        for a, b in (*order_edges(graph), *plan.edges):
            before[b].append(a)
        position: dict[_Unit, int] = {node: index for index, node in enumerate(graph.nodes)}
        for barrier in plan.barriers:
            before[barrier] += barrier.before
            position[barrier] = min(position[node] for node in barrier.after)
            for node in barrier.after:
                before[node].append(barrier)
        home: dict[_Unit, Partition] = {
            node: partition for partition in plan.partitions.partitions for node in partition.nodes
        }
        return cls(before, position, home)

    def between(self, earlier: Partition, later: Partition) -> _Unit | Partition | None:
        """Search for a node outside of both on a path of nodes, else for a partition on a path of partitions."""
        unit = self._search(earlier, later, whole_partitions=False)
        if isinstance(unit, torch.fx.Node) and unit in self.home:
            return self.home[unit]
        return unit or self._search(earlier, later, whole_partitions=True)

    def _search(self, earlier: Partition, later: Partition, *, whole_partitions: bool) -> _Unit | Partition | None:
        """Search backwards from ``later`` for something outside of both that depends on ``earlier``."""
        sources: set[_Unit] = set(earlier.nodes)
        members: set[_Unit] = set(later.nodes)
        floor = min(self.position[node] for node in sources)
        stack = [unit for unit in self._inputs(later.nodes) if unit not in members]
        seen = set(stack)
        while stack:
            node = stack.pop()
            if node in sources or (not whole_partitions and self.position[node] < floor):
                continue
            unit: _Unit | Partition = self.home.get(node, node) if whole_partitions else node
            inputs = list(self._inputs(unit.nodes if isinstance(unit, Partition) else [node]))
            if not sources.isdisjoint(inputs):
                return unit
            fresh = dict.fromkeys(other for other in inputs if other not in seen and other not in members)
            seen.update(fresh)
            stack += fresh
        return None

    def _inputs(self, units: Iterable[_Unit]) -> Iterator[_Unit]:
        return (other for unit in units for other in self.before.get(unit, ()))
