"""What changed from one report to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_regional._text import plural
from pytest_regional.report.document import BAD, RunReport, golden_states
from pytest_regional.report.facts import Facts


@dataclass(frozen=True)
class Comparison:
    """What changed from one run to the next; each list holds lines for people.

    Attributes:
        new_failures: tests that end badly and did not, new tests among them.
        fixed: tests that ended badly and do not.
        changed: tests that end in another way, neither of them bad.
        gone: tests that the later run does not have.
        added: tests that the earlier run did not have and that do not end badly.
        counts: passing tests whose counters changed.
        slower: tests that compile for longer.
        goldens: those that something else became of, where both runs say it.
    """

    new_failures: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    slower: list[str] = field(default_factory=list)
    goldens: list[str] = field(default_factory=list)

    def lines(self) -> Iterable[str]:
        """Yield the comparison as text."""
        for title, name in _TITLES.items():
            found: list[str] = getattr(self, name)
            if found:
                yield f"{title} ({plural(len(found), 'test') if name != 'goldens' else len(found)}):"
                yield from (f"  {line}" for line in found)


_TITLES = {
    "new failures": "new_failures",
    "fixed": "fixed",
    "changed": "changed",
    "gone": "gone",
    "new": "added",
    "counters changed": "counts",
    "slower compiles": "slower",
    "goldens": "goldens",
}


def compared(old: RunReport, new: RunReport, *, ratio: float = 1.5, least: float = 0.5) -> Comparison:
    """Return what changed from ``old`` to ``new``.

    Args:
        old: the earlier run.
        new: the later one.
        ratio: how many times as long a test has to compile to be called slower.
        least: seconds that it has to take more, so that noise of quick compiles is not reported.
    """
    before, after = old.by_test(), new.by_test()
    found = Comparison()
    for key, fact in after.items():
        known = before.get(key)
        _compare_outcome(found, _name(key), known, fact)
        if known is not None:
            _compare_counters(found, _name(key), known, fact)
            _compare_times(found, _name(key), known, fact, ratio, least)
    _compare_goldens(found, old, new)
    found.gone.extend(f"{_name(key)}: {fact['outcome']} before" for key, fact in before.items() if key not in after)
    return found


def _compare_goldens(found: Comparison, old: RunReport, new: RunReport) -> None:
    before = golden_states(old)
    for key, state in golden_states(new).items():
        was = before.get(key, state)
        if (was, state) != ("written", "same") and was != state:
            found.goldens.append(f"{_golden_name(*key)}: {state}, {was} before")


def _golden_name(file: str, test: str, backend: str, name: str, device: str) -> str:
    if not test:
        return file
    return f"{file}, {test} ({', '.join(filter(None, [backend, name]))})" + (f" on {device}" if device else "")


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
        found.fixed.append(line)
    elif was is None:
        found.added.append(f"{name}: {ends}")
    elif was != ends:
        found.changed.append(line)


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
