"""What earlier campaigns kept, to be checked again: a store without new programs, for a run on each push."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_regional.fuzz.findings import strict_json
from pytest_regional.fuzz.findings.strict_json import Field, MalformedError
from pytest_regional.fuzz.store import Store
from pytest_regional.fuzz.workers.entries import Left, leave, read_entry
from pytest_regional.fuzz.workers.plan import Plan
from pytest_regional.fuzz.workers.status import CampaignStatus

#: Where a finding was seen that an earlier campaign kept: in no environment of this one, so each of them checks it.
EARLIER = "earlier"

#: AOTAutograd alone, whose findings are of all backends that use it.
_CAPTURE = "aot_eager"


@dataclass(frozen=True)
class Regression:
    """How much there is to be checked again.

    Attributes:
        findings: names of the known findings.
        programs: how many kept programs.
    """

    findings: frozenset[str]
    programs: int

    def fixed(self, status: CampaignStatus) -> list[str]:
        """Return titles of the known findings that fail in no environment any more."""
        return [
            row.title
            for row in status.findings
            if row.name in self.findings and (seen := _seen(row.results)) and set(seen) == {"fixed"}
        ]

    def unchecked(self, status: CampaignStatus) -> int:
        """Return how many of all these were not checked in every environment."""
        environments = len(status.plan.environments)
        results = sum(len(_seen(row.results)) for row in status.findings if row.name in self.findings)
        return len(self.findings) * environments - results + status.postponed


def _seen(results: Any) -> list[str]:
    return [outcome for environment, outcome in results.items() if environment != EARLIER]


def fill(store: Store, plan: Plan, findings: Path, source: Store | None) -> Regression:
    """Put into ``store`` what is to be checked again; return how much that is.

    Args:
        store: is empty.
        plan: of the run; it has no programs of its own.
        findings: a directory of findings, with kept programs in ``corpus/MODE`` below it.
        source: the store of campaigns whose findings and kept programs are checked too.
    """
    known = dict(_findings_in(findings))
    if source is not None:
        known |= {name: entry.data.get("finding") for name, entry in source.entries("findings").items()}
    backends = {*(part.backend for part in plan.parts), _CAPTURE}
    named = set()
    for name, data in known.items():
        entry = _entry(data, backends)
        if entry is not None and store.write("findings", name, entry, version=0):
            store.write("written", name, {}, version=0)  # it is not new
            named.add(name)
    programs = 0
    for part, mode in enumerate(part.mode for part in plan.parts):
        for name, program in (*_kept_in(findings, mode), *_kept_by(source, mode)):
            # A claim of its own for each: all of them are free.
            leave(store, f"kept-{part}-{name}", Left("", f"kept-{part}-{name}", part, program))
            programs += 1
    return Regression(frozenset(named), programs)


def _entry(data: Any, backends: Iterable[str]) -> dict[str, Any] | None:
    """Return a finding as an entry of the store, by which another process decides whether it is one."""
    try:
        at = Field(data).mapping()
        title = f"{at['oracle'].line()} ({at['stage'].line()}): {at['origin'].text()}"
        if at["backend"].line() not in backends:
            return None
    except (KeyError, MalformedError):
        return None
    return {"finding": data, "script": "", "title": title, "size": 0, "environment": EARLIER, "found": 0.0}


def _findings_in(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.glob("*.json")):
        try:
            yield path.stem, strict_json.read(path)
        except MalformedError:
            continue  # no finding: the command `findings` says so


def _kept_in(folder: Path, mode: str) -> Iterator[tuple[str, Any]]:
    for path in sorted((folder / "corpus" / mode).glob("*.json")):
        try:
            yield path.stem, strict_json.read(path)
        except MalformedError:
            continue


def _kept_by(source: Store | None, mode: str) -> Iterator[tuple[str, Any]]:
    for name, entry in source.entries("corpus").items() if source is not None else ():
        found = read_entry(Field.mapping, entry) or {}
        if "program" in found and "mode" in found and found["mode"].value == mode:
            yield name, found["program"].value


__all__ = ["EARLIER", "Regression", "fill"]
