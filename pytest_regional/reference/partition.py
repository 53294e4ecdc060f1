"""Joint partitioning: all region keys at once, acyclic by construction, linear in nodes plus edges.

The graph is scheduled, not searched. Unannotated nodes run as soon as they can. When none can, one region is opened:
everything of its key that waits only for what has run, or for members of the same run, is taken at once and becomes
one partition. A schedule cannot contain a cycle, so neither can the partitions.

For one key each run takes all it can, as late as it can, so no plan has fewer partitions. For several keys the choice
of the region to open matters: a region is preferred whose present *level* (how often its key must have been
opened on the way to a node, whatever the other keys do) is completely ready. The sum of the deepest levels is a lower
bound; where the schedule misses it, the reversed graph is scheduled too, and the better of the two is kept. Last,
nodes that several runs could take are placed as the program has them (``placing``).
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch.fx

from pytest_regional.reference.collector import without_collections
from pytest_regional.reference.effects import Barrier, Edge, element_of, order_edges
from pytest_regional.reference.placing import place_in_program_order
from pytest_regional.reference.regions import RegionKey, read_region_keys


@dataclass(frozen=True)
class Partition:
    """Nodes of one region key that are compiled together, in program order."""

    key: RegionKey
    nodes: tuple[torch.fx.Node, ...]


@dataclass(frozen=True)
class PartitionPlan:
    """An execution order in which every partition is one step; placeholders, attributes and output stand apart."""

    steps: tuple[torch.fx.Node | Partition, ...]
    least_partitions: int = 0

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions, in execution order."""
        return tuple(step for step in self.steps if isinstance(step, Partition))


@without_collections()
def plan_partitions(
    graph: torch.fx.Graph,
    keys: Mapping[torch.fx.Node, RegionKey] | None = None,
    extra_edges: Iterable[Edge] = (),
    barriers: Sequence[Barrier] = (),
) -> PartitionPlan:
    """Plan the partitions of ``graph``.

    Args:
        graph: An FX graph in program order.
        keys: Region key of each node to compile; by default what the annotations say.
        extra_edges: ``(before, after)`` pairs to keep, beyond data flow and effects; both must stand in this order.
        barriers: Groups of nodes to keep apart; the first node behind a barrier stands after all before it.
    """
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    homes = _homes(nodes, read_region_keys(graph) if keys is None else keys)
    dag = _Dag.build(nodes, homes, [*order_edges(graph), *extra_edges], barriers)
    runs, least = _fewest_runs(dag)
    return PartitionPlan(tuple(_steps(dag, runs, homes)), least)


def _homes(
    nodes: Sequence[torch.fx.Node], keys: Mapping[torch.fx.Node, RegionKey]
) -> dict[torch.fx.Node, RegionKey | None]:
    """Give every node its key: elements live with the op that made the tuple, dead nodes nowhere."""
    homes: dict[torch.fx.Node, RegionKey | None] = {}
    dead = _dead_nodes(nodes)
    for node in nodes:
        producer = element_of(node)
        if producer is not None and producer in homes:
            homes[node] = homes[producer]
        else:
            homes[node] = None if node in dead or producer is not None else keys.get(node)
    return homes


