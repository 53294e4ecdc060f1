"""The table of the detection, and its place in ``docs/detection.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.faults.planting import Mutant
from tests.faults.results import Results
from tests.faults.verdict import Verdict

BEGIN, END = "<!-- detection: begin -->", "<!-- detection: end -->"


def rendered(results: Results, faults: Mapping[str, Mutant], odd: Mapping[str, Mutant]) -> str:
    """Return both tables as Markdown, with totals."""
    return "\n".join((*_totals(results, faults), "", *_faulty(results, faults), "", *_right(results, odd)))


def _totals(results: Results, faults: Mapping[str, Mutant]) -> Iterator[str]:
    for half in ("suites", "fuzz"):
        found = [halves[half] for name, halves in results.verdicts.items() if half in halves and name in faults]
        if found:
            killed = sum(verdict.outcome == "killed" for verdict in found)
            asked = sum(verdict.outcome != "not asked" for verdict in found)
            yield (
                f"- {half}: {killed} of {len(found)} faulty backends killed ({asked} have something that is meant to "
                f"notice them); {results.versions.get(half, '')}"
            )
    alarms = sum(len(found) for halves in results.alarms.values() for found in halves.values())
    asked_of_right = sum(number for halves in results.asked.values() for number in halves.values())
    yield f"- backends that are right: {alarms} alarms in {asked_of_right} tests and programs"


def _faulty(results: Results, faults: Mapping[str, Mutant]) -> Iterator[str]:
    yield "| Faulty backend | What is wrong | Killed by a suite | Killed by the fuzzer | Examples |"
    yield "|---|---|---|---|---|"
    for name, mutant in faults.items():
        halves = results.verdicts.get(name, {})
        suites, fuzz = halves.get("suites"), halves.get("fuzz")
        examples = str(fuzz.tried) if fuzz and fuzz.outcome != "not asked" else ""
        yield f"| `{name}` | {mutant.sentence} | {_by_test(suites)} | {_by_oracle(fuzz)} | {examples} |"


def _by_test(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    if verdict.kill:
        return f"`{verdict.kill.source.removeprefix('suites/')}`: {verdict.kill.error}"
    return _not_killed(verdict)


def _by_oracle(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    before = list(dict.fromkeys(alarm.source for alarm in verdict.others))
    remark = f" (by {', '.join(before)} first)" if before else ""
    if verdict.kill:
        return f"{verdict.kill.source}, mode {verdict.kill.mode}{remark}"
    return _not_killed(verdict) + (f" (by {', '.join(before)})" if before else "")


def _not_killed(verdict: Verdict) -> str:
    return f"**{verdict.outcome}**" if verdict.outcome != "not asked" else "nothing asks for it"


def _right(results: Results, odd: Mapping[str, Mutant]) -> Iterator[str]:
    yield "| Backend that is right | What is odd | Tests, alarms | Programs, alarms |"
    yield "|---|---|---|---|"
    sentences = {"reference": "nothing", **{name: mutant.sentence for name, mutant in odd.items()}}
    for name, sentence in sentences.items():
        cells = [_said(results, name, half) for half in ("suites", "fuzz")]
        yield f"| `{name}` | {sentence} | {' | '.join(cells)} |"


def _said(results: Results, name: str, half: str) -> str:
    if half not in results.alarms.get(name, {}):
        return "not run"
    found = results.alarms[name][half]
    sources = ", ".join(dict.fromkeys(f"`{alarm.source}`" for alarm in found))
    return f"{results.asked[name][half]}, {len(found)}" + (f" ({sources})" if sources else "")


def is_green(results: Results) -> bool:
    """Return whether nothing that was asked for survived, and nothing right was complained of."""
    verdicts = [verdict for halves in results.verdicts.values() for verdict in halves.values()]
    alarms = [alarm for halves in results.alarms.values() for found in halves.values() for alarm in found]
    return not alarms and all(verdict.outcome in ("killed", "not asked") for verdict in verdicts)


def write_between_marks(document: Path, text: str) -> None:
    """Put ``text`` between the marks in ``document``.

    Raises:
        ValueError: the document has no marks.
    """
    before, begin, rest = document.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} lacks {BEGIN} and {END}: the table has its place between them")
    document.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
