"""Joint partitioning: the plan for all region keys at once, and the schedule on numbers; acyclic, in linear time.

``gradients`` assigns sums of gradients to regions, nodes become numbers, elements of a tuple are merged with the op
that makes it, and ``schedule`` orders them. Its steps become nodes and partitions again, except for partitions of
views.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch.fx

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._torch.fx_graphs import is_backward_node
from pytest_regional.reference.effects import Barrier, Edge, computes, element_of, order_edges
from pytest_regional.reference.gradients import with_sums_of_gradients
from pytest_regional.reference.regions import RegionKey, read_region_keys


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector temporarily; also a decorator.

    For work that allocates much and frees little: full collections would traverse all of torch's objects and take half
    of the time at 10,000 nodes. Threads that use this at once find the collector enabled afterwards.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class Partition:
    """Nodes of one region key that are compiled together, in program order."""

    key: RegionKey
    nodes: tuple[torch.fx.Node, ...]


@dataclass(frozen=True)
class PartitionPlan:
    """An execution order with one step per partition; placeholders, attributes and output are separate."""

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
        keys: Region key of each node to compile; by default from annotations and sums of gradients.
        extra_edges: ``(before, after)`` pairs to keep, besides data flow and effects; both must be in this order.
        barriers: Groups of nodes to keep apart; the first node after a barrier comes after all nodes before it.

    Raises:
        ValueError: If an edge contradicts program order.
        RegionalRuntimeError: If some node is not in exactly one step, a defect of this package.
    """
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    order = [*order_edges(graph), *extra_edges]
    if keys is None:
        keys = with_sums_of_gradients(graph, read_region_keys(graph), {node for edge in order for node in edge})
    homes = _homes(nodes, keys)
    groups = _Groups.of(nodes, barriers)
    made = schedule(Dag.from_edges(groups.keys(homes), groups.edges(order, barriers)))
    steps = tuple(_with_views_eager(tuple(_steps(groups.members, made.steps, homes))))
    plan = PartitionPlan(steps, min(made.least_runs, sum(isinstance(step, Partition) for step in steps)))
    _check_complete(plan, nodes)
    return plan


def _homes(
    nodes: Sequence[torch.fx.Node], keys: Mapping[torch.fx.Node, RegionKey]
) -> dict[torch.fx.Node, RegionKey | None]:
    """Return every node's key: tuple elements have their op's key, dead nodes none."""
    dead: set[torch.fx.Node] = set()
    for node in reversed(nodes):
        if all(user in dead for user in node.users) and not node.is_impure():
            dead.add(node)
    homes: dict[torch.fx.Node, RegionKey | None] = {}
    for node in nodes:
        producer = element_of(node)
        if producer is not None and producer in homes:
            homes[node] = homes[producer]
        else:
            homes[node] = None if node in dead or producer is not None else keys.get(node)
    return homes


@dataclass(frozen=True)
class _Groups:
    """The scheduled groups, numbered in program order: an op with its result's elements, or an empty barrier."""

    members: list[list[torch.fx.Node]]
    number: dict[torch.fx.Node | Barrier, int]

    @classmethod
    def of(cls, nodes: Sequence[torch.fx.Node], barriers: Sequence[Barrier]) -> _Groups:
        groups = cls([], {})
        in_front: dict[torch.fx.Node, list[Barrier]] = defaultdict(list)
        for barrier in barriers:
            for node in barrier.after:
                in_front[node].append(barrier)
        for node in nodes:
            producer = element_of(node)
            if producer is not None and producer in groups.number:
                groups.number[node] = groups.number[producer]
                groups.members[groups.number[node]].append(node)
                continue
            for barrier in in_front.get(node, ()):
                if barrier not in groups.number:
                    groups._add(barrier, [])
            groups._add(node, [node])
        return groups

    def _add(self, item: torch.fx.Node | Barrier, members: list[torch.fx.Node]) -> None:
        self.number[item] = len(self.members)
        self.members.append(members)

    def keys(self, homes: Mapping[torch.fx.Node, RegionKey | None]) -> list[int | None]:
        """Return the key of each group as a number."""
        numbers: dict[RegionKey | None, int | None] = {None: None}
        found = (homes[group[0]] if group else None for group in self.members)
        return [numbers.setdefault(key, len(numbers)) for key in found]

    def edges(self, extra: Iterable[Edge], barriers: Sequence[Barrier]) -> Iterable[tuple[int, int]]:
        """Return each pair of groups once: data flow, ``extra`` and barriers."""
        number = self.number
        flow = (
            (number[source], i)
            for i, group in enumerate(self.members)
            for node in group
            for source in node.all_input_nodes
            if source in number
        )
        held = [(a, barrier) for barrier in barriers for a in barrier.before]
        freed = [(barrier, b) for barrier in barriers for b in barrier.after]
        every: Iterable[tuple[torch.fx.Node | Barrier, torch.fx.Node | Barrier]] = (*extra, *held, *freed)
        ordered = ((number[a], number[b]) for a, b in every if a in number and b in number)
        unique = dict.fromkeys((a, b) for a, b in (*flow, *ordered) if a != b)
        for a, b in unique:
            if a > b:
                raise ValueError(f"order edge contradicts program order: {self._first(a)} before {self._first(b)}")
        return unique

    def _first(self, number: int) -> str:
        return next(map(str, self.members[number]), "a barrier")


