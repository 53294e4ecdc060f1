"""What a compile did as lines of text, one fact a line; and the files of goldens: reading, choosing, writing.

A line below the name of a fact is ``subject: value``, or stands below a subject on a line without a value. Subjects of
one text differ, so that two texts can be compared line by line.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pytest_regional._base import files
from pytest_regional._base.errors import RegionalError, RegionalValueError
from pytest_regional._base.text import plural, shown, unknown_name
from pytest_regional.harness.codegen.events import ExternCall, KernelLaunch, UnknownSizeError
from pytest_regional.harness.codegen.memory import peak_of

if TYPE_CHECKING:
    from pytest_regional.harness.codegen import CodeEvent
    from pytest_regional.harness.observe.trace import CompileTrace, GraphTrace, PartitionCall
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
    """Return the facts of ``record`` as text.

    Raises:
        RegionalValueError: a name that is no fact, or nothing was compiled in it.
    """
    names = checked(facts)
    if record.trace is None or not record.trace.graphs or not record.graphs:
        raise RegionalValueError(
            "nothing was compiled in this run, so there is nothing to compare with a golden: the program was compiled "
            "before, or a cache answered. Give assert_golden the program, which it compiles with empty caches"
        )
    return tuple(line for name in names for line in (name, *_indented(FACTS[name](record, record.trace))))


def checked(facts: Iterable[str]) -> tuple[str, ...]:
    """Return the names in the order of :data:`FACTS`, once each.

    Raises:
        RegionalValueError: a name that is no fact, or none at all.
    """
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


# regions


def _regions(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield how large regions are, and their partitions."""
    for (title, graph), known in zip(_titles(trace), record.graphs, strict=False):
        for region in known.regions:
            calls = [step for step in graph.steps if not isinstance(step, str) and step.region == region.name]
            configs = [f"{name}={value}" for name, value in sorted(region.configs.items())]
            said = [plural(len(region.ops), "op"), plural(region.partitions, "partition"), *_shared(calls), *configs]
            yield f"{title}, {region.name}: {', '.join(said)}"
        outside = sum(op.region is None for op in graph.ops)
        yield f"{title}, {OUTSIDE}: {plural(outside, 'op')}"


def _shared(calls: Sequence[PartitionCall]) -> Iterator[str]:
    for owner, count in Counter(call.shares for call in calls if call.shares).items():
        yield f"{count} shared with {owner}"


# ops


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


# order


def _order(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield what runs before and after each call of a partition, or each stretch of a region."""
    for title, graph in _titles(trace):
        steps = [step if isinstance(step, str) else f"[{step.region}]" for step in graph.steps] or _stretches(graph)
        borders = [place for place, step in enumerate(steps) if step.startswith("[")]
        if not borders:
            continue
        yield title
        for place in borders:
            around = (steps[place - 1] if place else "start", steps[place], *(steps[place + 1 : place + 2] or ["end"]))
            yield "  " + " > ".join(around)


def _stretches(graph: GraphTrace) -> list[str]:
    names = (f"[{op.region}]" if op.region else op.name for op in graph.ops)
    return [one for name, same in itertools.groupby(names) for one in ([name] if name[0] == "[" else list(same))]


# fusions


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


# passes, key, memory


def _passes(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield counters that moved."""
    return (f"{name}: {record.counters[name]}" for name in _COUNTERS if record.counters[name])


def _key(record: CompileRecord, trace: CompileTrace) -> Iterator[str]:
    """Yield what the key of a cache has to hold: inputs, modes, settings that are not the default ones."""
    for call, inputs in enumerate(trace.inputs):
        where = "input" if len(trace.inputs) == 1 else f"call {call}, input"
        yield from (f"{where} {number}: {_input(said)}" for number, said in enumerate(inputs))
    yield from (f"{name}: {said}" for name, said in trace.modes.items())
    yield from (f"{name}: {said}" for name, said in sorted(_settings(trace).items()))


def _input(said: str) -> str:
    if said.endswith(" True"):
        return said.removesuffix(" True") + " requires_grad"
    return said.removesuffix(" False")


def _settings(trace: CompileTrace) -> dict[str, str]:
    """Return settings by name, without paths, which are of one machine or one run."""
    known = {name: said for graph in trace.graphs for name, said in graph.settings.items()}
    return {name: said for name, said in known.items() if "/" not in said and "\\" not in said}


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


Fact = Callable[["CompileRecord", "CompileTrace"], Iterator[str]]

FACTS: dict[str, Fact] = {
    "regions": _regions,
    "ops": _ops,
    "order": _order,
    "fusions": _fusions,
    "passes": _passes,
    "memory": _memory,
    "key": _key,
}
"""The facts by name, in the order of a golden: those of :data:`FACT_NAMES`."""

DEFAULT_FACTS = ("regions", "ops", "order", "passes")
"""Those that do not change with a compiler's decisions below the graph."""


Version = tuple[int, int]
"""Major and minor number of torch."""

Text = tuple[str, ...]
"""A golden: names of facts, and below each its lines, indented."""

FACT_NAMES = ("regions", "ops", "order", "fusions", "passes", "memory", "key")
"""The facts in the order of a golden; the beginning of this module says what each is."""

TEST, ENTRY, SEPARATOR = "=== ", "--- ", " | "

HEADER = (
    "# What compiles did: pytest-regional compares with it (docs/goldens.md). `pytest --regional-update` writes it.\n"
)

_VERSION = re.compile(r"from torch (\d+)\.(\d+)")
_CONFLICT = re.compile(r"(<<<<<<<|>>>>>>>|\|\|\|\|\|\|\|)( |$)|=======$")


class GoldenFileError(RegionalError, ValueError):
    """A file of goldens that is not understood; the message names it, the line, and what to do."""


class GoldenKey(NamedTuple):
    """Which golden: the test without backend and device, the backend, and a name where a test has several."""

    test: str
    backend: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.test} ({', '.join(filter(None, [self.backend, self.name]))})"


