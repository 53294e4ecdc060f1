"""The table of campaigns at the end of a run, and what they found, shards put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_regional._text import plural, printable
from pytest_regional.fuzz.budget import duration
from pytest_regional.fuzz.judging_notes import notes_of_the_dead
from pytest_regional.report.facts import Facts

#: What is counted of the smallest one that shows a finding.
_PARTS = {"program": "step", "history": "event"}


def write(reporter: Any, facts: Sequence[Facts], findings: Path, since: float) -> None:
    """Write one line for each backend and lane, one block for each finding; nothing when nothing was fuzzed.

    Args:
        reporter: pytest's terminal reporter.
        facts: of all tests.
        findings: the folder of findings.
        since: when the run began, in seconds since the epoch.
    """
    fuzzed = [fact for fact in facts if fact["fuzz"]]
    died = notes_of_the_dead(findings, 0.0 if fuzzed else since)
    if not fuzzed and not died:
        return
    reporter.section("regional fuzzing", sep="=")
    # Programs and histories are counted apart, in one lane of one file too.
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for fact in fuzzed:
        campaign = fact["fuzz"] or {}
        groups.setdefault((_group(fact), campaign["unit"]), []).append(campaign)
    for (name, _), shards in sorted(groups.items()):
        _write_group(reporter, name, shards)
    _write_findings(reporter, fuzzed)
    for note in died:
        reporter.write_line(f"a process died while it judged the program in {note}:", red=True)
        reporter.write_line(_shown(note))


def _shown(note: Path) -> str:
    from pytest_regional.fuzz import files

    try:
        return files.load(note).source
    except (files.ProgramFileError, OSError) as error:
        return printable(str(error))


def _group(fact: Facts) -> str:
    campaign = fact["fuzz"] or {}
    return f"{fact['backend']} ({fact['device']}), {fact['suite']}, lane {campaign['lane']}"


def _write_group(reporter: Any, name: str, shards: Sequence[dict[str, Any]]) -> None:
    examples = sum(shard["examples"] for shard in shards)
    # Shards run at the same time: together they took as long as the longest.
    seconds = max(shard["seconds"] for shard in shards)
    judging = sum(max(shard["seconds"] - shard["reducing"], 1e-9) for shard in shards) / len(shards)
    found = {finding["name"] for shard in shards for finding in shard["findings"]}
    met = sum(sum(shard["met"].values()) for shard in shards)
    passed_over = sum(shard["passed_over"] for shard in shards)
    unit = shards[0]["unit"]
    reducing = sum(shard["reducing"] for shard in shards) / len(shards)
    beside = f" beside {duration(reducing)} of reducing" if reducing >= 1 else ""
    refused: Counter[str] = sum((Counter(shard["refused"]) for shard in shards), Counter())
    reporter.write_line(
        f"{name}: {plural(examples, unit)} in {duration(seconds)} ({examples / judging:.3g} a second{beside}), "
        f"{met} failed, {plural(len(found), 'new finding')}"
        + (f", {passed_over} passed over as known" if passed_over else "")
        + (f", {refused.total()} that eager refuses" if refused else "")
        + (", interrupted" if any(shard["interrupted"] for shard in shards) else ""),
        **({"red": True} if found else {}),
    )
    unclaimed: Counter[str] = sum((Counter(shard["unclaimed"]) for shard in shards), Counter())
    for name, count in unclaimed.most_common():
        reporter.write_line(f"  {count} not judged: they need {name}, which the backend disclaims")
    for reason, count in refused.most_common():
        reporter.write_line(f"  {count} refused by eager and passed over: {reason}")


def _write_findings(reporter: Any, fuzzed: Sequence[Facts]) -> None:
    met: Counter[str] = Counter()
    smallest: dict[str, dict[str, Any]] = {}
    units: dict[str, str] = {}
    for shard in (fact["fuzz"] or {} for fact in fuzzed):
        met.update(shard["met"])
        for finding in shard["findings"]:
            known = smallest.get(finding["name"], finding)
            units[finding["name"]] = shard["unit"]
            smallest[finding["name"]] = min(known, finding, key=lambda one: int(one["size"]))
    for name, finding in sorted(smallest.items()):
        reporter.write_line(f"  {name}: {finding['title']}", red=True)
        reporter.write_line(
            f"    {plural(finding['size'], _PARTS[units[name]])}, "
            f"first seen at {units[name]} {finding['first_seen']}, "
            f"met {met[name]} times: {finding['script']}"
        )