def _steps(
    members: Sequence[Sequence[torch.fx.Node]],
    steps: Iterable[Iterable[int]],
    homes: Mapping[torch.fx.Node, RegionKey | None],
) -> Iterator[torch.fx.Node | Partition]:
    for step in steps:
        nodes = tuple(node for i in step for node in members[i])
        key = homes[nodes[0]] if nodes else None
        if key is None:
            yield from nodes
        else:
            yield Partition(key, nodes)


def _with_views_eager(steps: Sequence[torch.fx.Node | Partition]) -> Iterator[torch.fx.Node | Partition]:
    """Split partitions that compute nothing: running views as ops costs less than a compile and a call.

    A region with only views in a graph is still compiled, as annotated. But not among gradients, whose views the user
    did not write.
    """
    computing = {step for step in steps if isinstance(step, Partition) and any(map(computes, step.nodes))}
    regions = {partition.key for partition in computing}
    for step in steps:
        if not isinstance(step, Partition) or step in computing:
            yield step
        elif step.key in regions or all(map(is_backward_node, step.nodes)):
            yield from step.nodes
        else:
            yield step


def _check_complete(plan: PartitionPlan, nodes: Sequence[torch.fx.Node]) -> None:
    """Raise if a node is missing or duplicated: a cycle of partitions would drop nodes, and their writes."""
    planned = [node for step in plan.steps for node in (step.nodes if isinstance(step, Partition) else (step,))]
    if len(planned) == len(nodes) and set(planned) == set(nodes):
        return
    lost = [node.name for node in nodes if node not in set(planned)]
    twice = [node.name for node in nodes if planned.count(node) > 1]
    raise RegionalRuntimeError(
        "internal error of pytest-regional: the plan of the partitions "
        + " and ".join(f"{what} {', '.join(names)}" for what, names in (("lost", lost), ("has twice", twice)) if names)
        + "; please report it with the graph (TORCH_LOGS=aot_graphs prints it)"
    )


Numbers = Sequence[Sequence[int]]


def place_in_program_order(
    keys: Sequence[int | None], before: Numbers, after: Numbers, runs: list[list[int]]
) -> list[list[int]]:
    """Return ``runs``, which are in execution order, with some nodes moved to later runs of their key.

    Args:
        keys: Key of each node; nodes are numbered in program order.
        before: The nodes that each node waits for.
        after: The nodes that wait for each node.
        runs: The nodes of each run; a run without remaining nodes is removed.
    """
    run_of = {i: number for number, run in enumerate(runs) for i in run}
    latest: dict[int, int] = {}  # the last possible run of each node; one that is used outside of its region is fixed
    for i in sorted(run_of, reverse=True):
        latest[i] = min((latest[j] if keys[j] == keys[i] else run_of[i] for j in after[i]), default=run_of[i])
    ends = _Ends(keys, runs, [i for i in run_of if latest[i] == run_of[i]], run_of)
    moved: dict[int, int] = {}
    for i in sorted(run_of):
        if latest[i] == run_of[i]:
            moved[i] = run_of[i]
            continue
        operands = [j for j in before[i] if keys[j] == keys[i]]
        earliest = max([run_of[i], *(moved[j] for j in operands)])
        joins = any(run_of[j] == run_of[i] for j in operands)
        moved[i] = earliest if joins else ends.first_beyond(i, earliest, latest[i])
    placed: list[list[int]] = [[] for _ in runs]
    for i in sorted(moved):
        placed[moved[i]].append(i)
    return [run for run in placed if run]


