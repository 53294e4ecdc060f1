"""Which culprit ``regional.blame`` names, for failures whose layer is known: ``python -m bench.blame history``.

``history`` takes the cases of ``suites/history`` that stand on a backend with this torch, whose layer the suite lists.
Each is searched in a process of its own, so that one that dies is one line of the table. With ``--bisector`` PyTorch's
own bisector (``torch._inductor.compiler_bisector``) searches in place of ours: for a case that the backend ``inductor``
fails.

``planted`` takes the faults of ``tests.faults.blame.planted``, of which the wrong step is known, one after the other.
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
from pytest_regional.harness.blame.reproducing import failure_of
from suites.history.known_bugs import KnownBug, all_bugs
from tests.faults.blame.planted import FAULTS, Fault

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


def bisect(bug: KnownBug) -> dict[str, Any]:
    """Search for the culprit of one bug with PyTorch's bisector, in this process."""
    from torch._inductor.compiler_bisector import CompilerBisector

    from pytest_regional.testing import regional

    runs, began = 0, time.monotonic()
    with regional("inductor", **{**bug.marks, "expects_regions": False}) as harness:

        def is_right() -> bool:
            nonlocal runs
            runs += 1
            harness.reset()
            return not failure_of(lambda: bug.check(harness))

        if is_right():
            raise SystemExit(f"{bug.id} is right without the bisector")
        found = CompilerBisector.do_bisect(is_right)
    said = f"{found.backend} {found.subsystem or ''} {found.debug_info or ''}".strip() if found else "nothing"
    named = bool(found and found.debug_info)
    wall = round(time.monotonic() - began, 1)
    return {
        "bug": bug.id,
        "listed": bug.layer,
        "layer": "",
        "sentence": said,
        "named": named,
        "runs": runs,
        "wall": wall,
    }


def searched(
    bugs: Sequence[KnownBug], backend: str, seconds: float, options: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Search for the culprit of each bug in a new process; yield what each printed."""
    for bug in bugs:
        command = [sys.executable, "-m", "bench.blame", "history", "--backend", backend, "--one", bug.name, *options]
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


def table_of_bisector(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what PyTorch's bisector found, and what it comes to."""
    yield "| bug | layer | PyTorch's bisector | runs | seconds |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield f"| {row['bug']} | {row['listed']} | {row['sentence']} | {row.get('runs', '')} | {row.get('wall', '')} |"
    seconds = [row["wall"] for row in rows if "wall" in row]
    yield ""
    yield f"a step is named for {sum(row.get('named', False) for row in rows)} of {len(rows)}"
    yield f"median {statistics.median(seconds):.1f} s; torch {torch.__version__}"


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


def planted(fault: Fault, seconds: float) -> dict[str, Any]:
    """Search for the culprit of one planted fault, in this process, and judge it."""
    from pytest_regional.testing import regional

    began = time.monotonic()
    backend = fault.backend() if fault.backend else "inductor"
    with fault.plant(), regional(backend, "cpu", expects_regions=False) as harness:
        inputs = [harness.randn(*fault.shape, requires_grad=fault.grad) for _ in range(fault.inputs)]
        culprit = harness.blame(fault.program, *inputs, seconds=seconds).as_data()
    print(culprit["sentence"], file=sys.stderr)
    return {"bug": fault.name, **judged(fault, culprit), "wall": round(time.monotonic() - began, 1), **culprit}


def judged(fault: Fault, culprit: dict[str, Any]) -> dict[str, bool]:
    """Return whether layer and step are right; of several that are named, one of them has to be."""
    named = [culprit, *culprit["also"]]
    layer = any(one["layer"] in fault.layers for one in named)
    step = any(fault.step in said for one in named for said in (*one["steps"], one["setting"]))
    return {
        "layer_right": layer,
        "step_right": layer and step,
        "wrongly_confirmed": culprit["confidence"] == "confirmed" and not (layer and step),
    }


def table_of_planted(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table, in Markdown, and what it comes to."""
    yield "| fault | culprit | right | experiments | seconds |"
    yield "|---|---|---|---|---|"
    for row in rows:
        right = "yes" if row["step_right"] else "the layer" if row["layer_right"] else "**no**"
        yield f"| `{row['bug']}` | {row['sentence']} | {right} | {len(row['experiments'])} | {row['wall']} |"
    yield ""
    sums = {key: sum(row[key] for row in rows) for key in ("layer_right", "step_right", "wrongly_confirmed")}
    said = f"layer right: {sums['layer_right']} of {len(rows)}; step right: {sums['step_right']}"
    yield f"{said}; wrongly confirmed: {sums['wrongly_confirmed']}; torch {torch.__version__}"


def compiles(row: dict[str, Any]) -> int:
    """Return how many experiments of a search generated code, the one included in which the failure came first."""
    return 1 + sum(one["compiled"] for one in row["experiments"])


def main() -> None:
    """Search, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("history", "planted"))
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--only", nargs="*", help="names of bugs")
    parser.add_argument("--one", help="one bug, in this process; prints JSON")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long one search may take")
    parser.add_argument("--bisector", action="store_true", help="search with PyTorch's bisector")
    parser.add_argument("--json", type=Path, help="where the rows are written")
    options = parser.parse_args()
    if options.what == "planted":
        faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
        print("\n".join(table_of_planted([planted(fault, options.seconds) for fault in faults])))
        return
    bugs = history(options.backend)
    if options.one:
        (bug,) = (bug for bug in bugs if bug.name == options.one)
        print(json.dumps(bisect(bug) if options.bisector else search(bug, options.backend, options.seconds)))
        return
    rows = []
    chosen = [bug for bug in bugs if not options.only or bug.name in options.only]
    passed_on = ["--bisector"] * options.bisector
    for row in searched(chosen, options.backend, options.seconds, passed_on):
        rows.append(row)
        print(f"{row['bug']}: {row['listed']} -> {row['layer']}: {row['sentence']}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join((table_of_bisector if options.bisector else table)(rows)))


if __name__ == "__main__":
    main()
