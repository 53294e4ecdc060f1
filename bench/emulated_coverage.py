"""Print what the emulated GPU gets right: ``python -m bench.emulated_coverage``.

Every function of ``tests/emulation/functions``, forward, and with its backward where it declares one, in each dtype it
declares, against eager in float64. ``--only NAME ...`` and ``--dtype NAME`` choose, ``--jobs N`` divides the work among
processes, ``--json FILE`` keeps the outcomes; ``--merge FILE ...`` prints one table of several such files and runs
nothing. ``--device cuda`` runs all of it on the GPU of this machine, to hold the emulation against. Exits with 1 when
anything is wrong. A run that kills its process, or takes three minutes, counts as wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

LIMIT_SECONDS = 180
REAL = "cuda"
DTYPE_ORDER = ("f32", "f64", "bf16", "f16")
LETTERS = {"match": "M", "unsupported": "U", "defect": "D", "wrong": "W"}


def work(profile: str) -> None:
    """Run what standard input names, one a line, on a GPU as described or on a real one; print an outcome for each."""
    from pytest_regional.emulation import emulated
    from tests.emulation.functions.outcome import Run, outcome_of, outcome_on_gpu

    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.nullcontext() if profile == REAL else emulated(profile) as emulation:
        for line in sys.stdin:
            faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
            run = Run.named(line.strip())
            outcome = outcome_on_gpu(run) if emulation is None else outcome_of(run, emulation)
            print(json.dumps(dataclasses.asdict(outcome)), file=output, flush=True)
    faulthandler.cancel_dump_traceback_later()


def run_all(names: list[str], profile: str, folder: Path) -> list[dict]:
    """Run all of ``names`` in worker processes, a new one whenever one dies."""
    outcomes, left = [], names
    while left:
        done, code = _run_in_one_process(left, profile, folder)
        outcomes += done
        left = left[len(done) :]
        if left:
            detail = f"the process ended with status {code}; the last words are in {folder / 'errors.txt'}"
            outcomes.append({"run": left[0], "status": "wrong", "detail": detail, "error": 0.0, "kernels": 0,
                             "launches": 0, "seconds": 0.0})  # fmt: skip
            left = left[1:]
    return outcomes


def _run_in_one_process(names: list[str], profile: str, folder: Path) -> tuple[list[dict], int]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "bench.emulated_coverage",
        "--work",
        "--profile",
        profile,
    ]
    done: list[dict] = []
    with (folder / "errors.txt").open("w") as errors:
        process = subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, stderr=errors, text=True)
        process.stdin.write("\n".join(names) + "\n")
        process.stdin.close()
        for line in process.stdout:
            done.append(json.loads(line))
            _tell(done[-1])
        return done, process.wait()


def _tell(outcome: dict) -> None:
    words = outcome["detail"].strip().replace("\n", " ")[:300]
    print(f"{outcome['status']:12}{outcome['run']:44}{outcome['seconds']:6.2f} s  {words}", file=sys.stderr, flush=True)


def divided(names: list[str], jobs: int, profile: str) -> list[dict]:
    """Divide ``names`` among ``jobs`` processes."""
    results: list[list[dict]] = [[] for _ in range(jobs)]
    base = Path(tempfile.mkdtemp(prefix="emulated-coverage-"))

    def part(index: int) -> None:
        results[index] = run_all(names[index::jobs], profile, base / str(index))

    threads = [threading.Thread(target=part, args=(index,)) for index in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    place = {name: index for index, name in enumerate(names)}
    return sorted((outcome for result in results for outcome in result), key=lambda outcome: place[outcome["run"]])


def versions() -> dict[str, str]:
    """Return what the outcomes depend on."""
    import torch
    import triton

    return {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()}


def cell(by_run: dict[str, dict], name: str, backward: bool) -> str:
    """Return the outcomes of one function as a letter for each dtype."""
    found = [by_run.get(f"{name}-{dtype}{'-backward' if backward else ''}") for dtype in DTYPE_ORDER]
    return "".join(LETTERS[outcome["status"]] if outcome else "." for outcome in found).rstrip(".")


def table(reports: list[dict]) -> str:
    """Return the Markdown table of ``reports``, one column for each and direction."""
    headings = [f"{report['versions']['torch']} {way}" for report in reports for way in ("forward", "backward")]
    lines = [f"| Function | Kernels | {' | '.join(headings)} |", f"|{'---|' * (len(headings) + 2)}"]
    indexed = [{outcome["run"]: outcome for outcome in report["outcomes"]} for report in reports]
    names = dict.fromkeys(outcome["run"].split("-")[0] for report in reports for outcome in report["outcomes"])
    for name in names:
        kernels = max(
            outcome["kernels"] for by_run in indexed for run, outcome in by_run.items() if run.split("-")[0] == name
        )
        cells = [cell(by_run, name, backward) for by_run in indexed for backward in (False, True)]
        lines.append(f"| {name} | {kernels} | {' | '.join(cells)} |")
    return "\n".join(lines)


def totals(report: dict) -> str:
    """Return what a report counts, and every outcome that is no match."""
    outcomes = report["outcomes"]
    lines = [", ".join(f"{name} {version}" for name, version in report["versions"].items())]
    for title, backward in (("forward", False), ("backward", True)):
        chosen = [o for o in outcomes if o["run"].endswith("-backward") == backward]
        functions = len({o["run"].split("-")[0] for o in chosen})
        counts = Counter(o["status"] for o in chosen)
        spoken = ", ".join(f"{counts[status]} {status}" for status in LETTERS)
        lines.append(f"{title}: {functions} functions, {len(chosen)} runs: {spoken}")
    launches, seconds = sum(o["launches"] for o in outcomes), sum(o["seconds"] for o in outcomes)
    lines.append(f"{sum(o['kernels'] for o in outcomes)} kernels, {launches} launches, {seconds:.0f} s of work")
    lines += [
        f"- {o['status']}: {o['run']}: {o['detail'].strip().splitlines()[0][:300]}" for o in outcomes if o["detail"]
    ]
    return "\n".join(lines)


def main() -> int:
    """Run what was asked for; return 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--dtype")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--profile", default="h200", help="the described GPU (default: h200)")
    parser.add_argument("--device", choices=("cuda-emulated", REAL), default="cuda-emulated")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--merge", type=Path, nargs="*")
    parser.add_argument("--work", action="store_true")
    options = parser.parse_args()
    if options.work:
        work(options.profile)
        return 0
    reports = [json.loads(path.read_text()) for path in options.merge or ()] or [_report(options)]
    print("\n\n".join([table(reports), *(totals(report) for report in reports)]))
    return int(any(o["status"] == "wrong" for report in reports for o in report["outcomes"]))


def _report(options: argparse.Namespace) -> dict:
    import torch

    from tests.emulation.functions.outcome import all_runs

    chosen = [str(run) for run in all_runs() if not options.only or run.name in options.only]
    chosen = [name for name in chosen if options.dtype is None or name.split("-")[1] == options.dtype]
    if options.device == REAL and not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no usable GPU here")
    profile = REAL if options.device == REAL else options.profile
    report = {"versions": versions(), "outcomes": divided(chosen, options.jobs, profile)}
    if options.json:
        options.json.write_text(json.dumps(report))
    return report


if __name__ == "__main__":
    sys.exit(main())
