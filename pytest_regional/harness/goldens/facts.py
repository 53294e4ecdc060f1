"""What a compile did as lines of text, one fact a line.

A line below the name of a fact is ``subject: value``, or stands below a subject on a line without a value. Subjects of
one text differ, so that two texts can be compared line by line.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import plural, unknown_name
from pytest_regional.harness.codegen.events import ExternCall, KernelLaunch, UnknownSizeError
from pytest_regional.harness.codegen.memory import peak_of
from pytest_regional.harness.goldens.file import FACT_NAMES, Text

if TYPE_CHECKING:
    from pytest_regional.harness.codegen import CodeEvent
    from pytest_regional.harness.observe.trace import CompileTrace, GraphTrace
    from pytest_regional.harness.record import CompileRecord, GeneratedSource


#: Counters that do not depend on what caches hold.
_COUNTERS = (
    "graphs",
    "regions",
    "region_compiles",
    "pre_grad_calls",
    "region_pre_grad_calls",
    "recompiles",
    "fallbacks",
)

OUTSIDE = "outside"
"""Where an operator is that is in no region."""


def text_of(record: CompileRecord, facts: Iterable[str]) -> Text:
    """Return the facts of ``record`` as text."""
    names = checked(facts)
    if record.trace is None or not record.trace.graphs or not record.graphs:
        raise RegionalValueError(
            "nothing was compiled in this run, so there is nothing to compare with a golden: the program was compiled "
            "before, or a cache answered. Give assert_golden the program, which it compiles with empty caches"
        )
    return tuple(line for name in names for line in (name, *_indented(FACTS[name](record, record.trace))))


def checked(facts: Iterable[str]) -> tuple[str, ...]:
    """Return the names in the order of :data:`FACTS`, once each."""
    chosen = [facts] if isinstance(facts, str) else list(facts)
    for name in chosen:
        if name not in FACTS:
            raise RegionalValueError(unknown_name("fact", name, FACTS))
    if not chosen:
        raise RegionalValueError(f"facts= is empty: a golden needs at least one of {', '.join(FACTS)}")
    return tuple(name for name in FACTS if name in chosen)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _titles(trace: CompileTrace) -> list[tuple[str, GraphTrace]]:
    """Return the graphs with what tells them apart: ``forward``, and ``forward 2`` for the second."""
    seen: Counter[str] = Counter()
    found = []
    for graph in trace.graphs:
        seen[graph.kind] += 1
        found.append((graph.kind if seen[graph.kind] == 1 else f"{graph.kind} {seen[graph.kind]}", graph))
    return found


def _regions(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield how large regions are, and their partitions."""
    for (title, graph), known in zip(_titles(trace), record.graphs, strict=False):
        for region in known.regions:
            calls = [step for step in graph.steps if not isinstance(step, str) and step.region == region.name]
            configs = [f"{name}={value}" for name, value in sorted(region.configs.items())]
            owners = Counter(call.shares for call in calls if call.shares)
            shared = [f"{count} shared with {owner}" for owner, count in owners.items()]
            said = [plural(len(region.ops), "op"), plural(region.partitions, "partition"), *shared, *configs]
            yield f"{title}, {region.name}: {', '.join(said)}"
        outside = sum(op.region is None for op in graph.ops)
        yield f"{title}, {OUTSIDE}: {plural(outside, 'op')}"


def _ops(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield the operators of each graph in order, with their regions."""
    for title, graph in _titles(trace):
        yield title
        yield from _indented(_repeated(f"{op.region}: {op.name}" if op.region else op.name for op in graph.ops))


def _repeated(lines: Iterable[str]) -> Iterator[str]:
    """Yield ``line x3`` for three equal lines in a row."""
    for line, same in itertools.groupby(lines):
        count = len(list(same))
        yield f"{line} x{count}" if count > 1 else line


def _order(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield what runs before and after each call of a partition, or each stretch of a region."""
    for title, graph in _titles(trace):
        steps = [step if isinstance(step, str) else f"[{step.region}]" for step in graph.steps]
        if not steps:
            names = (f"[{op.region}]" if op.region else op.name for op in graph.ops)
            groups = itertools.groupby(names)
            steps = [one for name, same in groups for one in ([name] if name[0] == "[" else list(same))]
        borders = [place for place, step in enumerate(steps) if step.startswith("[")]
        if not borders:
            continue
        yield title
        for place in borders:
            around = (steps[place - 1] if place else "start", steps[place], *(steps[place + 1 : place + 2] or ["end"]))
            yield "  " + " > ".join(around)


def _fusions(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield the kernels and calls of each piece of generated code, with the operators behind them."""
    for title, source in _sources(record):
        yield title
        launches = [event for event in source.events if isinstance(event, KernelLaunch | ExternCall)]
        yield from _indented(_repeated(f"{kernel_name(event)}: {_behind(event)}" for event in launches))


def _sources(record: CompileRecord) -> Iterator[tuple[str, GeneratedSource]]:
    seen: Counter[str] = Counter()
    for source in record.code:
        title = ", ".join([source.graph, *source.regions])
        seen[title] += 1
        yield title if seen[title] == 1 else f"{title}, {seen[title]}", source


def kernel_name(event: KernelLaunch | ExternCall) -> str:
    """Return the name of a kernel without its running number; for what has no kernel, ``call``."""
    return re.sub(r"_\d+$", "", event.kernel) if isinstance(event, KernelLaunch) else "call"


def _behind(event: CodeEvent) -> str:
    if event.ops is None:
        return "unknown"
    return ", ".join(sorted({op.inside or op.name for op in event.ops})) or "none"


def _passes(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield counters that moved."""
    return (f"{name}: {record.counters[name]}" for name in _COUNTERS if record.counters[name])


def _key(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield what the key of a cache has to hold: inputs, modes, settings that are not the default ones."""
    for call, inputs in enumerate(trace.inputs):
        where = "input" if len(trace.inputs) == 1 else f"call {call}, input"
        for number, said in enumerate(inputs):
            grad = " requires_grad" if said.endswith(" True") else ""
            yield f"{where} {number}: {said.removesuffix(' True').removesuffix(' False')}{grad}"
    yield from (f"{name}: {said}" for name, said in trace.modes.items())
    settings = {name: said for graph in trace.graphs for name, said in graph.settings.items()}
    # Paths are of one machine or one run.
    yield from (f"{name}: {said}" for name, said in sorted(settings.items()) if "/" not in said and "\\" not in said)


def _memory(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield the most memory that generated code holds, as a multiple of its inputs and outputs together."""
    for number, (title, source) in enumerate(_sources(record)):
        border = trace.bytes_at_border.get(number)
        try:
            peak = peak_of(source.events, {}).size
        except UnknownSizeError:
            border = None
        said = f"{peak / border:.2f} times inputs and outputs" if border else "sizes are not known"
        yield f"{title}: {said}"


FACTS: dict[str, Callable[[CompileRecord, CompileTrace], Iterator[str]]] = dict(
    zip(FACT_NAMES, (_regions, _ops, _order, _fusions, _passes, _memory, _key), strict=True)
)
"""The facts by name, in the order of a golden."""

DEFAULT_FACTS = ("regions", "ops", "order", "passes")
"""Those that do not change with a compiler's decisions below the graph."""