class _Ends:
    """Where the runs of each key end in the program, counting only fixed members."""

    def __init__(
        self, keys: Sequence[int | None], runs: list[list[int]], fixed: Sequence[int], run_of: dict[int, int]
    ) -> None:
        last = [-1] * len(runs)
        for i in fixed:
            last[run_of[i]] = max(last[run_of[i]], i)
        self._numbers: dict[int | None, list[int]] = defaultdict(list)
        for number, run in enumerate(runs):
            self._numbers[keys[run[0]]].append(number)
        self._ends = {
            key: list(accumulate((last[number] for number in numbers), max)) for key, numbers in self._numbers.items()
        }
        self._key_of_run = [keys[run[0]] for run in runs]

    def first_beyond(self, i: int, earliest: int, latest: int) -> int:
        """Return the first run from ``earliest`` to ``latest`` that ends after node ``i``."""
        key = self._key_of_run[earliest]
        numbers = self._numbers[key]
        position = bisect_right(self._ends[key], i)
        return min(max(numbers[position], earliest), latest) if position < len(numbers) else latest


@dataclass(frozen=True)
class Dag:
    """A graph with numbers in program order as nodes: each node's key, predecessors and successors."""

    keys: Sequence[int | None]
    before: Sequence[Sequence[int]]
    after: Sequence[Sequence[int]]

    @classmethod
    def from_edges(cls, keys: Sequence[int | None], edges: Iterable[tuple[int, int]]) -> Dag:
        """Link ``(earlier, later)`` pairs, which are unique and ascending."""
        before: list[list[int]] = [[] for _ in keys]
        after: list[list[int]] = [[] for _ in keys]
        for a, b in edges:
            before[b].append(a)
            after[a].append(b)
        return cls(keys, before, after)

    def reversed(self) -> Dag:
        """Return the same graph with all edges reversed, numbered from the end."""
        last = len(self.keys) - 1

        def turn(lists: Sequence[Sequence[int]]) -> list[list[int]]:
            return [[last - i for i in reversed(numbers)] for numbers in reversed(lists)]

        return Dag(self.keys[::-1], turn(self.after), turn(self.before))


@dataclass(frozen=True)
class Schedule:
    """Steps in execution order, each one node without a key or all nodes of a run, and the lower bound of runs."""

    steps: list[list[int]]
    least_runs: int


def schedule(dag: Dag) -> Schedule:
    """Return an order that keeps every edge of ``dag`` and has few runs; every node is in one step."""
    runs, least = _fewest_runs(dag)
    return Schedule(_ordered(dag, runs), least)


def _fewest_runs(dag: Dag) -> tuple[list[list[int]], int]:
    levels, least = _levels(dag)
    runs = _Schedule(dag, levels).run()
    if len(runs) > least and len(set(dag.keys) - {None}) > 1:
        turned = dag.reversed()
        last = len(dag.keys) - 1
        other = [[last - i for i in run] for run in _Schedule(turned, _levels(turned)[0]).run()]
        if len(other) < len(runs):
            runs = other[::-1]
    return place_in_program_order(dag.keys, dag.before, dag.after, runs), least


def _levels(dag: Dag) -> tuple[list[int], int]:
    """Return each node's level within its own key, and the sum over keys of the deepest level."""
    spans: dict[int, tuple[int, int]] = {}
    for i, key in enumerate(dag.keys):
        if key is not None:
            spans[key] = (spans[key][0] if key in spans else i, i)
    levels = [0] * len(dag.keys)
    least = 0
    for key, (first, last) in spans.items():
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
        least += deepest
    return levels, least


@dataclass
class _Waiting:
    """Nodes of one key that can run now, or after others that can."""

    ready: list[int] = field(default_factory=list)
    earliest: int = -1
    ready_by_level: Counter[int] = field(default_factory=Counter)
    left_by_level: Counter[int] = field(default_factory=Counter)
    level: int = 1

    def missing(self) -> int:
        """Return how many nodes of the lowest remaining level cannot run yet."""
        while not self.left_by_level[self.level]:
            self.level += 1
        return self.left_by_level[self.level] - self.ready_by_level[self.level]


class _Schedule:
    """One pass over the graph; every node becomes ready once and every edge is visited twice."""

    def __init__(self, dag: Dag, levels: Sequence[int]) -> None:
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
        waiting = self._waiting
        while self._openable:
            # The key with the fewest missing nodes on its level; the original order breaks ties.
            self._open(min(self._openable, key=lambda key: (waiting[key].missing(), waiting[key].earliest)))
            self._run_plain()
        return self._runs

    def _make_ready(self, first: int) -> None:
        """Mark ``first`` as ready; members of its key that only wait for ready members become ready too."""
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


def _ordered(dag: Dag, runs: list[list[int]]) -> list[list[int]]:
    """Order the runs and the other nodes topologically, as close to program order as possible."""
    unit = list(range(len(dag.keys)))
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
    return [contents[u] for u in _topological(after, blocked)]


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
