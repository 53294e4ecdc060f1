"""Measure what the documentation claims about speed: ``python -m bench``, or ``make bench``.

Every row times two things in turns and shows the median of what the turns gave, with its spread. ``--rows NAME,NAME``
measures some, ``--rounds N`` sets how many turns. The table of all rows is written into ``docs/benchmarks.md``, where
it has five turns at least and no row failed.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import rows, table
from bench.child import RUNNING, measured_apart
from bench.rows.row import Claim, Row

#: What the page shows is the median of so many turns at least.
FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Group:
    """Rows that are measured together, on the second core ``beside`` another group if that is measured too."""

    claims: tuple[Claim, ...]
    measure: Callable[[int], list[Row]]
    beside: str = ""


def all_groups() -> dict[str, Group]:
    """Return what the table is made of, each measured in a process of its own."""
    return {
        name: Group(rows.module(name).CLAIMS, functools.partial(measured_apart, name), rows.BESIDE.get(name, ""))
        for name in rows.NAMES
    }


def measured(groups: Mapping[str, Group], rounds: int) -> list[Row]:
    """Measure all groups; return their rows in the order of the table."""
    found: dict[str, list[Row]] = {}

    def measure(names: Sequence[str]) -> None:
        for name in names:
            found[name] = rows_of(name, groups[name], rounds)

    alone = [name for name, group in groups.items() if group.beside not in groups]
    for name in alone:
        others = [other for other, group in groups.items() if group.beside == name]
        second_core = threading.Thread(target=measure, args=(others,))
        second_core.start()
        try:
            measure([name])
            second_core.join()
        except BaseException:
            RUNNING.end_all()
            second_core.join()
            raise
    return [row for name in groups for row in found[name]]


def rows_of(name: str, group: Group, rounds: int) -> list[Row]:
    """Measure a group; where that raises, its rows keep their places and say so."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    begin = time.perf_counter()
    try:
        found = group.measure(rounds)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other rows are not to be lost
        found = [Row(claim, error=f"{type(error).__name__}: {error}") for claim in group.claims]
    print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    return found


def main(
    arguments: Sequence[str] | None = None, groups: Mapping[str, Group] | None = None, page: Path = table.PAGE
) -> int:
    """Measure, print, write; return 1 where a row failed. A missed target is no failure."""
    groups = all_groups() if groups is None else groups
    options = _options(arguments, groups)
    begin = time.perf_counter()
    found = measured({name: group for name, group in groups.items() if name in options.rows}, options.rounds)
    shown = f"{table.heading(options.rounds)} All in {time.perf_counter() - begin:.0f} s.\n\n{table.markdown(found)}"
    print(shown)
    if options.json:
        options.json.write_text(json.dumps([table.plain(row) for row in found], indent=2) + "\n")
    failed = any(row.error for row in found)
    if options.write and (why := _not_for_the_page(options, groups, failed)):
        print(f"{page.name} is as it was: {why}", file=sys.stderr)
    elif options.write:
        page.write_text(table.written_between(page.read_text(), shown))
    return int(failed)


def _not_for_the_page(options: argparse.Namespace, groups: Mapping[str, Group], failed: bool) -> str:
    if set(options.rows) != set(groups):
        return "not all rows were measured"
    if options.rounds < FEWEST_ROUNDS:
        return f"the median of at least {FEWEST_ROUNDS} rounds is what it shows"
    return "a row failed" if failed else ""


def _options(arguments: Sequence[str] | None, groups: Mapping[str, Group]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(groups), help="names, with commas")
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="turns of each row (default: 5)")
    parser.add_argument(
        "--write",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write the table into docs/benchmarks.md, if all rows were measured, five times at least, and none failed",
    )
    parser.add_argument("--json", type=Path, help="keep all numbers in this file")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.rows if name not in groups]
    if unknown:
        parser.error(f"no row is named {', '.join(unknown)}; there are {', '.join(groups)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # raised where a row is waited for, as Ctrl-C is
    raise SystemExit(main())
