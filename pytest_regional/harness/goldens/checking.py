"""``assert_golden``: a record compared with the golden of the test that runs, and sentences about what differs.

The operators of a graph are compared as sequences (:class:`difflib.SequenceMatcher`), kernels as sets of operators,
all else by subject.
"""

from __future__ import annotations

import difflib
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_regional._base.errors import RegionalError, RegionalRuntimeError, RegionalValueError
from pytest_regional._base.text import plural
from pytest_regional._torch import torch_version
from pytest_regional.harness import isolation
from pytest_regional.harness.compiling import refuse_no_program
from pytest_regional.harness.goldens.facts import (
    DEFAULT_FACTS,
    OUTSIDE,
    Entry,
    GoldenFile,
    GoldenKey,
    Text,
    Version,
    checked,
    text_of,
)
from pytest_regional.harness.record import CompileRecord

if TYPE_CHECKING:
    from pytest_regional.harness.devices.device import DeviceUnderTest
    from pytest_regional.harness.regional import Regional


#: Sentences that a failure shows; with the lines around them there are at most ten.
MOST = 7

#: Names that a sentence lists.
_NAMES = 5


def sentences(golden: Text, now: Text) -> list[str]:
    """Return what is otherwise, what names an operator first."""
    old, new = _by_fact(golden), _by_fact(now)
    found = [f"no fact {name!r} is asked for any more" for name in old if name not in new]
    found += [f"the golden has no fact {name!r}" for name in new if name not in old]
    both = old.keys() & new.keys()
    if "ops" in both:
        # Which operators there are is said operator by operator.
        for facts in (old, new):
            facts["regions"] = [_without_count(line) for line in facts.get("regions", [])]
    for name in sorted(both, key=_IMPORTANCE.index):
        found += _COMPARED.get(name, _values)(old[name], new[name])
    return found


def in_full(golden: Text, now: Text) -> str:
    """Return all changed lines with three lines around each, as ``diff -u`` does."""
    return "\n".join(difflib.unified_diff(golden, now, "golden", "now", lineterm=""))


def _without_count(line: str) -> str:
    return re.sub(r": \d+ ops?(, |$)", ": ", line)


def _by_fact(text: Text) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text:
        if line.startswith(" "):
            found[next(reversed(found))].append(line[2:])
        else:
            found[line] = []
    return found


def _blocks(lines: Sequence[str]) -> dict[str, list[str]]:
    """Return the lines below each subject, such as a graph."""
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


# Operators


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
        repeated = re.fullmatch(r"(.+) x(\d+)", operator)
        name, count = (repeated[1], int(repeated[2])) if repeated else (operator, 1)
        for _ in range(count):
            found.append(_Op(name, region, found[-1].name if found else ""))
    return found


def _moves(old: list[_Op], new: list[_Op]) -> Iterator[str]:
    """Yield what became of the operators of one graph."""
    matcher = difflib.SequenceMatcher(None, [(o.where, o.name) for o in old], [(o.where, o.name) for o in new], False)
    changed = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    gone = [op for _, i, j, _, _ in changed for op in old[i:j]]
    added = [op for _, _, _, i, j in changed for op in new[i:j]]
    yield from _borders_crossed(gone, added)
    yield from _reordered(gone, added)
    yield from _replaced(gone, added)
    yield from (f"{name} is gone from {_place(where)}" for name, where in _counted(gone))
    yield from (f"{name} is new in {_place(where)}, {_after(added, name)}" for name, where in _counted(added))


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


def _reordered(gone: list[_Op], added: list[_Op]) -> Iterator[str]:
    """Yield which operators run at another place of the same region; takes them off both lists."""
    for op in list(gone):
        same = next((other for other in added if (other.name, other.where) == (op.name, op.where)), None)
        if same is not None:
            gone.remove(op)
            added.remove(same)
            if op.after != same.after:
                yield f"{op.name} in {_place(op.where)} runs {_behind(same.after)}, and not {_behind(op.after)}"


def _replaced(gone: list[_Op], added: list[_Op]) -> Iterator[str]:
    """Yield which operator took the place of which; takes them off both lists."""
    for op in list(gone):
        other = next((one for one in added if (one.where, one.after) == (op.where, op.after)), None)
        if other is not None:
            gone.remove(op)
            added.remove(other)
            yield f"{op.name} became {other.name} in {_place(op.where)}, {_behind(op.after)}"


def _counted(ops: Sequence[_Op]) -> Iterator[tuple[str, str]]:
    for (name, where), count in Counter((op.name, op.where) for op in ops).items():
        yield (f"{name} x{count}" if count > 1 else name), where


def _after(added: Sequence[_Op], name: str) -> str:
    return _behind(next(op.after for op in added if op.name == name.partition(" ")[0]))


def _behind(name: str) -> str:
    return f"after {name}" if name else "first"


def _place(region: str) -> str:
    return f"region {region}" if region else f"the code {OUTSIDE} of regions"


def _listed(names: Mapping[str, int]) -> str:
    said = [f"{name} x{count}" if count > 1 else name for name, count in names.items()]
    more = f" and {len(said) - _NAMES} more" if len(said) > _NAMES else ""
    return ", ".join(said[:_NAMES]) + more


# Fusions


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
        yield from (f"{code}: {sentence}" for sentence in _single_kernels(gone, added, before, after))


