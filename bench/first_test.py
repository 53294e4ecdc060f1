"""Print how long it takes from nothing to the first green test, step by step.

``python -m bench.first_test [--install] [--rounds N]``. The test of ``docs/getting-started.md`` runs on a machine that
is new (the kernel store and the system's temporary directory are empty), on a new machine with the store of another, as
in a job of a CI service, and on one where it ran before. These take turns; a figure is the median. With ``--install`` a
virtual environment is made first, where pip installs torch and this package.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "getting-started.md"
WAYS = ("new", "new, store kept", "used before")


def the_test() -> str:
    """Return the first test of the documentation."""
    found = re.search(r'```python title="test_first.py"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise LookupError(f"{PAGE} has no test_first.py")
    return found[1]


def compiled_copy(python: str, folder: Path) -> Path:
    """Copy this package to ``folder``, with its bytecode as pip would leave it; return the copy's directory."""
    for name in ("pytest_regional", "bench"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([python, "-m", "compileall", "-q", str(folder)], check=True)
    return folder


def steps_of_run(python: str, folder: Path, package: Path) -> dict[str, float]:
    """Run the test with ``folder`` as home, and the copy ``package`` of this package; return seconds by step.

    Raises:
        RuntimeError: it failed; what it printed is on standard error.
    """
    (folder / "tmp").mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(package),
        "FIRST_TEST_BEGAN": str(time.time()),
    }
    options = ("-p", "bench.first_test_clock", "-p", "no:cacheprovider", "--regional-backend=reference")
    done = subprocess.run(
        [python, "-m", "pytest", *options, "test_first.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
        raise RuntimeError("the first test failed")
    steps: dict[str, float] = {}
    for seconds, step in re.findall(r"^step ([\d.]+) (.*)$", done.stderr, re.MULTILINE):
        steps[step] = steps.get(step, 0.0) + float(seconds)
    return steps


def measured(python: str, package: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return the steps of each round, by way."""
    seen: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="first-test-") as name:
            folder = Path(name)
            (folder / "test_first.py").write_text(the_test(), encoding="utf-8")
            for way in WAYS:
                if way == "new, store kept":
                    shutil.rmtree(folder / "tmp")
                seen[way].append(steps_of_run(python, folder, package))
    return seen


def installed(folder: Path) -> str:
    """Make a virtual environment, and install torch and this package there; print the steps, return its Python."""
    python = str(folder / "venv" / "bin" / "python")
    versions = subprocess.check_output(
        [sys.executable, "-c", "import torch; print(torch.__version__.partition('+')[0])"], text=True
    )
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands: Sequence[tuple[str, Sequence[str]]] = (
        ("make a virtual environment", [sys.executable, "-m", "venv", str(folder / "venv")]),
        (f"pip install torch=={versions.strip()}", [*pip, f"torch=={versions.strip()}"]),
        ("pip install pytest-regional", [*pip, str(ROOT)]),
    )
    for step, command in commands:
        begin = time.perf_counter()
        subprocess.run(command, check=True)
        print(f"{step:45} {time.perf_counter() - begin:7.1f}")
    return python


def main() -> None:
    """Print a table: steps down, ways across."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-test-") as folder:
        python = installed(Path(folder)) if given.install else sys.executable
        package = compiled_copy(python, Path(folder, "package"))
        seen = measured(python, package, given.rounds)
    print(f"{f'seconds, median of {given.rounds}':45} " + " ".join(f"{way:>16}" for way in WAYS))
    steps = dict.fromkeys(step for rounds in seen.values() for one in rounds for step in one)
    for step in steps:
        print(f"{step:45} " + " ".join(f"{_median(seen[way], [step]):16.2f}" for way in WAYS))
    print(f"{'together':45} " + " ".join(f"{_median(seen[way], list(steps)):16.2f}" for way in WAYS))


def _median(rounds: Sequence[dict[str, float]], steps: Sequence[str]) -> float:
    return statistics.median(sum(one.get(step, 0.0) for step in steps) for one in rounds)


if __name__ == "__main__":
    main()
