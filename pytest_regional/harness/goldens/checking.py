"""``assert_golden``: what a compile did as lines of text, compared with the golden of the test, in sentences.

One fact is a line. A line below the name of a fact is ``subject: value``, or stands below a subject on a line without a
value. Subjects of one text differ, so that two texts can be compared line by line. The operators of a graph are
compared as sequences (:class:`difflib.SequenceMatcher`), kernels as sets of operators, all else by subject.
"""

from __future__ import annotations

import difflib
import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_regional._base.errors import RegionalError, RegionalRuntimeError, RegionalValueError
from pytest_regional._base.text import plural, unknown_name
from pytest_regional._torch import torch_version
from pytest_regional.harness import isolation
from pytest_regional.harness.codegen.events import CodeEvent, ExternCall, KernelLaunch, UnknownSizeError
from pytest_regional.harness.codegen.memory import peak_of
from pytest_regional.harness.compiling import refuse_no_program
from pytest_regional.harness.goldens.file import (
    FACT_NAMES,
    Entry,
    GoldenFile,
    GoldenKey,
    GoldensOfTest,
    Text,
    UsedGolden,
    Version,
    device_class,
)
from pytest_regional.harness.record import CompileRecord

if TYPE_CHECKING:
    from pytest_regional.harness.observe.trace import CompileTrace, GraphTrace
    from pytest_regional.harness.record import GeneratedSource
    from pytest_regional.harness.regional import Regional


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


def text_of(record: CompileRecord, names: Iterable[str]) -> Text:
    """Return the facts of ``record`` as text; ``names`` are as :func:`checked` returns them."""
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
    return list(zip(_numbered([graph.kind for graph in trace.graphs], " "), trace.graphs, strict=True))


def _numbered(titles: Iterable[str], between: str) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for title in titles:
        seen[title] += 1
        yield title if seen[title] == 1 else f"{title}{between}{seen[title]}"


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


def _ops_fact(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield the operators of each graph in order, with their regions."""
    for title, graph in _titles(trace):
        yield title
        yield from _indented(_repeated(f"{op.region}: {op.name}" if op.region else op.name for op in graph.ops))


def _repeated(lines: Iterable[str]) -> Iterator[str]:
    """Yield ``line x3`` for three equal lines in a row."""
    for line, same in itertools.groupby(lines):
        count = len(list(same))
        yield f"{line} x{count}" if count > 1 else line


def _order_fact(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
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


def _fusions_fact(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield the kernels and calls of each piece of generated code, with the operators behind them."""
    for title, source in _sources(record):
        yield title
        launches = [event for event in source.events if isinstance(event, KernelLaunch | ExternCall)]
        yield from _indented(_repeated(f"{kernel_name(event)}: {_operators_of(event)}" for event in launches))


def _sources(record: CompileRecord) -> Iterator[tuple[str, GeneratedSource]]:
    titles = (", ".join([source.graph, *source.regions]) for source in record.code)
    return zip(_numbered(titles, ", "), record.code, strict=True)


def kernel_name(event: KernelLaunch | ExternCall) -> str:
    """Return the name of a kernel without its running number; for what has no kernel, ``call``."""
    return re.sub(r"_\d+$", "", event.kernel) if isinstance(event, KernelLaunch) else "call"


def _operators_of(event: CodeEvent) -> str:
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
    zip(FACT_NAMES, (_regions, _ops_fact, _order_fact, _fusions_fact, _passes, _memory, _key), strict=True)
)
"""The facts by name, in the order of a golden."""

DEFAULT_FACTS = ("regions", "ops", "order", "passes")
"""Those that do not change with a compiler's decisions below the graph."""


#: Sentences that a failure shows; with the lines around them there are at most ten.
MOST = 7

#: Names that a sentence lists.
_NAMES = 5


def sentences(golden: Text, now: Text) -> list[str]:
    """Return what is otherwise, what names an operator first."""
    old, new = _blocks(golden), _blocks(now)
    found = [f"no fact {name!r} is asked for any more" for name in old if name not in new]
    found += [f"the golden has no fact {name!r}" for name in new if name not in old]
    both = old.keys() & new.keys()
    if "ops" in both:
        # Which operators there are is said operator by operator.
        for facts in (old, new):
            facts["regions"] = [re.sub(r": \d+ ops?(, |$)", ": ", line) for line in facts.get("regions", [])]
    for name in sorted(both, key=_IMPORTANCE.index):
        found += _COMPARED.get(name, _values)(old[name], new[name])
    return found


