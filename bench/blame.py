"""Which culprit ``regional.blame`` names, for failures whose layer is known: ``python -m bench.blame``.

It takes the cases of ``suites/history`` that stand on a backend with this torch, whose layer the suite lists. Each is
searched in its own process, so that one that dies is one line of the table. ``python -m tests.faults.blame`` does the
same with planted faults.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pytest_regional._torch import torch_version
from suites.history.known_bugs import KnownBug, all_bugs

#: Layers of a culprit, by the layer that the suite lists with a bug.
LAYERS = {
    "dynamo": ("dynamo",),
    "aot_autograd": ("aot_autograd", "partitioner"),
    "inductor": (
        *("pass", "rewrite", "decomposition", "lowering", "fusion"),
        *("layout", "scheduling", "memory", "codegen", "cache", "region", "backend"),
    ),
    "regions": ("backend", "partitioner", "partitioning", "extraction", "sharing", "settings", "order", "call"),
}


def history(backend: str) -> list[KnownBug]:
    """Return the bugs that stand on a backend with this torch."""
    version = ".".join(map(str, torch_version()))
    return [bug for bug in all_bugs() if bug.stands(backend, version)]


def search(bug: KnownBug, backend: str, seconds: float) -> dict[str, Any]:
    """Search for the culprit of one bug, in this process."""
    from pytest_regional.testing import regional

    began = time.monotonic()
    with regional(backend, **{**bug.marks, "expects_regions": False}) as harness:
        culprit = harness.blame(bug.check, harness, check=lambda check, it: check(it), seconds=seconds)
    print(culprit.evidence, file=sys.stderr)
    return {"bug": bug.id, "listed": bug.layer, "wall": round(time.monotonic() - began, 1), **culprit.as_data()}


def searched(bugs: Sequence[KnownBug], backend: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Search for the culprit of each bug in a new process; yield what each printed."""
    for bug in bugs:
        command = [sys.executable, "-m", "bench.blame", "--backend", backend, "--one", bug.name]
        try:
            done = subprocess.run(
                [*command, "--seconds", str(seconds)], capture_output=True, text=True, timeout=5 * seconds
            )
        except subprocess.TimeoutExpired:
            yield {"bug": bug.id, "listed": bug.layer, "layer": "none", "sentence": "the process took too long"}
            continue
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if lines:
            yield json.loads(lines[-1])
        else:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            yield {"bug": bug.id, "listed": bug.layer, "layer": "none", "sentence": f"the process died: {last}"}


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table, in Markdown, and what it comes to."""
    yield "| bug | layer | culprit | experiments | seconds |"
    yield "|---|---|---|---|---|"
    for row in rows:
        right = "" if row["layer"] in LAYERS[row["listed"]] else " (**not** this layer)"
        cost = f"{len(row.get('experiments', ()))} | {row.get('wall', '')}"
        yield f"| {row['bug']} | {row['listed']}{right} | {row['sentence']} | {cost} |"
    right = [row for row in rows if row["layer"] in LAYERS[row["listed"]]]
    asked = [row for row in rows if row["listed"] == "inductor"]
    named = [row for row in asked if row in right and row["layer"] not in ("region", "backend")]
    seconds = [row["wall"] for row in rows if "wall" in row]
    yield ""
    yield f"layer right: {len(right)} of {len(rows)}; a step is named for {len(named)} of {len(asked)} of Inductor's"
    ended = [row for row in rows if row.get("experiments")]
    made = statistics.median(len(row["experiments"]) for row in ended)
    compiled = statistics.median(map(compiles, ended))
    of_inductor = statistics.median([compiles(row) for row in ended if row in asked] or [0])
    yield (
        f"median {statistics.median(seconds):.1f} s, {made:.0f} experiments and {compiled:.0f} compiles, "
        f"{of_inductor:.0f} for bugs of Inductor; torch {torch.__version__}"
    )


def compiles(row: dict[str, Any]) -> int:
    """Return how many experiments of a search generated code, the one included in which the failure came first."""
    return 1 + sum(one["compiled"] for one in row["experiments"])


def main() -> None:
    """Search, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--only", nargs="*", help="names of bugs")
    parser.add_argument("--one", help="one bug, in this process; prints JSON")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long one search may take")
    parser.add_argument("--json", type=Path, help="where the rows are written")
    options = parser.parse_args()
    bugs = history(options.backend)
    if options.one:
        (bug,) = (bug for bug in bugs if bug.name == options.one)
        print(json.dumps(search(bug, options.backend, options.seconds)))
        return
    rows = []
    chosen = [bug for bug in bugs if not options.only or bug.name in options.only]
    for row in searched(chosen, options.backend, options.seconds):
        rows.append(row)
        print(f"{row['bug']}: {row['listed']} -> {row['layer']}: {row['sentence']}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
