"""A pipeline's report: for each pass and graph its time, and the added and removed operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch.fx

from pytest_regional._torch.fx_graphs import bodies_of, is_graph_module
from pytest_regional._torch.operators import is_higher_order_op, is_op_overload

Status = Literal["ran", "compiled", "disabled", "failed"]

_NO_OPS = ("placeholder", "output", "get_attr")


@dataclass(frozen=True)
class PassReport:
    """One pass on one graph.

    Attributes:
        name: the pass.
        graph: the kind of graph.
        seconds: time of the pass itself, without checks of the graph and the report.
        ops_before: number of operators before, including those in bodies of higher-order operators.
        ops_after: the number after; None if no graph is left (``compiled``), or an unknown one.
        added: operators with more occurrences than before, and how many more.
        removed: operators with fewer occurrences than before, and how many fewer.
        status: ``ran``, ``compiled`` (a terminal pass), ``disabled`` or ``failed``.
        summary: the pass's own text on its run, from its optional method ``summary(graph)``.
    """

    name: str
    graph: str
    seconds: float = 0.0
    ops_before: int | None = None
    ops_after: int | None = None
    added: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    status: Status = "ran"
    summary: str = ""

    @property
    def changed(self) -> bool:
        """Whether the graph has other operators than before."""
        return bool(self.added or self.removed)

    def cells(self) -> tuple[str, ...]:
        """Return the table row."""
        ran = self.status != "disabled"
        ops = f"{_shown(self.ops_before)} -> {_shown(self.ops_after)}" if ran else ""
        what = "; ".join(filter(None, (_changes(self) if self.status == "ran" else self.status, self.summary)))
        return self.graph, self.name, f"{self.seconds * 1e3:.2f}" if ran else "", ops, what


@dataclass(frozen=True)
class PipelineReport(Sequence[PassReport]):
    """The latest run on each kind of graph, pass by pass; ``str()`` is a table."""

    passes: tuple[PassReport, ...] = ()

    def __getitem__(self, index: Any) -> Any:
        return self.passes[index]

    def __len__(self) -> int:
        return len(self.passes)

    def __iter__(self) -> Iterator[PassReport]:
        return iter(self.passes)

    def on(self, graph: str) -> PipelineReport:
        """Return the rows of one kind of graph."""
        return PipelineReport(tuple(one for one in self.passes if one.graph == graph))

    def of(self, name: str) -> PipelineReport:
        """Return the rows of one pass."""
        return PipelineReport(tuple(one for one in self.passes if one.name == name))

    @property
    def seconds(self) -> float:
        """Time of all passes."""
        return sum(one.seconds for one in self.passes)

    def __str__(self) -> str:
        if not self.passes:
            return "no pass has run"
        rows = [("graph", "pass", "ms", "ops", "changes"), *(one.cells() for one in self.passes)]
        return aligned(rows, right=(2, 3))


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return ``rows`` in columns, the first row underlined; columns ``right`` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[(text.rjust if i in right else text.ljust)(widths[i]) for i, text in enumerate(row)] for row in rows]
    lines = ["  ".join(row).rstrip() for row in cells]
    return "\n".join((lines[0], "  ".join("-" * width for width in widths), *lines[1:]))


def _shown(count: int | None) -> str:
    return "-" if count is None else str(count)


def _changes(one: PassReport) -> str:
    signs = [("-", one.removed), ("+", one.added)]
    parts = [f"{sign}{count} {name}" for sign, counts in signs for name, count in sorted(counts.items())]
    return ", ".join(parts) or "none"


def differences(before: Counter[str], after: Counter[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the increases and decreases from ``before`` to ``after``, as multisets."""
    return dict(after - before), dict(before - after)


def count_ops(gm: torch.fx.GraphModule) -> Counter[str]:
    """Count the operators of ``gm`` by name; the body of a higher-order operator counts once for each call."""
    return _count(gm, {})


def _count(gm: torch.fx.GraphModule, known: dict[int, Counter[str]]) -> Counter[str]:
    if id(gm) not in known:
        counts: Counter[str] = Counter()
        known[id(gm)] = counts
        for node in gm.graph.nodes:
            if node.op not in _NO_OPS:
                counts[op_name(node)] += 1
                for body in bodies_of(node):
                    counts.update(_count(body, known))
    return known[id(gm)]


def op_name(node: torch.fx.Node) -> str:
    """Return the operator's name in reports."""
    target: Any = node.target
    if node.op == "call_method":
        return f".{target}"
    if node.op == "call_module":
        return _module_name(node)
    if is_op_overload(target):
        return str(target)
    if is_higher_order_op(target):
        return str(target.name())
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", str(target))
    return name if module is None else f"{module.lstrip('_')}.{name}"


def _module_name(node: torch.fx.Node) -> str:
    owner = node.graph.owning_module
    module = owner.get_submodule(str(node.target)) if owner is not None else None
    return str(node.target) if module is None or is_graph_module(module) else type(module).__name__