def in_full(golden: Text, now: Text) -> str:
    """Return all changed lines with three lines around each, as ``diff -u`` does."""
    return "\n".join(difflib.unified_diff(golden, now, "golden", "now", lineterm=""))


def _blocks(lines: Sequence[str]) -> dict[str, list[str]]:
    """Return the lines below each fact, or below each subject of one, such as a graph."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith(" "):
            found[next(reversed(found))].append(line[2:])
        else:
            found[line] = []
    return found


def _pairs(golden: Sequence[str], now: Sequence[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    old, new = _blocks(golden), _blocks(now)
    for subject in dict.fromkeys([*old, *new]):
        yield subject, old.get(subject, []), new.get(subject, [])


@dataclass(frozen=True)
class _Op:
    """An operator, its region, and the one before it."""

    name: str
    where: str
    after: str


def _ops(golden: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    for graph, old, new in _pairs(golden, now):
        if not old or not new:
            yield f"{graph}: {'a new graph' if new else 'the graph is gone'}, of {plural(len(new or old), 'line')}"
            continue
        yield from (f"{graph}: {sentence}" for sentence in _moves(_unrolled(old), _unrolled(new)))


def _unrolled(lines: Sequence[str]) -> list[_Op]:
    """Return each operator of ``region: operator x3``."""
    found: list[_Op] = []
    for line in lines:
        region, _, operator = line.rpartition(": ")
        name, count = _with_count(operator)
        for _ in range(count):
            found.append(_Op(name, region, found[-1].name if found else ""))
    return found


def _with_count(text: str) -> tuple[str, int]:
    repeated = re.fullmatch(r"(.+) x(\d+)", text)
    return (repeated[1], int(repeated[2])) if repeated else (text, 1)


def _moves(old: list[_Op], new: list[_Op]) -> Iterator[str]:
    """Yield what became of the operators of one graph."""
    matcher = difflib.SequenceMatcher(None, [(o.where, o.name) for o in old], [(o.where, o.name) for o in new], False)
    changed = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    gone = [op for _, i, j, _, _ in changed for op in old[i:j]]
    added = [op for _, _, _, i, j in changed for op in new[i:j]]
    yield from _borders_crossed(gone, added)
    for op, same in _taken(gone, added, lambda op: (op.name, op.where)):
        if op.after != same.after:
            yield f"{op.name} in {_place(op.where)} runs {_behind(same.after)}, and not {_behind(op.after)}"
    for op, other in _taken(gone, added, lambda op: (op.where, op.after)):
        yield f"{op.name} became {other.name} in {_place(op.where)}, {_behind(op.after)}"
    for (name, where), count in Counter((op.name, op.where) for op in gone).items():
        yield f"{_listed({name: count})} is gone from {_place(where)}"
    for (name, where), count in Counter((op.name, op.where) for op in added).items():
        before = next(op.after for op in added if op.name == name)
        yield f"{_listed({name: count})} is new in {_place(where)}, {_behind(before)}"


def _borders_crossed(gone: list[_Op], added: list[_Op]) -> Iterator[str]:
    """Yield which operators are in another region now; takes them off both lists."""
    moved: dict[tuple[str, str], Counter[str]] = {}
    for op in list(gone):
        same = next((other for other in added if other.name == op.name and other.where != op.where), None)
        stays = any(other.name == op.name and other.where == op.where for other in added)
        if same is not None and not stays:
            gone.remove(op)
            added.remove(same)
            moved.setdefault((op.where, same.where), Counter())[op.name] += 1
    for (before, after), names in moved.items():
        way = f"out of {_place(before)}" if before else ""
        way += (" and " if before and after else "") + (f"into {_place(after)}" if after else "")
        yield f"{_listed(names)} moved {way}"


def _taken(gone: list[_Op], added: list[_Op], key: Callable[[_Op], object]) -> Iterator[tuple[_Op, _Op]]:
    """Yield the operators with an equal key, and take them off both lists."""
    for op in list(gone):
        other = next((one for one in added if key(one) == key(op)), None)
        if other is not None:
            gone.remove(op)
            added.remove(other)
            yield op, other


def _behind(name: str) -> str:
    return f"after {name}" if name else "first"


def _place(region: str) -> str:
    return f"region {region}" if region else f"the code {OUTSIDE} of regions"


def _listed(names: Mapping[str, int]) -> str:
    said = [f"{name} x{count}" if count > 1 else name for name, count in names.items()]
    more = f" and {len(said) - _NAMES} more" if len(said) > _NAMES else ""
    return ", ".join(said[:_NAMES]) + more


@dataclass(frozen=True)
class _Kernel:
    name: str
    ops: frozenset[str]

    def __str__(self) -> str:
        return f"{self.name} ({_listed(Counter(sorted(self.ops)))})"


def _fusions(golden: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    for code, old, new in _pairs(golden, now):
        before, after = _kernels(old), _kernels(new)
        gone, added = [*(before - after).elements()], [*(after - before).elements()]
        if not gone and not added and old != new:
            yield f"{code}: the same kernels run in another order"
        for sentence in (*_split(gone, added, "fusion broke", "was"), *_split(added, gone, "new fusion", "is")):
            yield f"{code}: {sentence}"
        yield from (f"{code}: {sentence}" for sentence in _other_kernels(gone, added))
        # What is left has no counterpart; parts of a kernel that another kernel computes as well are a fusion.
        for kernel in added:
            is_part = any(kernel.ops <= other.ops for other in before)
            yield f"{code}: " + (f"fusion broke: one more kernel {kernel}" if is_part else f"a new kernel {kernel}")
        for kernel in gone:
            is_part = any(kernel.ops <= other.ops for other in after)
            yield f"{code}: " + (f"new fusion: one kernel {kernel} less" if is_part else f"no kernel {kernel} any more")


def _kernels(lines: Sequence[str]) -> Counter[_Kernel]:
    found: Counter[_Kernel] = Counter()
    for line in lines:
        name, _, ops = line.partition(": ")
        names, count = _with_count(ops)
        found[_Kernel(name, frozenset(names.split(", ")))] += count
    return found


def _split(whole: list[_Kernel], parts: list[_Kernel], what: str, verb: str) -> Iterator[str]:
    """Yield which kernels of ``whole`` are several in ``parts``; takes them off both lists."""
    for kernel in list(whole):
        pieces = [part for part in parts if part.ops & kernel.ops and not part.ops >= kernel.ops]
        if len(pieces) > 1 and kernel.ops <= frozenset().union(*(part.ops for part in pieces)):
            whole.remove(kernel)
            for part in pieces:
                parts.remove(part)
            into = " and ".join(str(part) for part in pieces)
            yield f"{what}: {kernel} {verb} one kernel, {'now' if verb == 'was' else 'and was'} {into}"


def _other_kernels(gone: list[_Kernel], added: list[_Kernel]) -> Iterator[str]:
    for kernel in list(gone):
        most = max(added, key=lambda other: len(other.ops & kernel.ops), default=None)
        if most is None or not most.ops & kernel.ops:
            continue
        gone.remove(kernel)
        added.remove(most)
        less, more = sorted(kernel.ops - most.ops), sorted(most.ops - kernel.ops)
        said = [f"{how} {_listed(Counter(ops))}" for how, ops in (("without", less), ("with", more)) if ops]
        name = f"kernel {kernel.name}" + (f" is {most.name} now" if most.name != kernel.name else "")
        yield f"{name}, {' and '.join(said) or 'of the same operators'}"


def _order(golden: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    for graph, old, new in _pairs(golden, now):
        if len(old) == len(new):
            changed = [(was, is_now) for was, is_now in zip(old, new, strict=True) if was != is_now]
            yield from (f"{graph}, at a border: {is_now}; was {was}" for was, is_now in changed)
        else:
            yield f"{graph}: {plural(len(new), 'call')} of regions, was {len(old)}"


def _values(golden: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    old, new = (
        {subject: value for subject, _, value in (line.partition(": ") for line in lines)} for lines in (golden, now)
    )
    for subject in dict.fromkeys([*old, *new]):
        was, is_now = old.get(subject), new.get(subject)
        if was != is_now:
            yield f"{subject}: {is_now or 'gone'}, was {was or 'not there'}"


_COMPARED = {"ops": _ops, "fusions": _fusions, "order": _order}

_IMPORTANCE = ("ops", "order", "fusions", "regions", "passes", "memory", "key")


UPDATE = "pytest --regional-update"


class GoldenError(RegionalError, AssertionError):
    """A compile differs from its golden, or has none.

    Attributes:
        in_full: the golden and the facts of this run, compared line by line.
    """

    def __init__(self, message: str, in_full: str = "") -> None:
        super().__init__(message)
        self.in_full = in_full


def assert_golden(
    regional: Regional,
    program: Any,
    inputs: tuple[Any, ...],
    *,
    facts: Iterable[str] | None = None,
    name: str = "",
    **options: Any,
) -> CompileRecord:
    """Do what :meth:`Regional.assert_golden` says; ``options`` are those of :meth:`Regional.run`."""
    goldens = regional.goldens
    if goldens is None:
        raise RegionalRuntimeError(
            "assert_golden needs a test with the marker regional_compile, run by pytest: the golden is in a file next "
            "to the test's"
        )
    if name and not re.fullmatch(r"[^\s|,]+( [^\s|,]+)*", name):
        raise RegionalValueError(f"name={name!r}: the name of a golden is one line, without '|' and ','")
    names = checked(DEFAULT_FACTS if facts is None else facts)
    if isinstance(program, CompileRecord):
        if inputs or options:
            raise TypeError("assert_golden(record) takes no inputs and no keywords of a run: the record has its own")
        record = program
    else:
        refuse_no_program("assert_golden", program)
        # As in a new process with empty caches: what the test compiled before changes no fact.
        regional.restart()
        regional.folder.mkdir(parents=True, exist_ok=True)
        with isolation.cache_folder(Path(tempfile.mkdtemp(prefix="golden-", dir=regional.folder))):
            record = regional.run(program, *inputs, **options)
    text = text_of(record, names)
    used = UsedGolden(
        GoldenKey(goldens.test, regional.backend, name), device_class(regional.device_under_test), torch_version()
    )
    file = GoldenFile.read(goldens.path)
    holding = file.holding(used.key, used.device, used.version)
    if holding is None:
        used = replace(used, state="missing")
    elif holding[1].text != text:
        used = replace(used, state="changed")
    if goldens.update:
        used = replace(used, text=None if used.state == "same" else text)
        if goldens.used.get(name, used) != used:
            raise RegionalValueError(
                f"two goldens of {goldens.test} differ and have one name, {name!r}: give each its own, name=..."
            )
    goldens.used[name] = used
    if holding is None and not goldens.update:
        raise GoldenError(_missing(goldens, file, used))
    if holding is not None and used.state == "changed" and not goldens.update:
        version, entry = holding
        raise GoldenError(_otherwise(goldens, used, version, entry, text), in_full(entry.text, text))
    return record


def _missing(goldens: GoldensOfTest, file: GoldenFile, used: UsedGolden) -> str:
    entries = file.goldens.get(used.key, {})
    known = [f"from torch {_said(version)} on {device}" for device, found in entries.items() for version in found]
    there = f"It is there {', '.join(known)}. " if known else ""
    return (
        f"{goldens.shown} has no golden of {used.key} for torch {_said(used.version)} on {used.device}. {there}"
        f"'{UPDATE}' writes it; review and commit the file"
    )


def _otherwise(goldens: GoldensOfTest, used: UsedGolden, version: Version, entry: Entry, text: Text) -> str:
    found = sentences(entry.text, text) or ["the same facts in another order"]
    lines = found[:MOST]
    if len(found) > MOST:
        lines.append(f"and {plural(len(found) - MOST, 'more difference')}; -v shows all")
    since = f"from torch {_said(version)}" + (f", now {_said(used.version)}" if version != used.version else "")
    return "\n".join(
        [
            f"compiled otherwise than the golden ({goldens.shown}:{entry.line}, {since}, {used.device}):",
            *(f"  {line}" for line in lines),
            f"If that is intended: {UPDATE}",
        ]
    )


def _said(version: Version) -> str:
    return ".".join(map(str, version))
