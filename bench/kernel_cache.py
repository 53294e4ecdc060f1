"""Print what a C++ kernel that was compiled before costs with the kernel store, and with ccache.

``python -m bench.kernel_cache``; needs ``ccache`` on PATH. The kernels are Inductor's for ten small programs. Each
command is run as Inductor writes it (compile and link at once), and once more split in two, because ccache keeps only
what a compiler makes without linking (https://ccache.dev/manual/latest.html, "called for link").
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from pytest_regional._torch import cpp
from pytest_regional.harness.kernel_store.commands import Command
from pytest_regional.harness.kernel_store.files import KernelFiles

KERNELS = 10
COMPILER = "the compiler, as Inductor runs it"


def commands(sources: Path) -> list[str]:
    """Return the command line of each kernel; their sources are kept in ``sources``."""
    seen: list[str] = []

    def run(original: cpp.Run, line: str, working_folder: str) -> None:
        original(line, working_folder)
        for source in re.findall(r"\S+\.cpp", line):
            kept = sources / Path(source).name
            shutil.copy(source, kept)
            line = line.replace(source, str(kept))
        seen.append(line)

    with cpp.compiling_with(run):
        for size in range(KERNELS):
            torch.compile(lambda x, size=size: (x.sin() * (size + 0.5)).cos().sum(-1))(torch.randn(32, 64))
    return [command for command in seen if "-shared" in command][-KERNELS:]


def seconds(work: Callable[[], object]) -> float:
    """Return how long ``work`` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def execute(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a command line."""
    subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)


def split(words: list[str], made: Path) -> tuple[list[str], list[str]]:
    """Return the command that compiles alone, and the one that links what it made."""
    target, source = words.index("-o") + 1, next(word for word in words if word.endswith(".cpp"))
    compiled = str(made.with_suffix(".o"))
    linking = [word for word in words if word == "-shared" or word.startswith(("-l", "-L", "-Wl"))]
    compiling = [word for word in words if word not in linking]
    compiling[compiling.index("-o") + 1] = compiled
    others = [word for word in words if word not in (source, words[target], "-o")]
    return [*compiling, "-c"], [*others, compiled, "-o", str(made)]


def ways(line: str, root: Path, environment: dict[str, str]) -> Iterator[tuple[str, float]]:
    """Run one command in each way; yield the way and its seconds."""
    words = shlex.split(line)
    words[words.index("-o") + 1] = str(root / "made.so")
    command = Command.of(shlex.join(words))
    assert command is not None, line
    yield COMPILER, seconds(lambda: execute(words, root, environment))
    files = KernelFiles(root / "store")
    files.put(command.key(), command.target)
    yield "kernel store, kept", seconds(lambda: files.take(command.key(), command.target))
    execute(["ccache", *words], root, environment)
    yield "ccache, second run of the command", seconds(lambda: execute(["ccache", *words], root, environment))
    compiling, linking = split(words, root / "made.so")

    def both() -> None:
        execute(["ccache", *compiling], root, environment)
        execute(linking, root, environment)

    both()
    yield "ccache, second run of the command split in two", seconds(both)


def main() -> None:
    """Print a line for each way, and what ccache counted."""
    if shutil.which("ccache") is None:
        sys.exit("bench.kernel_cache: there is no ccache on PATH")
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "sources").mkdir()
        environment = {**os.environ, "CCACHE_DIR": str(root / "ccache"), "CCACHE_SLOPPINESS": "pch_defines,time_macros"}
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(root / "inductor")
        for line in commands(root / "sources"):
            for way, time_taken in ways(line, root, environment):
                took.setdefault(way, []).append(time_taken)
        counted = said(["ccache", "--print-stats"], environment)
    base = statistics.median(took[COMPILER])
    for way, each in took.items():
        median = statistics.median(each)
        spread = f"{min(each) * 1000:.1f} to {max(each) * 1000:.1f}"
        print(f"{way}: {median * 1000:.1f} ms ({spread}), {median / base:.4f} of the compiler's time")
    counts = dict(line.split("\t") for line in counted.splitlines())
    print(
        f"ccache: {counts['direct_cache_hit']} hits, {counts['called_for_link']} runs not looked up because they link"
    )
    version = said(["ccache", "--version"], environment).splitlines()[0]
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs"
    print(f"{len(took[COMPILER])} kernels, {version}, torch {torch.__version__}, {machine}")


def said(words: list[str], environment: dict[str, str]) -> str:
    """Return what a command prints."""
    return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