class Entry(NamedTuple):
    """A text, and the line of the file that its header is on; 0 for what is not yet in a file."""

    text: Text
    line: int = 0


@dataclass
class GoldenFile:
    """The goldens of one test file.

    Attributes:
        comment: what stands above the first test.
        goldens: by golden, by device class, by version: the text.
    """

    comment: str = HEADER
    goldens: dict[GoldenKey, dict[str, dict[Version, Entry]]] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> GoldenFile:
        """Return what ``path`` holds; nothing where there is no such file.

        Raises:
            GoldenFileError: it is damaged, or cannot be read.
        """
        if not path.exists():
            return GoldenFile()
        try:
            text = files.text_of(path)
        except RegionalValueError as error:
            raise GoldenFileError(str(error)) from error
        return _Parser(path).parsed(text)

    def holding(self, key: GoldenKey, device: str, version: Version) -> tuple[Version, Entry] | None:
        """Return the entry that holds for a version of torch, and its version: the last that is not later."""
        entries = self.goldens.get(key, {}).get(device, {})
        known = max((one for one in entries if one <= version), default=None)
        return None if known is None else (known, entries[known])

    def put(self, key: GoldenKey, device: str, version: Version, text: Text) -> None:
        """Have ``text`` hold from ``version`` on; entries of other versions stay, unless they say the same twice."""
        entries = self.goldens.setdefault(key, {}).setdefault(device, {})
        entries[version] = Entry(text)
        before: Text | None = None
        for one in sorted(entries):
            if entries[one].text == before:
                del entries[one]
            else:
                before = entries[one].text

    def remove(self, key: GoldenKey, device: str | None = None) -> None:
        """Remove a golden, of one device class or of all."""
        if device is not None:
            self.goldens[key].pop(device, None)
        if device is None or not self.goldens[key]:
            del self.goldens[key]

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n" if self.goldens else ""

    def _lines(self) -> Iterator[str]:
        if self.comment:
            yield self.comment.rstrip("\n")
        test = None
        for key in sorted(self.goldens):
            if key.test != test:
                yield f"\n{TEST}{key.test}"
            test = key.test
            yield from self._entries(key)

    def _entries(self, key: GoldenKey) -> Iterator[str]:
        """Yield the entries of one golden; what is the same on several classes of devices once."""
        devices: dict[tuple[Version, Text], list[str]] = {}
        for device, entries in sorted(self.goldens[key].items()):
            for version, entry in entries.items():
                devices.setdefault((version, entry.text), []).append(device)
        for (version, text), names in sorted(devices.items(), key=lambda item: (item[0][0], item[1])):
            parts = [key.backend, key.name, f"from torch {version[0]}.{version[1]}", ", ".join(names)]
            yield ENTRY + SEPARATOR.join(filter(None, parts))
            yield from text


class _Parser:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = GoldenFile(comment="")
        self._test = ""
        self._headers: dict[tuple[GoldenKey, str, Version], int] = {}
        self._entry: list[str] | None = None

    def parsed(self, text: str) -> GoldenFile:
        entries: dict[int, tuple[str, list[str]]] = {}
        for number, line in enumerate(text.split("\n"), 1):
            if _CONFLICT.match(line):
                self._wrong(number, line, "a merge conflict: keep one side, then run pytest --regional-update")
            if line.startswith(TEST):
                self._test, self._entry = line.removeprefix(TEST), None
            elif line.startswith(ENTRY):
                self._note_header(line, number)
                entries[number] = line, []
                self._entry = entries[number][1]
            elif line.strip():
                self._take(line, number)
        for number, (header, lines) in entries.items():
            if not lines:
                self._wrong(number, header, "no facts below it: delete the line, and run pytest --regional-update")
        for (key, device, version), number in self._headers.items():
            known = self._file.goldens.setdefault(key, {}).setdefault(device, {})
            known[version] = Entry(tuple(entries[number][1]), number)
        return self._file

    def _take(self, line: str, number: int) -> None:
        """Take a line that is no header."""
        indented = line.startswith("  ")
        if not self._test and line.startswith("#"):
            self._file.comment += f"{line}\n"
        elif self._entry is None:
            self._wrong(number, line, f"expected a line that begins with {TEST!r}, then one that begins with {ENTRY!r}")
        elif line in FACT_NAMES or (indented and self._entry):
            self._entry.append(line)
        else:
            self._wrong(
                number, line, f"expected the name of a fact ({', '.join(FACT_NAMES)}), or an indented line below one"
            )

    def _note_header(self, line: str, number: int) -> None:
        parts = line.removeprefix(ENTRY).split(SEPARATOR)
        version = _VERSION.fullmatch(parts[-2]) if len(parts) in (3, 4) and all(parts) else None
        if version is None:
            self._wrong(number, line, f"expected {ENTRY}BACKEND{SEPARATOR}from torch 2.13{SEPARATOR}DEVICES")
        if not self._test:
            self._wrong(number, line, f"expected a line {TEST}TEST before it")
        key = GoldenKey(self._test, parts[0], parts[1] if len(parts) == 4 else "")
        for device in parts[-1].split(", "):
            place = key, device, (int(version[1]), int(version[2]))
            if place in self._headers:
                self._wrong(number, line, f"the same golden as in line {self._headers[place]}: delete one of them")
            self._headers[place] = number

    def _wrong(self, number: int, line: str, why: str) -> NoReturn:
        raise GoldenFileError(f"{self._path}:{number}: {shown(line)!r}: {why}")
