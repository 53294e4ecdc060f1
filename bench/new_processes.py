"""Print what a new process costs as an interpreter, and forked from a server.

``python -m bench.new_processes [ROUNDS]``. Each round makes the same calls of ``in_new_process`` both ways, in turns:
one that does nothing, and one that compiles a product, which an earlier process left in the cache. Then the start of
the server, and what memory it and a process have for themselves.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pytest_regional import region
from pytest_regional.harness.process import ForkServers, NewProcesses
from pytest_regional.testing import regional

ROUNDS = 5


def nothing() -> int:
    """Return what the process has for itself, in MiB."""
    return own_memory(os.getpid())


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiply, in a region."""
    with region("r"):
        return x @ w


def compiles(regional: Any) -> int:
    """Compile and call it; return what the process has for itself, in MiB."""
    regional.compile(product)(regional.randn(4, 4), regional.randn(4, 4))
    return own_memory(os.getpid())


def own_memory(number: int) -> int:
    """Return how much memory a process shares with no other, in MiB; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{number}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(size) for size in re.findall(r"^Private_\w+: +(\d+)", text, re.MULTILINE)) // 1024


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return seconds and result of a call."""
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def main() -> None:
    """Take turns, print a line for each call."""
    from bench import new_processes as here  # where a new process finds the functions

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    servers = ForkServers(1, "cpu")
    start, _ = timed(servers.next().start)
    seen: dict[tuple[str, str], list[tuple[float, int]]] = {}
    with regional("torch", expects_regions=False) as harness:
        harness.in_new_process(here.compiles)
        ways = {"interpreter": NewProcesses(), "forked": NewProcesses(servers, "cpu")}
        for _ in range(rounds):
            for call in (here.nothing, here.compiles):
                for way, harness.new_processes in ways.items():
                    seconds, result = timed(lambda call=call: harness.in_new_process(call))
                    seen.setdefault((call.__name__, way), []).append((seconds, result.value))
        assert (ways["forked"].forked, ways["forked"].interpreters.total()) == (2 * rounds, 0)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, {rounds} rounds")
    for call in ("nothing", "compiles"):
        one, other = ([seconds for seconds, _ in seen[call, way]] for way in ("interpreter", "forked"))
        ratios = [b / a for a, b in zip(one, other, strict=True)]
        medians, mib = map(statistics.median, (one, other, ratios)), [seen[call, way][-1][1] for way in ways]
        print("{}: interpreter {:.2f} s, forked {:.2f} s, ratio {:.3f}".format(call, *medians), end=" ")
        print(f"({min(ratios):.3f} to {max(ratios):.3f}); memory {mib[0]} and {mib[1]} MiB")
    print(f"the server starts in {start:.1f} s, and has {own_memory(servers.next().number)} MiB")
    servers.end()


if __name__ == "__main__":
    main()
