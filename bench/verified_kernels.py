"""Print what is proved of the kernels that are generated here: ``python -m bench.verified_kernels``.

The kernels of every function of ``tests/emulation/functions``, forward, and with its backward where it declares one, in
its first dtype, sizes static and (``--dynamic``) symbolic. Each distinct kernel, with each configuration, counts once.
``--only NAME ...`` chooses functions; ``--json FILE`` keeps one line for each kernel; ``--merge FILE ...`` prints the
tables of several such files and runs nothing, and so does ``--reports FILE ...``, of the files that pytest's
``--regional-report`` writes. Exits with 1 when a kernel is refuted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

PROPERTIES = ("memory", "races", "coverage", "buffers", "loops")


def measured(names: list[str], dynamic: bool) -> Iterable[dict]:
    """Yield what is found out about each kernel of the functions called ``names``."""
    import torch

    from pytest_regional.emulation import emulated
    from pytest_regional.verify import verifying
    from tests.emulation.functions import CASES
    from tests.emulation.functions.outcome import outcome_of, runs_of

    compile_function = torch.compile
    with emulated("h200") as emulation:
        for name in names:
            first = CASES[name].dtypes[0]
            for run in (run for run in runs_of(CASES[name]) if run.dtype == first):
                torch._dynamo.reset()
                launched = len(emulation.launches)
                with verifying(emulation) as verification:
                    if dynamic:
                        torch.compile = lambda *a, **k: compile_function(*a, **{**k, "dynamic": True})
                    try:
                        outcome = outcome_of(run, emulation)
                    finally:
                        torch.compile = compile_function
                runs = defaultdict(list)
                for launch in emulation.launches[launched:]:
                    runs[launch.kernel].append(launch.seconds)
                for found in verification.verified():
                    yield {
                        "run": str(run),
                        "status": outcome.status,
                        "dynamic": dynamic,
                        "kernel": found.kernel,
                        "digest": found.digest,
                        "seconds": found.seconds,
                        "run_seconds": statistics.median(runs[found.kernel]) if found.kernel in runs else None,
                        "outcomes": [[o.property, o.verdict, o.reason] for o in found.outcomes],
                    }


def reported(file: Path) -> Iterable[dict]:
    """Yield what a report of pytest says of each kernel."""
    for test in json.loads(file.read_text("utf-8"))["tests"]:
        for proof in test.get("proofs", []):
            outcomes = [[one["property"], one["verdict"], one["reason"]] for one in proof["outcomes"]]
            yield {**proof, "run": test["test"], "outcomes": outcomes}


def tables(lines: list[dict]) -> str:
    """Return Markdown: verdicts by property, reasons for what is unknown, seconds."""
    # What has no digest is a graph of which nothing is known.
    kernels = {line["digest"] or id(line): line for line in lines}
    text = [f"{len(kernels)} distinct kernels with their configurations", ""]
    text += ["| property | proved | refuted | unknown | proved % |", "|---|---|---|---|---|"]
    for name in PROPERTIES:
        verdicts = Counter(
            _worst([o[1] for o in line["outcomes"] if o[0] == name])
            for line in kernels.values()
            if any(o[0] == name for o in line["outcomes"])
        )
        total = sum(verdicts.values())
        if total:
            share = 100 * verdicts["proved"] / total
            text.append(
                f"| {name} | {verdicts['proved']} | {verdicts['refuted']} | {verdicts['unknown']} | {share:.0f} |"
            )
    seconds = sorted(line["seconds"] for line in kernels.values())
    if seconds:
        text += ["", f"Seconds a kernel: median {statistics.median(seconds):.2f}, worst {seconds[-1]:.1f}."]
    pairs = [(line["seconds"], line["run_seconds"]) for line in kernels.values() if line.get("run_seconds")]
    if pairs:
        run, ratio = (statistics.median(part) for part in zip(*((run, own / run) for own, run in pairs), strict=True))
        text.append(f"The emulator's run of a launch: median {run:.4f}; verification takes {ratio:.0f} times as long.")
    reasons = Counter((o[0], _kind(o[2])) for line in kernels.values() for o in line["outcomes"] if o[1] == "unknown")
    text += ["", "| not proved | kernels | why |", "|---|---|---|"]
    text += [f"| {name} | {count} | {why} |" for (name, why), count in reasons.most_common()]
    refuted = [(line, o) for line in kernels.values() for o in line["outcomes"] if o[1] == "refuted"]
    text += ["", *(f"REFUTED {line['run']} {line['kernel']}: {o[0]}: {o[2]}" for line, o in refuted)]
    return "\n".join(text)


def _worst(verdicts: list[str]) -> str:
    return next(v for v in ("refuted", "unknown", "proved") if v in verdicts)


def _kind(reason: str) -> str:
    """Return a reason without what is special to one kernel."""
    return (
        reason.partition(" (line")[0].partition(": ")[0][:80] if "#" in reason else reason.partition(" (line")[0][:110]
    )


def main() -> int:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--merge", nargs="*", type=Path)
    parser.add_argument("--reports", nargs="*", type=Path)
    options = parser.parse_args()
    if options.reports:
        lines = [line for file in options.reports for line in reported(file)]
    elif options.merge:
        lines = [json.loads(line) for file in options.merge for line in file.read_text("utf-8").splitlines()]
    else:
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="verified-kernels-")
        warnings.simplefilter("ignore")
        from tests.emulation.functions import CASES

        started, lines = time.perf_counter(), []
        for line in measured(options.only or list(CASES), options.dynamic):
            lines.append(line)
            if options.json:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        print(f"{time.perf_counter() - started:.0f} s, Python {platform.python_version()}", file=sys.stderr)
    print(tables(lines))
    return int(any(o[1] == "refuted" for line in lines for o in line["outcomes"]))


if __name__ == "__main__":
    sys.exit(main())
