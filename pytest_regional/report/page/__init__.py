"""The report as one HTML file that needs no network: written from templates, drawn in the browser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_regional._files import dumps
from pytest_regional.report.document import BAD, OUTCOMES, SHOWN, RunReport, column_of, counter_totals, worst_margin
from pytest_regional.report.facts import Facts
from pytest_regional.report.page.boxes import MOST_NODES, boxes_of, positions

_FOLDER = Path(__file__).parent

#: Characters of what is drawn, and of failures, that a page holds: a browser opens a few hundred megabytes late or not
#: at all, and a telephone less. The worst endings come first.
MOST_DATA, MOST_FAILURES = 32_000_000, 8_000_000
_NOT_HERE = "Not in this page, which would be too large. It is in the JSON report: --regional-report=FILE.json"

#: Characters that have no place in a page: a test may print them, or have them in its failure.
_ESCAPES = {number: f"\\x{number:02x}" for number in (*range(32), 127) if chr(number) not in "\t\n\r"}


def write(report: RunReport, path: Path) -> None:
    """Write ``report`` to ``path``, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of a merged report, which may come from anywhere, texts may hold what has no UTF-8.
    path.write_text(html_of(report).translate(_ESCAPES), encoding="utf-8", errors="backslashreplace")


def html_of(report: RunReport) -> str:
    """Return the page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    tests = sorted(report.tests, key=lambda fact: (OUTCOMES.index(fact["outcome"]), fact["test"]))
    data, bare = _embedded(tests)
    return environment.get_template("report.html.j2").render(
        report=report,
        tests=tests,
        matrix=_matrix(tests),
        outcomes=[outcome for outcome in SHOWN if any(fact["outcome"] == outcome for fact in tests)],
        bad=sum(fact["outcome"] in BAD for fact in tests),
        totals=_totals(tests),
        is_bad=BAD.__contains__,
        style=(_FOLDER / "report.css").read_text(encoding="utf-8"),
        script=(_FOLDER / "report.js").read_text(encoding="utf-8"),
        failures=_failures(tests),
        data=data,
        bare=bare,
    )


def _matrix(tests: Sequence[Facts]) -> dict[str, Any]:
    columns = sorted({column_of(fact) for fact in tests})
    suites = sorted({fact["suite"] for fact in tests})
    counts = Counter((suite, column_of(fact), fact["outcome"]) for fact in tests for suite in (fact["suite"], "all"))
    cells = {
        suite: [[(o, counts[suite, column, o]) for o in SHOWN if counts[suite, column, o]] for column in columns]
        for suite in ("all", *suites)
    }
    return {"columns": columns, "rows": cells}


def _totals(tests: Sequence[Facts]) -> dict[str, Any]:
    return {
        "counters": {name: count for name, count in counter_totals(tests).items() if count},
        "worst_parity": worst_margin(tests),
        "compile_seconds": sum(fact["compile_seconds"] for fact in tests),
    }


def _drawn(fact: Facts) -> dict[str, Any]:
    """Return ``fact`` with a place for each node of its small graphs, and boxes of its large ones."""
    details = fact["details"]
    if not details:
        return dict(fact)
    return {
        **fact,
        "details": {**details, "graphs": [{**graph, **_layout(graph["nodes"])} for graph in details["graphs"]]},
    }


def _layout(nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(nodes) > MOST_NODES:
        return {"places": None, "boxes": boxes_of(nodes)}
    return {"places": positions(nodes), "boxes": None}


def _failures(tests: Sequence[Facts]) -> list[str]:
    """Return what each test says of its failure, until that is more than a page can hold."""
    left, texts = MOST_FAILURES, []
    for fact in tests:
        left -= len(fact["failure"])
        texts.append(fact["failure"] if left >= 0 or not fact["failure"] else _NOT_HERE)
    return texts


def _embedded(tests: Sequence[Facts]) -> tuple[str, int]:
    """Return what the script draws, and of how many tests that is nothing as the page would get too large.

    It is JSON that can stand inside a script element whatever texts are in it.
    """
    left, parts, bare = MOST_DATA, [], 0
    for fact in tests:
        part = _json(_drawn(fact)) if left > 0 else None
        if part is None or len(part) > left:
            bare += 1
            part = _json({"test": fact["test"], "outcome": fact["outcome"], "bare": True})
        else:
            left -= len(part)
        parts.append(part)
    return f"[{','.join(parts)}]", bare


def _json(data: Any) -> str:
    return dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


__all__ = ["column_of", "html_of", "write"]
