"""A run whose tests crash and hang: ``python -m tests.benchmarks.crash_run [--tests 500] [--bad 20] [-n 2]``.

Writes tests that pass, fail and are skipped, and among them, spread evenly, some that end their process, die of a
signal, hang, or loop in C where nothing can interrupt them. Runs them under pytest-xdist and compares what the JSON
report says of each with what it is. Exit status 1 where anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TIMEOUT = 4

#: What a test does, and how it has to end.
BAD = {
    "os._exit": ("os._exit(0)", "crashed"),
    "segmentation fault": ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed"),
    "abort": ("os.abort()", "crashed"),
    "hang": ("time.sleep(600)", "failed"),
    "loop in C": ("all(itertools.repeat(True))", "crashed"),
}
GOOD = {
    "passes": ("assert regional.randn(2).shape == (2,)", "passed"),
    "compiles": ("regional.assert_parity(torch.sin, regional.randn(2))", "passed"),
    "fails": ("assert regional is None", "failed"),
    "skips": ("pytest.skip('on purpose')", "skipped"),
}
HEADER = "import itertools, os, signal, time\nimport pytest, torch\n"
TEST = """
@pytest.mark.regional_compile(expects_regions=False)
def test_{number}(regional):
    {body}
"""


def kinds(tests: int, bad: int) -> list[str]:
    """Return what each test is, the bad ones spread evenly, always the same."""
    draw = random.Random(0)
    found = draw.choices(["passes", "fails", "skips", "compiles"], weights=[90, 4, 4, 2], k=tests)
    for index in range(bad):
        found[(2 * index + 1) * tests // (2 * bad)] = list(BAD)[index % len(BAD)]
    return found


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.crash_run", description=__doc__)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--bad", type=int, default=20)
    parser.add_argument("-n", type=int, default=2, help="workers")
    parser.add_argument("--dist", default="load", help="how pytest-xdist gives out tests")
    asked = parser.parse_args()
    what = kinds(asked.tests, asked.bad)
    known = {**GOOD, **BAD}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "pytest.ini").write_text("[pytest]\n")
        bodies = [TEST.format(number=number, body=known[kind][0]) for number, kind in enumerate(what)]
        (folder / "test_all.py").write_text(HEADER + "".join(bodies))
        seconds, printed, facts = _run(folder, asked)
    ended = {int(fact["test"].partition("::test_")[2].partition("[")[0]): fact["outcome"] for fact in facts}
    wrong = [(n, kind, ended.get(n, "lost")) for n, kind in enumerate(what) if ended.get(n) != known[kind][1]]
    print(f"torch {_version('torch')}, pytest-xdist {_version('pytest-xdist')}, Python {platform.python_version()}")
    print(f"{asked.tests} tests, -n {asked.n}, --dist {asked.dist}: {seconds:.0f} s; {printed.splitlines()[-1]}")
    for kind, count in sorted(Counter(what).items(), key=lambda one: -one[1]):
        right = sum(ended.get(n) == known[kind][1] for n, one in enumerate(what) if one == kind)
        print(f"  {kind:20} {count:4} tests, {right:4} {known[kind][1]}")
    for number, kind, outcome in wrong:
        print(f"  test_{number} ({kind}): {outcome}")
    return 1 if wrong else 0


def _run(folder: Path, asked: argparse.Namespace) -> tuple[float, str, list[dict[str, str]]]:
    command = [sys.executable, "-m", "pytest", "--regional-backend=aot_eager", "--regional-device=cpu", "-q"]
    command += [
        f"--regional-timeout={TIMEOUT}",
        "--regional-report=report.json",
        f"-n{asked.n}",
        f"--dist={asked.dist}",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    facts = json.loads((folder / "report.json").read_text())["tests"]
    return seconds, done.stdout, facts


def _version(package: str) -> str:
    import importlib.metadata

    return importlib.metadata.version(package)


if __name__ == "__main__":
    raise SystemExit(main())
