"""A run whose tests crash and hang: ``python -m bench.crash_run [--tests 500] [--bad 20] [-n 2]``.

Writes tests that pass, fail and are skipped, and among them, spread evenly, some that end their process, die of a
signal, hang, or loop in C where nothing can interrupt them. Runs them under pytest-xdist and compares what the JSON
report says of each with what it is, and whether each is in the page and in the JUnit file. Exit status 1 where anything
differs.

With ``--seeds 20`` (or ``--seed 7``) each seed draws ten kinds of crashes, hangs and leaks from
``crash_kinds``, and mixes them at random; ``--only KIND ...`` names them.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from bench.crash_kinds import ALL, GROUPS, HEADER, SPREAD, TEST

TIMEOUT = 4


def spread(tests: int, bad: int) -> list[str]:
    """Return what each test is, the bad ones spread evenly, always the same."""
    draw = random.Random(0)
    found = draw.choices(["passes", "fails", "skips", "compiles"], weights=[90, 4, 4, 2], k=tests)
    for index in range(bad):
        found[(2 * index + 1) * tests // (2 * bad)] = list(SPREAD)[index % len(SPREAD)]
    return found


def mixed(tests: int, bad: int, seed: int, only: Sequence[str]) -> list[str]:
    """Return what each test is: ``bad`` ones of ten kinds, of each group at least one, at random places."""
    draw = random.Random(seed)
    kinds = list(only)
    if not kinds:
        kinds = [draw.choice(list(group)) for group in GROUPS.values()]
        others = [kind for group in GROUPS.values() for kind in group if kind not in kinds]
        kinds += draw.sample(others, 10 - len(kinds))
    found = draw.choices(["looks", "passes", "fails", "skips", "compiles"], weights=[60, 30, 4, 4, 2], k=tests)
    for index, place in enumerate(draw.sample(range(tests), bad)):
        found[place] = kinds[index % len(kinds)]
    return found


@dataclass(frozen=True)
class Ended:
    """A run that has ended: seconds, its last line, how each test ended, and what else is wrong with it."""

    seconds: float
    line: str
    outcomes: dict[int, str]
    flaws: list[str]


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.crash_run", description=__doc__)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--bad", type=int, default=20, help="how many of them are bad")
    parser.add_argument("-n", type=int, default=2, help="workers")
    parser.add_argument("--dist", default="load", help="how pytest-xdist gives out tests")
    parser.add_argument("--seeds", type=int, default=0, help="run mixes of the seeds from 0 to this number")
    parser.add_argument("--seed", type=int, help="run the mix of this seed")
    parser.add_argument("--only", nargs="+", default=[], choices=ALL, metavar="KIND", help="the kinds of a mix")
    asked = parser.parse_args()
    print(f"torch {_version('torch')}, pytest-xdist {_version('pytest-xdist')}, Python {platform.python_version()}")
    if asked.seed is None and not asked.seeds:
        return _told(spread(asked.tests, asked.bad), asked, "")
    seeds = range(asked.seeds) if asked.seed is None else [asked.seed]
    return max(_told(mixed(asked.tests, asked.bad, seed, asked.only), asked, f"seed {seed}: ") for seed in seeds)


def _told(what: Sequence[str], asked: argparse.Namespace, name: str) -> int:
    """Run the tests, print how they ended, and return 1 where anything is wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        run = _run(Path(scratch), what, asked)
    wrong = [(n, kind) for n, kind in enumerate(what) if run.outcomes.get(n) not in ALL[kind][1]]
    print(f"{name}{len(what)} tests, -n {asked.n}, --dist {asked.dist}: {run.seconds:.0f} s; {run.line}", flush=True)
    for kind, count in sorted(Counter(what).items(), key=lambda one: -one[1]):
        wanted = ALL[kind][1]
        right = sum(run.outcomes.get(n) in wanted for n, one in enumerate(what) if one == kind)
        print(f"  {kind:20} {count:4} tests, {right:4} {' or '.join(wanted)}")
    for number, kind in wrong:
        print(f"  test_{number} ({kind}): {run.outcomes.get(number, 'lost')}")
    for flaw in run.flaws:
        print(f"  {flaw}")
    return 1 if wrong or run.flaws else 0


def _run(folder: Path, what: Sequence[str], asked: argparse.Namespace) -> Ended:
    temporary, reports = folder / "temporary", folder / "out"
    temporary.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    bodies = [TEST.format(number=number, body=ALL[kind][0]) for number, kind in enumerate(what)]
    (folder / "test_all.py").write_text(HEADER + "".join(bodies))
    command = [sys.executable, "-m", "pytest", "--regional-backend=aot_eager", "--regional-device=cpu", "-q"]
    command += [f"--regional-timeout={TIMEOUT}", "--regional-report=out/report.json,out/report.html"]
    command += [f"-n{asked.n}", f"--dist={asked.dist}", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["--junitxml=out/junit.xml", f"--basetemp={folder / 'basetemp'}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"TMPDIR": str(temporary), "PYTHONPATH": os.getcwd()}
    began = time.perf_counter()
    # No pipe: what a test leaves running would keep it open.
    with (folder / "printed").open("w+", errors="replace") as printed:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=printed, stderr=printed, check=False)
        printed.seek(0)
        lines = printed.read()
    seconds = time.perf_counter() - began
    report = json.loads((reports / "report.json").read_text())
    outcomes = {_number(fact["test"].partition("::")[2]): fact["outcome"] for fact in report["tests"]}
    status = [f"exit status {done.returncode}"] if done.returncode != 1 else []
    return Ended(seconds, lines.splitlines()[-1], outcomes, _flaws(reports, len(what), lines, report) + status)


def _flaws(reports: Path, tests: int, printed: str, report: dict[str, object]) -> list[str]:
    """Return what is wrong with a run beside how its tests ended."""
    numbers = set(range(tests))
    in_junit = {_number(case.get("name", "")) for case in ElementTree.parse(reports / "junit.xml").iter("testcase")}
    page = (reports / "report.html").read_text()
    in_page = {number for number in numbers if f"::test_{number}[" in page or f"::test_{number}&" in page}
    in_page |= {number for number in numbers if f"::test_{number}<" in page or f'::test_{number}"' in page}
    found = [f"the JUnit file lacks tests {sorted(numbers - in_junit)}"] if numbers - in_junit else []
    found += [f"the page lacks tests {sorted(numbers - in_page)}"] if numbers - in_page else []
    found += [f"the report is unfinished: {report['unfinished']}"] if report.get("unfinished") else []
    found += ["an internal error of pytest"] if "INTERNALERROR" in printed else []
    found += ["errors of reporting"] if "regional reporting errors" in printed else []
    return found


def _number(name: str) -> int:
    return int(name.removeprefix("test_").partition("[")[0])


def _version(package: str) -> str:
    import importlib.metadata

    return importlib.metadata.version(package)


if __name__ == "__main__":
    raise SystemExit(main())