def _kernels(lines: Sequence[str]) -> Counter[_Kernel]:
    found: Counter[_Kernel] = Counter()
    for line in lines:
        name, _, ops = line.partition(": ")
        repeated = re.fullmatch(r"(.+) x(\d+)", ops)
        names, count = (repeated[1], int(repeated[2])) if repeated else (ops, 1)
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
        said = ([f"without {_listed(Counter(less))}"] if less else []) + (
            [f"with {_listed(Counter(more))}"] if more else []
        )
        name = f"kernel {kernel.name}" + (f" is {most.name} now" if most.name != kernel.name else "")
        yield f"{name}, {' and '.join(said) or 'of the same operators'}"


def _single_kernels(
    gone: list[_Kernel], added: list[_Kernel], before: Counter[_Kernel], after: Counter[_Kernel]
) -> Iterator[str]:
    """Yield kernels without a counterpart; parts of a kernel that another kernel computes as well are a fusion."""
    for kernel in added:
        is_part = any(kernel.ops <= other.ops for other in before)
        yield f"fusion broke: one more kernel {kernel}" if is_part else f"a new kernel {kernel}"
    for kernel in gone:
        is_part = any(kernel.ops <= other.ops for other in after)
        yield f"new fusion: one kernel {kernel} less" if is_part else f"no kernel {kernel} any more"


# Order, and what is by subject


def _order(golden: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    for graph, old, new in _pairs(golden, now):
        if len(old) == len(new):
            changed = [(was, is_now) for was, is_now in zip(old, new, strict=True) if was != is_now]
            yield from (f"{graph}, at a border: {is_now}; was {was}" for was, is_now in changed)
        else:
            yield f"{graph}: {plural(len(new), 'call')} of regions, was {len(old)}"


def _values(golden: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    old, new = (dict(_subject_and_value(line) for line in lines) for lines in (golden, now))
    for subject in dict.fromkeys([*old, *new]):
        was, is_now = old.get(subject), new.get(subject)
        if was != is_now:
            yield f"{subject}: {is_now or 'gone'}, was {was or 'not there'}"


def _subject_and_value(line: str) -> tuple[str, str]:
    subject, _, value = line.partition(": ")
    return subject, value


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


@dataclass(frozen=True)
class UsedGolden:
    """A golden that a test compared with, or that it is to write.

    Attributes:
        key: which one.
        device: the class of the device.
        version: of torch.
        text: what is to be written; ``None`` where goldens are compared with, or the golden is as it should be.
        state: ``same``, ``changed`` or ``missing``: how it compares with what the file holds.
    """

    key: GoldenKey
    device: str
    version: Version
    text: Text | None = None
    state: str = "same"


@dataclass
class GoldensOfTest:
    """The goldens of one test: where they are, and which it used.

    Attributes:
        path: the file.
        shown: its path for messages.
        test: the test without backend and device.
        update: whether goldens are written and not compared with.
        used: by name, those that the test compared with or is to write.
    """

    path: Path
    shown: str
    test: str
    update: bool
    used: dict[str, UsedGolden] = field(default_factory=dict)


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
    _check_name(name)
    names = checked(DEFAULT_FACTS if facts is None else facts)
    if isinstance(program, CompileRecord):
        _refuse_inputs(inputs, options)
        record = program
    else:
        refuse_no_program("assert_golden", program)
        record = _run_afresh(regional, program, inputs, options)
    text = text_of(record, names)
    key = GoldenKey(goldens.test, regional.backend, name)
    used = UsedGolden(key, device_class(regional.device_under_test), torch_version())
    file = GoldenFile.read(goldens.path)
    if goldens.update:
        _note(goldens, file, used, text)
    else:
        _compare(goldens, file, used, text)
    return record


def _run_afresh(regional: Regional, program: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> CompileRecord:
    """Compile and run as in a new process with empty caches: what the test compiled before changes no fact."""
    regional.restart()
    regional.folder.mkdir(parents=True, exist_ok=True)
    with isolation.cache_folder(Path(tempfile.mkdtemp(prefix="golden-", dir=regional.folder))):
        return regional.run(program, *inputs, **options)


def _refuse_inputs(inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    if inputs or options:
        raise TypeError("assert_golden(record) takes no inputs and no keywords of a run: the record has its own")


def _check_name(name: str) -> None:
    if name and not re.fullmatch(r"[^\s|,]+( [^\s|,]+)*", name):
        raise RegionalValueError(f"name={name!r}: the name of a golden is one line, without '|' and ','")


def _note(goldens: GoldensOfTest, file: GoldenFile, used: UsedGolden, text: Text) -> None:
    """Note what the golden is from now on."""
    earlier = goldens.used.get(used.key.name)
    holding = file.holding(used.key, used.device, used.version)
    state = _state(holding, text)
    new = replace(used, text=None if state == "same" else text, state=state)
    if earlier is not None and earlier != new:
        raise RegionalValueError(
            f"two goldens of {used.key.test} differ and have one name, {used.key.name!r}: give each its own, name=..."
        )
    goldens.used[used.key.name] = new


def _compare(goldens: GoldensOfTest, file: GoldenFile, used: UsedGolden, text: Text) -> None:
    holding = file.holding(used.key, used.device, used.version)
    state = _state(holding, text)
    goldens.used[used.key.name] = replace(used, state=state)
    if holding is None:
        raise GoldenError(_missing(goldens, file, used))
    version, entry = holding
    if state == "changed":
        raise GoldenError(_otherwise(goldens, used, version, entry, text), in_full(entry.text, text))


def _state(holding: tuple[Version, Entry] | None, text: Text) -> str:
    if holding is None:
        return "missing"
    return "same" if holding[1].text == text else "changed"


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


def device_class(device: DeviceUnderTest) -> str:
    """Return what goldens call a device: ``cpu``, ``cuda``, or ``cuda-emulated:h200``."""
    return f"{device.kind}:{device.profile}" if device.profile else device.kind
