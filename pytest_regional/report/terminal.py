"""The conformance table at the end of a run: suites down, backends across."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_regional._base.documents import DocumentError
from pytest_regional._base.limits import crash_markers
from pytest_regional._base.text import duration, plural, printable
from pytest_regional.report import document
from pytest_regional.report.ci import findings_of
from pytest_regional.report.document import BAD, rows_of, slowest_of, totals_of
from pytest_regional.report.facts import EXPLAINED, Facts, proof_totals

#: Compiles, and causes of one counter, that are shown.
_SHOWN = 3


def write(reporter: Any, facts: Sequence[Facts], lost_workers: int, chosen: str = "") -> None:
    """Write the table with pytest's own terminal writer; nothing when no marked test ran.

    Its title has ``chosen``, the options that left out tests by mark or name.
    """
    if not facts:
        return
    reporter.section(f"regional conformance: {chosen}" if chosen else "regional conformance", sep="=")
    columns, rows = rows_of(facts)
    _write_rows(reporter, columns, rows)
    reporter.write_line(totals_of(facts))
    compiles = slowest_of(facts, _SHOWN)
    if compiles:
        reporter.write_line("slowest compiles:")
    for seconds, what, test in compiles:
        reporter.write_line(f"  {seconds:6.2f} s  {what}, {test}")
    for name in EXPLAINED:
        causes: Counter[str] = Counter()
        for fact in facts:
            causes.update(fact["causes"].get(name, {}))
        if causes:
            reporter.write_line(f"{name.replace('_', ' ')}, mostly because of:")
        for cause, count in causes.most_common(_SHOWN):
            reporter.write_line(f"  {count:4}  {cause}")
    for line in proof_totals(facts):
        reporter.write_line(line, **({"red": True} if "refuted" in line else {}))
    _write_new_processes(reporter, facts)
    for line in document.advice(facts):
        reporter.write_line(line)
    for fact in facts:
        if fact["outcome"] == "crashed" and fact.get("phase", "call") != "call":
            reporter.write_line(f"crashed in its {fact['phase']}: {fact['test']}", red=True)
    repeated = [fact["test"] for fact in facts if fact.get("runs", 1) > 1]
    if repeated:
        named = ", ".join([*repeated[:_SHOWN], *(["..."] if len(repeated) > _SHOWN else [])])
        reporter.write_line(f"{plural(len(repeated), 'test')} ran more than once, and counts as it ended last: {named}")
    if lost_workers:
        reporter.write_line(f"{lost_workers} workers were lost: the totals are incomplete", red=True)


def _write_rows(reporter: Any, columns: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> None:
    first = max(len("suite"), *(len(name) for name, _ in rows))
    widths = [max(len(title), *(len(cells[i]) for _, cells in rows)) for i, title in enumerate(columns)]
    for name, cells in [("suite", columns), *rows]:
        reporter.write(name.ljust(first))
        for cell, width in zip(cells, widths, strict=True):
            bad = any(word in cell for word in BAD)
            reporter.write("  ")
            reporter.write(cell.ljust(width), **({"red": True} if bad else {}))
        reporter.write_line("")


def _write_new_processes(reporter: Any, facts: Sequence[Facts]) -> None:
    forked, interpreters = 0, Counter[str]()
    for fact in facts:
        started: dict[str, Any] = fact.get("new_processes", {"forked": 0, "interpreters": {}})
        forked += started["forked"]
        interpreters.update({why.partition("\n")[0]: count for why, count in started["interpreters"].items()})
    if not forked and not interpreters:
        return
    more = f", and {plural(interpreters.total(), 'interpreter')}, because:" if interpreters else ""
    reporter.write_line(f"new processes: {forked} forked from a server{more}")
    for why, count in interpreters.most_common():
        reporter.write_line(f"  {count:4}  {why}")


#: What is counted of the smallest one that shows a finding.
_PARTS = {"program": "step", "sequence": "event"}


def write_fuzzing(reporter: Any, facts: Sequence[Facts], findings: Path, since: float) -> None:
    """Write one line for each backend and mode, one block for each finding of the run that began at ``since``."""
    fuzzed = [fact for fact in facts if fact["fuzz"]]
    died = crash_markers(findings, 0.0 if fuzzed else since)
    if not fuzzed and not died:
        return
    reporter.section("regional fuzzing", sep="=")
    # Programs and sequences are counted apart, in one mode of one file too.
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for fact in fuzzed:
        campaign = fact["fuzz"] or {}
        group = f"{fact['backend']} ({fact['device']}), {fact['suite']}, mode {campaign['mode']}"
        groups.setdefault((group, campaign["unit"]), []).append(campaign)
    for (name, _), shards in sorted(groups.items()):
        _write_group(reporter, name, shards)
    for defect in findings_of(fuzzed):
        found = defect.found
        reporter.write_line(f"  {defect.name}: {found['title']}", red=True)
        reporter.write_line(
            f"    {plural(found['size'], _PARTS[defect.unit])}, discovered at {defect.unit} {found['discovered_at']}, "
            f"{plural(defect.hits, 'hit')}: {found['script']}"
        )
    for note in died:
        reporter.write_line(f"a process died while it checked the program in {note}:", red=True)
        reporter.write_line(_shown(note))


def _shown(note: Path) -> str:
    from pytest_regional.fuzz.findings import files

    try:
        return files.load(note).source
    except DocumentError as error:
        return printable(str(error))


def _write_group(reporter: Any, name: str, shards: Sequence[dict[str, Any]]) -> None:
    examples = sum(shard["examples"] for shard in shards)
    # Shards run at the same time: together they took as long as the longest.
    seconds = max(shard["seconds"] for shard in shards)
    checking = sum(max(shard["seconds"] - shard["reducing"], 1e-9) for shard in shards) / len(shards)
    found = {finding["name"] for shard in shards for finding in shard["findings"]}
    failed = sum(sum(shard["hits"].values()) for shard in shards)
    skipped_known = sum(shard["skipped_known"] for shard in shards)
    unit = shards[0]["unit"]
    reducing = sum(shard["reducing"] for shard in shards) / len(shards)
    beside = f" beside {duration(reducing)} of reducing" if reducing >= 1 else ""
    refused: Counter[str] = sum((Counter(shard["refused"]) for shard in shards), Counter())
    unconfirmed: Counter[str] = sum((Counter(shard["unconfirmed"]) for shard in shards), Counter())
    reporter.write_line(
        f"{name}: {plural(examples, unit)} in {duration(seconds)} ({examples / checking:.3g} a second{beside}), "
        f"{failed} failed, {plural(len(found), 'new finding')}"
        + (f", {skipped_known} skipped as known" if skipped_known else "")
        + (f", {refused.total()} that eager refuses" if refused else "")
        + (f", only mode {shards[0]['mode']}: {unconfirmed.total()}" if unconfirmed else "")
        + (", interrupted" if any(shard["interrupted"] for shard in shards) else ""),
        **({"red": True} if found else {}),
    )
    unclaimed: Counter[str] = sum((Counter(shard["unclaimed"]) for shard in shards), Counter())
    for name, count in unclaimed.most_common():
        reporter.write_line(f"  {count} not checked: they need {name}, which the backend disclaims")
    for reason, count in refused.most_common():
        reporter.write_line(f"  {count} refused by eager and skipped: {reason}")
    for violation, count in unconfirmed.most_common():
        reporter.write_line(f"  {count} that Dynamo's path does not show, so no finding: {violation}")
