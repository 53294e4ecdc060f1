"""One run as plain data: what ``--regional-report=FILE.json`` holds. The format is described in ``docs/reports.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_regional._text import plural
from pytest_regional.report.facts import Facts

#: Raised when the meaning of a report changes.
VERSION = 1

#: How tests end, the worst first.
OUTCOMES = (
    "crashed",
    "not finished",
    "error",
    "failed",
    "unexpected pass",
    "known failure",
    "passed",
    "skipped",
)

#: Endings that make a run fail.
BAD = frozenset({"crashed", "not finished", "error", "failed", "unexpected pass"})


class ReportError(ValueError):
    """A report file that cannot be read."""


@dataclass(frozen=True)
class RunReport:
    """A run, or several that were merged.

    Attributes:
        created: when it ended, in UTC, as ISO 8601.
        versions: of packages, by name.
        machine: the operating system, the processor and the number of its cores.
        options: what the run was asked for.
        tests: the facts of each marked test.
        lost_workers: workers of pytest-xdist that died.
        merged_from: how many runs it is made of.
    """

    created: str
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    options: Mapping[str, Any]
    tests: Sequence[Facts]
    lost_workers: int = 0
    merged_from: int = 1
    version: int = field(default=VERSION, init=False)

    def write(self, path: Path) -> None:
        """Write it to ``path``, whose folder is made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> RunReport:
        """Return the report in ``path``.

        Raises:
            ReportError: no file, no report, or one of a format that this version does not know; says which.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ReportError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ReportError(f"{path} is not JSON: {error}") from error
        if not isinstance(data, dict) or not isinstance(data.get("tests"), list):
            raise ReportError(f"{path} is no report: --regional-report=FILE.json writes one")
        if data.pop("version", None) != VERSION:
            raise ReportError(f"{path} has a format that this version does not know: it reads version {VERSION}")
        try:
            return RunReport(**data)
        except TypeError as error:
            raise ReportError(f"{path} is no report: {error}") from error

    def by_test(self) -> dict[tuple[str, str, str], Facts]:
        """Return the facts by test, backend and device."""
        return {key_of(fact): fact for fact in self.tests}


def key_of(fact: Facts) -> tuple[str, str, str]:
    """Return what makes facts those of the same test: its node id, the backend and the device."""
    return fact["test"], fact["backend"], fact["device"]


def merged(reports: Sequence[RunReport]) -> RunReport:
    """Return one report of several runs: of shards, or of machines.

    Where several hold one test, the facts of its worst ending are kept. Versions and settings that differ stand side
    by side, with a comma.
    """
    tests: dict[tuple[str, str, str], Facts] = {}
    for report in reports:
        for fact in report.tests:
            known = tests.setdefault(key_of(fact), fact)
            if OUTCOMES.index(fact["outcome"]) < OUTCOMES.index(known["outcome"]):
                tests[key_of(fact)] = fact
    return RunReport(
        created=max(report.created for report in reports),
        versions=_joined(report.versions for report in reports),
        machine=_joined(report.machine for report in reports),
        options=_joined(report.options for report in reports),
        tests=list(tests.values()),
        lost_workers=sum(report.lost_workers for report in reports),
        merged_from=sum(report.merged_from for report in reports),
    )


def _joined(several: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for values in several:
        for name, value in values.items():
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return {name: values[0] if len(values) == 1 else ", ".join(map(str, values)) for name, values in found.items()}


@dataclass(frozen=True)
class Comparison:
    """What changed from one run to the next; each list holds lines for people.

    Attributes:
        new_failures: tests that end badly and did not, new tests among them.
        mended: tests that ended badly and do not.
        otherwise: tests that end in another way, neither of them bad.
        gone: tests that are there no more.
        added: tests that were not there and do not end badly.
        counts: tests of which counters moved otherwise.
        slower: tests that compile for longer.
    """

    new_failures: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    slower: list[str] = field(default_factory=list)

    def lines(self) -> Iterable[str]:
        """Yield the comparison as text."""
        for title, name in _TITLES.items():
            found: list[str] = getattr(self, name)
            if found:
                yield f"{title} ({plural(len(found), 'test')}):"
                yield from (f"  {line}" for line in found)


_TITLES = {
    "new failures": "new_failures",
    "mended": "mended",
    "end otherwise": "otherwise",
    "gone": "gone",
    "new": "added",
    "counters moved otherwise": "counts",
    "compile for longer": "slower",
}


def compared(old: RunReport, new: RunReport, *, ratio: float = 1.5, least: float = 0.5) -> Comparison:
    """Return what changed from ``old`` to ``new``.

    Args:
        old: the earlier run.
        new: the later one.
        ratio: how many times as long a test has to compile to be called slower.
        least: seconds that it has to take more, so that noise of quick compiles is not told.
    """
    before, after = old.by_test(), new.by_test()
    found = Comparison()
    for key, fact in after.items():
        known = before.get(key)
        _compare_outcome(found, _name(key), known, fact)
        if known is not None:
            _compare_counters(found, _name(key), known, fact)
            _compare_times(found, _name(key), known, fact, ratio, least)
    found.gone.extend(f"{_name(key)}: {fact['outcome']} before" for key, fact in before.items() if key not in after)
    return found


def _name(key: tuple[str, str, str]) -> str:
    test, backend, device = key
    return f"{test} on {backend} ({device})"


def _compare_outcome(found: Comparison, name: str, known: Facts | None, fact: Facts) -> None:
    was, ends = known["outcome"] if known else None, fact["outcome"]
    line = f"{name}: {ends}, {was} before" if was else f"{name}: {ends}, not there before"
    if ends in BAD:
        if was not in BAD:
            found.new_failures.append(line)
    elif was in BAD:
        found.mended.append(line)
    elif was is None:
        found.added.append(f"{name}: {ends}")
    elif was != ends:
        found.otherwise.append(line)


def _compare_counters(found: Comparison, name: str, known: Facts, fact: Facts) -> None:
    if {known["outcome"], fact["outcome"]} != {"passed"}:
        return
    names = dict.fromkeys([*known["counters"], *fact["counters"]])
    moved = [(one, known["counters"].get(one, 0), fact["counters"].get(one, 0)) for one in names]
    changed = ", ".join(f"{one} {now}, {was} before" for one, was, now in moved if was != now)
    if changed:
        found.counts.append(f"{name}: {changed}")


def _compare_times(found: Comparison, name: str, known: Facts, fact: Facts, ratio: float, least: float) -> None:
    was, now = known["compile_seconds"], fact["compile_seconds"]
    if now > was * ratio and now - was >= least:
        found.slower.append(f"{name}: {now:.2f} s, {was:.2f} s before")


__all__ = ["BAD", "OUTCOMES", "VERSION", "Comparison", "ReportError", "RunReport", "compared", "key_of", "merged"]
