"""Which culprit the harness names for faulty backends: ``python -m tests.faults.blame.of_backends``.

Each faulty backend of ``tests/faults`` is given to the test that notices it (``tests/faults/kills.json``), under
``--regional-blame=deep``, in a process of its own. The table says which stage of the backend is named, and which one
the fault was planted in.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.blame import compiles
from pytest_regional.backends.adapters import ALTERNATIVES
from tests.faults import of_backends
from tests.faults.by_suites import ROOT
from tests.faults.of_backends import FAULTS

KILLS = ROOT / "tests/faults/kills.json"

#: Layers of a culprit that are stages of a backend.
OF_BACKEND = (
    *("backend", "region", "partitioning", "extraction", "sharing", "settings"),
    *("order", "call", "pass", "cache", "partitioner"),
)

#: Stages that name the place of a fault, by the module of ``tests/faults/of_backends`` that it is in.
PLACES = {
    "plans": ("partitioning",),
    "values": ("call",),
    "arithmetic": ("extraction",),
    "graphs": ("backend",),
    "sharing": ("sharing",),
    "configs": ("settings",),
    "order": ("order",),
    "caching": ("cache",),
    "passes": ("pass", "cache"),
}

#: Faults that are planted elsewhere than the others of their module.
ELSEWHERE = {
    # What belongs together is decided by what has to stay in order.
    **dict.fromkeys(("effects_unordered", "draws_unordered"), ("partitioning", "order")),
    # Repairs of what AOTAutograd's partitioner made, left out.
    **dict.fromkeys(
        ("draws_repeated_in_backward", "unused_draws_dropped", "unused_tuples_unknown", "merged_across_boundaries"),
        ("partitioner", "backend"),
    ),
    "symbols_missing": ("extraction",),
    "order_changes_each_time": ("order",),
    "compiled_twice": ("sharing", "partitioning"),
}

#: Stages that an option of the reference backend leaves out.
WITHOUT = {"share_identical": "sharing", "outer_cache": "cache"}


def searched(name: str, seconds: float) -> dict[str, Any]:
    """Run the test that notices a fault, and return what its report says of it."""
    test = json.loads(KILLS.read_text(encoding="utf-8"))[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="blame-") as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pytest", test, f"--regional-backend=tests.faults.backends:{name}"]
        command += ["--regional-device=cpu", "--regional-blame=deep", f"--regional-report={report}", "--maxfail=1"]
        try:
            subprocess.run(
                [*command, "-q", "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, check=False, timeout=seconds
            )
            tests = json.loads(report.read_text(encoding="utf-8"))["tests"]
        except (subprocess.TimeoutExpired, FileNotFoundError) as error:
            return {"fault": name, "layer": "none", "sentence": f"no report: {type(error).__name__}"}
    failed = [one for one in tests if one["outcome"] not in ("passed", "skipped")]
    found = next((culprit for one in failed for culprit in one.get("culprits", ())), None)
    if found is None:
        said = failed[0]["failure"][-200:] if failed else "nothing failed"
        return {"fault": name, "layer": "none", "sentence": f"nothing was searched for: {said}"}
    return {"fault": name, "test": failed[0]["test"], "wall": round(time.monotonic() - began, 1), **found}


def stage_of(row: dict[str, Any]) -> str:
    """Return the stage of the backend that a culprit names."""
    option = ALTERNATIVES.get(row.get("setting", "")) if row["layer"] == "backend" else None
    return WITHOUT[option] if option else row["layer"]


def theme_of(name: str) -> str:
    """Return the module of ``tests/faults/of_backends`` that a fault is in."""
    return next(theme for theme in PLACES if name in {one.name for one in getattr(of_backends, theme).FAULTS})


def is_named(row: dict[str, Any]) -> bool:
    """Tell whether a culprit names the place of the fault."""
    return stage_of(row) in ELSEWHERE.get(row["fault"], PLACES[theme_of(row["fault"])])


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield two tables, in Markdown: how many there are of each theme, and whose place is not named."""
    yield "| faults of | | layer right | place named |"
    yield "|---|---|---|---|"
    for theme in PLACES:
        some = [row for row in rows if theme_of(row["fault"]) == theme]
        yield f"| {theme} | {len(some)} | {sum(map(is_of_backend, some))} | {sum(map(is_named, some))} |"
    yield f"| all | {len(rows)} | {sum(map(is_of_backend, rows))} | {sum(map(is_named, rows))} |"
    yield ""
    yield "| place not named | what is wrong | culprit |"
    yield "|---|---|---|"
    for row in rows:
        if not is_named(row):
            yield f"| `{row['fault']}` | {FAULTS[row['fault']].sentence} | {row['sentence']} |"
    made = [len(row["experiments"]) for row in rows if "experiments" in row]
    took = [sum(one["seconds"] for one in row["experiments"]) for row in rows if "experiments" in row]
    yield ""
    compiled = statistics.median(compiles(row) for row in rows if "experiments" in row)
    cost = f"{statistics.median(took):.1f} s, {statistics.median(made):.0f} experiments and {compiled:.0f} compiles"
    yield f"median {cost}; torch {torch.__version__}"


def is_of_backend(row: dict[str, Any]) -> bool:
    """Tell whether a culprit is of a layer in which the backend works."""
    return row["layer"] in OF_BACKEND


def main() -> None:
    """Search, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of faults")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long one test may take")
    parser.add_argument("--json", type=Path, help="where the rows are written; those that are there are kept")
    parser.add_argument("--again", action="store_true", help="those of the file whose place is not named are not kept")
    options = parser.parse_args()
    if unknown := set(options.only or ()) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    rows = json.loads(options.json.read_text(encoding="utf-8")) if options.json and options.json.exists() else []
    rows = [row for row in rows if not options.again or is_named(row)]
    known = {row["fault"] for row in rows}
    # Those that sequences of cache operations alone notice have no test.
    tests = json.loads(KILLS.read_text(encoding="utf-8"))
    for name in FAULTS:
        if name not in tests or name in known or (options.only and name not in options.only):
            continue
        rows.append(searched(name, options.seconds))
        print(f"{name}: {rows[-1]['layer']}: {rows[-1]['sentence']}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    rows.sort(key=lambda row: list(FAULTS).index(row["fault"]))
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
