"""``python -m suites.history [--json]``: all known bugs, as a table for people or as data."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from .known_bugs import BACKENDS, KnownBug, all_bugs

#: The versions of torch that the table was measured on.
VERSIONS = ("2.11.0", "2.13.0", "2.15.0")


def as_data(bugs: list[KnownBug]) -> list[dict[str, Any]]:
    """Return plain data: for each bug its names, class, layer, and by version of torch the backends that have it."""
    return [
        {
            "id": bug.id,
            "number": bug.number,
            "name": bug.name,
            "title": bug.title,
            "class": bug.kind,
            "layer": bug.layer,
            "notices": bug.notices,
            "device": bug.marks.get("device", "cpu"),
            "stands": {version: [b for b in BACKENDS if bug.stands(b, version)] for version in VERSIONS},
            "check": f"suites/history/{bug.check.__module__.rpartition('.')[2]}.py::test_known_bug[{bug.id}]",
        }
        for bug in bugs
    ]


def by_class(bugs: list[KnownBug]) -> Iterator[str]:
    """Yield the lines of a Markdown table: classes, and how many bugs of each stand in each version."""
    yield f"| class | bugs | {' | '.join(VERSIONS)} |"
    yield "|---|---|" + "---|" * len(VERSIONS)
    for kind in [*sorted({bug.kind for bug in bugs}), None]:
        chosen = [bug for bug in bugs if kind in (bug.kind, None)]
        counts = [sum(bug.stands_in(version) for bug in chosen) for version in VERSIONS]
        yield f"| {kind or 'all'} | {len(chosen)} | {' | '.join(map(str, counts))} |"


def by_bug(bugs: list[KnownBug]) -> Iterator[str]:
    """Yield the lines of a Markdown table: one line for each bug."""
    yield f"| bug | class | layer | noticed by | {' | '.join(VERSIONS)} | |"
    yield "|---|---|---|---|" + "---|" * len(VERSIONS) + "---|"
    for bug in bugs:
        states = ["stands" if bug.stands_in(version) else "" for version in VERSIONS]
        name = f"#{bug.number}" if bug.number else f"`{bug.name}.py`"
        yield f"| {name} | {bug.kind} | {bug.layer} | {bug.notices} | {' | '.join(states)} | {bug.title} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m suites.history", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print all bugs as data")
    bugs = all_bugs()
    if parser.parse_args().json:
        print(json.dumps(as_data(bugs), indent=1))
    else:
        print("\n".join([*by_class(bugs), "", *by_bug(bugs)]))


if __name__ == "__main__":
    main()
