"""Print what conformance on several machines costs and gives: ``python -m bench.conformance_machines suites/regions``.

The suites run once in one command for all backends, and once as if there were a machine for each: a command each, one
after the other, with all cores of this machine, and then ``pytest-regional merge``. The merged report has to have the
outcomes of the whole. On so many machines the parts run at the same time, and take as long as the longest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def outcomes(path: Path) -> dict[tuple[str, str, str], str]:
    """Return the outcomes of a report, by test, backend and device; only ids of a run of several name the backend."""
    tests = json.loads(path.read_text(encoding="utf-8"))["tests"]
    return {(_without(one["backend"], one["test"]), one["backend"], one["device"]): one["outcome"] for one in tests}


def _without(backend: str, test: str) -> str:
    return test.removesuffix(f"[{backend}]").replace(f"[{backend}-", "[")


def run_suites(suites: Sequence[str], backends: str, workers: int, report: Path) -> float:
    """Run the suites on backends, and write a report; return the seconds.

    Raises:
        CalledProcessError: they could not run; a test that fails is an outcome.
    """
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", *suites, f"--regional-backend={backends}", f"-n{workers}", "-q"]
    command += [f"--regional-report=none,{report}", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if ran.returncode not in (0, 1):
        raise subprocess.CalledProcessError(ran.returncode, command, ran.stdout)
    return time.monotonic() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if the merged report says something else than the whole."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--backends", default="reference,torch,aot_eager,inductor")
    parser.add_argument("--workers", type=int, default=2, help="of pytest-xdist, on each machine (default: 2)")
    asked = parser.parse_args(arguments)
    names = asked.backends.split(",")
    print("| way | tests | seconds |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        whole, merged = Path(folder) / "whole.json", Path(folder) / "merged.json"
        parts = [Path(folder) / f"{name}.json" for name in names]
        seconds = [run_suites(asked.suites, asked.backends, asked.workers, whole)]
        print(f"| one command, {asked.backends} | {len(outcomes(whole))} | {seconds[0]:.0f} |", flush=True)
        for name, part in zip(names, parts, strict=True):
            seconds.append(run_suites(asked.suites, name, asked.workers, part))
            print(f"| {name} alone | {len(outcomes(part))} | {seconds[-1]:.0f} |", flush=True)
        begin = time.monotonic()
        command = [sys.executable, "-m", "pytest_regional", "merge", *map(str, parts), "--output", str(merged)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
        merging = time.monotonic() - begin
        print(f"| merge | {len(outcomes(merged))} | {merging:.1f} |")
        longest = max(seconds[1:]) + merging
        print(f"| {len(names)} machines: the longest part and merge | | {longest:.0f} ({seconds[0] / longest:.2f} x) |")
        print(f"| all parts, of the one command | | {sum(seconds[1:]) / seconds[0]:.2f} x |")
        left, right = outcomes(whole), outcomes(merged)
        different = sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    for name in different:
        print(f"{' '.join(name)}: {left.get(name)} in one command, {right.get(name)} merged")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
