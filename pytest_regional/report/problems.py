"""What a CI service shows of a run: tests that ended badly, the worst first, and findings, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_regional.report.document import BAD, OUTCOMES, column_of
from pytest_regional.report.facts import CodeLine, Facts


def bad_tests(facts: Iterable[Facts]) -> list[Facts]:
    """Return the facts of tests that ended badly: the worst ending first, in one ending by name."""
    bad = [fact for fact in facts if fact["outcome"] in BAD]
    return sorted(bad, key=lambda fact: (OUTCOMES.index(fact["outcome"]), fact["test"], column_of(fact)))


def title_of(fact: Facts) -> str:
    """Return what ended how, in a line."""
    phase = fact.get("phase", "call")
    where = "" if phase == "call" else f" in its {phase}"
    return f"{fact['test']} on {column_of(fact)}: {fact['outcome']}{where}"


def blame_of(fact: Facts) -> list[str]:
    """Return what is to blame, a sentence each; nothing where it was not looked for or not found."""
    sentences = [one["sentence"] for one in fact.get("culprits", ())]
    return sentences or [one for one in (fact.get("blame"),) if one]


def kept_code(fact: Facts) -> list[CodeLine]:
    """Return the lines of generated code that the failure concerns, of files in ``--regional-report=DIR/`` alone.

    Others are in pytest's directory for temporary files, where nobody finds them who reads a report elsewhere.
    """
    return [one for one in fact.get("generated_code", ()) if "file" in one]


def message_of(fact: Facts, lines: int) -> str:
    """Return the first ``lines`` of what went wrong."""
    said = (fact.get("message") or fact["failure"] or fact["outcome"]).strip().splitlines()
    return "\n".join([*said[:lines], *["..."] * (len(said) > lines)])


def message_and_blame(fact: Facts, lines: int) -> list[str]:
    """Return the first ``lines`` of what went wrong, and what is to blame if they do not say it."""
    said = message_of(fact, lines)
    return [*said.splitlines(), *(f"to blame: {sentence}" for sentence in blame_of(fact) if sentence not in said)]


@dataclass(frozen=True)
class FoundDefect:
    """A finding of a run, of all processes and tests that met it.

    Attributes:
        name: of its files, the same in every run.
        found: the smallest one's data, as a report holds it.
        unit: what was checked: ``program`` or ``sequence``.
        hits: how often it was met.
        fact: of the fuzz test that found it.
    """

    name: str
    found: dict[str, Any]
    unit: str
    hits: int
    fact: Facts

    @property
    def oracle(self) -> str:
        """The oracle that is violated; reports of earlier versions do not say it."""
        return str(self.found.get("oracle", "finding"))

    @property
    def script(self) -> str:
        """The path of its script, relative to the repository where it is in it."""
        return str(self.found.get("file") or self.found["script"])

    @property
    def place(self) -> tuple[str, int]:
        """File and line to show it at: of its fuzz test, or its script where that test is not in the repository."""
        return (self.fact["file"], self.fact["line"]) if self.fact.get("file") else (self.script, 1)


def findings_of(facts: Iterable[Facts]) -> Sequence[FoundDefect]:
    """Return the findings of fuzz tests by name; shards may find the same, of which the smallest is kept."""
    hits: Counter[str] = Counter()
    smallest: dict[str, tuple[dict[str, Any], Facts]] = {}
    for fact in facts:
        campaign = fact["fuzz"] or {"findings": ()}
        hits.update(campaign.get("hits", {}))
        for found in campaign["findings"]:
            known = smallest.get(found["name"])
            if known is None or found.get("size", 0) < known[0].get("size", 0):
                smallest[found["name"]] = (found, fact)
    return [
        FoundDefect(name, found, (fact["fuzz"] or {}).get("unit", "program"), hits[name], fact)
        for name, (found, fact) in sorted(smallest.items())
    ]
