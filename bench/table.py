"""The table of measurements: how rows are written, and where in ``docs/benchmarks.md``."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.rows.row import Row

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGINS, ENDS = "<!-- table begins -->", "<!-- table ends -->"
COLUMNS = ("Row", "Ours", "Against", "Figure (lowest to highest)", "Turns", "Target", "")


def markdown(rows: Iterable[Row]) -> str:
    """Return the table."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *map(cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cells(row: Row) -> tuple[str, ...]:
    """Return one line of the table."""
    claim = row.claim
    target = claim.target.text if claim.target else ""
    if row.error:
        return claim.name, claim.ours, claim.theirs, f"failed: {_in_a_cell(row.error)}", "", target, "failed"
    sides = (_side(claim.ours, row.ours, claim.unit), _side(claim.theirs, row.theirs, claim.unit))
    turns = str(len(row.figures))
    return claim.name, *sides, _figure(row), turns, target, {True: "met", False: "missed", None: ""}[row.met]


def _side(what: str, values: Sequence[float], unit: str) -> str:
    return f"{what}: {statistics.median(values):.3g} {unit}"


def _figure(row: Row) -> str:
    low, middle, high = (row.claim.style.format(value) for value in (min(row.figures), row.median, max(row.figures)))
    return f"{middle} ({low} to {high})" + (f"; {row.note}" if row.note else "")


def _in_a_cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:200]


def heading(rounds: int) -> str:
    """Say where, when and with what the rows were measured."""
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "triton", "pytest", "pytest-xdist")]
    where = f"{os.cpu_count()} cores ({_processor()}), {platform.system()}, no GPU used"
    return f"{date.today()}, {where}, Python {platform.python_version()}, {', '.join(versions)}, {rounds} rounds."


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def written_between(text: str, table: str) -> str:
    """Return the page's ``text`` with ``table`` in place of what stands between the two marks.

    Raises:
        ValueError: the page has not exactly one of each mark, in order.
    """
    if (text.count(BEGINS), text.count(ENDS)) != (1, 1) or text.index(BEGINS) > text.index(ENDS):
        raise ValueError(f"the page needs one {BEGINS} and, below it, one {ENDS}")
    before, _, rest = text.partition(BEGINS)
    _, _, after = rest.partition(ENDS)
    return f"{before}{BEGINS}\n{table.strip()}\n{ENDS}{after}"


def plain(row: Row) -> dict[str, Any]:
    """Return all that was measured, as JSON has it."""
    numbers = {"ours": row.ours, "theirs": row.theirs, "figures": row.figures}
    claim = dataclasses.asdict(row.claim)
    if row.claim.target:  # JSON knows no infinity
        claim["target"] = row.claim.target.text
    return {**claim, "values": numbers, "note": row.note, "error": row.error, "met": row.met}