def _dead_nodes(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    dead: set[torch.fx.Node] = set()
    for node in reversed(nodes):
        if all(user in dead for user in node.users) and not node.is_impure():
            dead.add(node)
    return dead


@dataclass
class _Dag:
    """The graph as numbers in program order, with elements folded into the op that makes them."""

    members: list[list[torch.fx.Node]]
    keys: list[int | None]
    before: list[list[int]]
    after: list[list[int]]

    @classmethod
    def build(
        cls,
        nodes: Sequence[torch.fx.Node],
        homes: Mapping[torch.fx.Node, RegionKey | None],
        edges: Iterable[Edge],
        barriers: Sequence[Barrier],
    ) -> _Dag:
        number: dict[torch.fx.Node | Barrier, int] = {}
        members: list[list[torch.fx.Node]] = []
        in_front: dict[torch.fx.Node, list[Barrier]] = defaultdict(list)
        for barrier in barriers:
            for node in barrier.after:
                in_front[node].append(barrier)
        for node in nodes:
            producer = element_of(node)
            if producer is not None and producer in number:
                number[node] = number[producer]
                members[number[node]].append(node)
                continue
            for barrier in in_front.get(node, ()):
                if barrier not in number:
                    number[barrier] = len(members)
                    members.append([])
            number[node] = len(members)
            members.append([node])
        pairs = (
            (number[source], number[node]) for node in nodes for source in node.all_input_nodes if source in number
        )
        held = [(a, barrier) for barrier in barriers for a in barrier.before]
        freed = [(barrier, b) for barrier in barriers for b in barrier.after]
        every: Iterable[tuple[torch.fx.Node | Barrier, torch.fx.Node | Barrier]] = (*edges, *held, *freed)
        ordered = ((number[a], number[b]) for a, b in every if a in number and b in number)
        unique = dict.fromkeys((a, b) for a, b in (*pairs, *ordered) if a != b)
        key_numbers: dict[RegionKey | None, int | None] = {None: None}
        found = (homes[group[0]] if group else None for group in members)
        keys = [key_numbers.setdefault(key, len(key_numbers)) for key in found]
        return cls._linked(members, keys, unique)

    @classmethod
    def _linked(
        cls, members: list[list[torch.fx.Node]], keys: list[int | None], edges: Iterable[tuple[int, int]]
    ) -> _Dag:
        dag = cls(members, keys, [[] for _ in members], [[] for _ in members])
        for a, b in edges:
            if a > b:
                raise ValueError(
                    f"order edge runs against program order: {_first(members[a])} before {_first(members[b])}"
                )
            dag.before[b].append(a)
            dag.after[a].append(b)
        return dag

    def reversed(self) -> _Dag:
        """Return the same graph with all edges turned round, numbered from the end."""
        last = len(self.members) - 1

        def turn(lists: list[list[int]]) -> list[list[int]]:
            return [[last - i for i in reversed(numbers)] for numbers in reversed(lists)]

        return _Dag(self.members[::-1], self.keys[::-1], turn(self.after), turn(self.before))


def _first(group: Iterable[torch.fx.Node]) -> str:
    return next(map(str, group), "a barrier")


def _fewest_runs(dag: _Dag) -> tuple[list[list[int]], int]:
    levels, least = _levels(dag)
    runs = _Schedule(dag, levels).run()
    if len(runs) > least and len(set(dag.keys) - {None}) > 1:
        turned = dag.reversed()
        last = len(dag.members) - 1
        other = [[last - i for i in run] for run in _Schedule(turned, _levels(turned)[0]).run()]
        if len(other) < len(runs):
            runs = other[::-1]
    return place_in_program_order(dag.keys, dag.before, dag.after, runs), least


def _levels(dag: _Dag) -> tuple[list[int], int]:
    """Return each node's level within its own key, and the sum over keys of the deepest level."""
    spans: dict[int, tuple[int, int]] = {}
    for i, key in enumerate(dag.keys):
        if key is not None:
            spans[key] = (spans[key][0] if key in spans else i, i)
    levels = [0] * len(dag.keys)
    least = 0
    for key, span in spans.items():
        least += _levels_of(dag, key, span, levels)
    return levels, least


def _levels_of(dag: _Dag, key: int, span: tuple[int, int], levels: list[int]) -> int:
    """Write the levels of ``key``; only nodes between its first and last member can matter."""
    first, last = span
    count: dict[int, int] = {}
    deepest = 0
    for i in range(first, last + 1):
        mine = dag.keys[i] == key
        level = 1 if mine else 0
        for j in dag.before[i]:
            reached = count.get(j, 0)
            leaves = mine and reached and dag.keys[j] != key
            level = max(level, reached + 1 if leaves else reached)
        if level:
            count[i] = level
        if mine:
            levels[i] = level
            deepest = max(deepest, level)
    return deepest


@dataclass
class _Waiting:
    """What of one key can run now, or after others that can."""

    ready: list[int] = field(default_factory=list)
    earliest: int = -1
    ready_by_level: Counter[int] = field(default_factory=Counter)
    left_by_level: Counter[int] = field(default_factory=Counter)
    level: int = 1

    def missing(self) -> int:
        """Return how many nodes of the lowest level that is left cannot run yet."""
        while not self.left_by_level[self.level]:
            self.level += 1
        return self.left_by_level[self.level] - self.ready_by_level[self.level]


class _Schedule:
    """One pass over the graph; every node becomes ready once and every edge is looked at twice."""

    def __init__(self, dag: _Dag, levels: Sequence[int]) -> None:
        self._dag = dag
        self._levels = levels
        self._blocked = [len(before) for before in dag.before]
        self._plain: list[int] = []
        self._waiting: dict[int, _Waiting] = defaultdict(_Waiting)
        self._openable: dict[int, None] = {}
        self._runs: list[list[int]] = []

    def run(self) -> list[list[int]]:
        """Return the runs of region nodes, in the order in which they were opened."""
        for i, key in enumerate(self._dag.keys):
            if key is not None:
                self._waiting[key].left_by_level[self._levels[i]] += 1
        for i, blocked in enumerate(list(self._blocked)):
            if not blocked:
                self._make_ready(i)
        self._run_plain()
        while (key := self._next_key()) is not None:
            self._open(key)
            self._run_plain()
        return self._runs

    def _make_ready(self, first: int) -> None:
        """Note that ``first`` can run; members of its key that wait only for such members can too."""
        key = self._dag.keys[first]
        if key is None:
            self._plain.append(first)
            return
        waiting, stack = self._waiting[key], [first]
        waiting.earliest = min(first, waiting.earliest) if waiting.ready else first
        self._openable[key] = None
        while stack:
            i = stack.pop()
            waiting.ready.append(i)
            waiting.ready_by_level[self._levels[i]] += 1
            stack += self._unblocked(i, lambda j: self._dag.keys[j] == key)

    def _unblocked(self, i: int, concerns: Callable[[int], bool]) -> Iterator[int]:
        for j in self._dag.after[i]:
            if concerns(j):
                self._blocked[j] -= 1
                if not self._blocked[j]:
                    yield j

    def _run_plain(self) -> None:
        while self._plain:
            i = self._plain.pop()
            for j in self._unblocked(i, lambda _: True):
                self._make_ready(j)

    def _next_key(self) -> int | None:
        """Prefer the key with the least missing from its level; the original order breaks ties."""
        waiting = self._waiting
        return min(self._openable, key=lambda key: (waiting[key].missing(), waiting[key].earliest), default=None)

    def _open(self, key: int) -> None:
        del self._openable[key]
        waiting = self._waiting[key]
        run = waiting.ready
        waiting.left_by_level.subtract(waiting.ready_by_level)
        waiting.ready, waiting.ready_by_level = [], Counter()
        self._runs.append(run)
        for i in run:
            for j in self._unblocked(i, lambda j: self._dag.keys[j] != key):
                self._make_ready(j)


def _steps(
    dag: _Dag, runs: list[list[int]], homes: Mapping[torch.fx.Node, RegionKey | None]
) -> Iterator[torch.fx.Node | Partition]:
    """Order the runs and the other nodes topologically, as near to program order as can be."""
    unit = list(range(len(dag.members)))
    contents = {i: [i] for i in unit}
    for run in runs:
        for i in run[1:]:
            del contents[i]
            unit[i] = run[0]
        contents[run[0]] = run
    after: dict[int, dict[int, None]] = {u: {} for u in contents}
    blocked = dict.fromkeys(contents, 0)
    for i, following in enumerate(dag.after):
        for j in following:
            if unit[i] != unit[j] and unit[j] not in after[unit[i]]:
                after[unit[i]][unit[j]] = None
                blocked[unit[j]] += 1
    for u in _topological(after, blocked):
        yield from _step(dag, contents[u], homes)


def _step(
    dag: _Dag, content: list[int], homes: Mapping[torch.fx.Node, RegionKey | None]
) -> Iterator[torch.fx.Node | Partition]:
    nodes = tuple(node for i in content for node in dag.members[i])
    key = homes[nodes[0]] if nodes else None
    if key is None:
        yield from nodes
    else:
        yield Partition(key, nodes)


def _topological(after: Mapping[int, Iterable[int]], blocked: dict[int, int]) -> Iterator[int]:
    ready = [u for u, count in blocked.items() if not count]
    heapq.heapify(ready)
    while ready:
        u = heapq.heappop(ready)
        yield u
        for v in after[u]:
            blocked[v] -= 1
            if not blocked[v]:
                heapq.heappush(ready, v)
