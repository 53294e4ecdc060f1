"""Print which part of a compile is this package's own: ``python -m bench.compile_profile``.

A Llama block, and 32 equal blocks, forward and backward, cold, with backend ``regional`` under Python's profiler
(``cProfile``). Own is the time in this package's functions and in those of Python and its standard library that they
call; what PyTorch does when it is called is PyTorch's. The profiler makes small functions look slower than they are,
and most of this package's are small. Functions from 0.1 % on are listed.
"""

from __future__ import annotations

import cProfile
import os
import platform
import pstats
import tempfile
from typing import Any

PACKAGE = f"{os.sep}pytest_regional{os.sep}"
_LEAST = 0.001


def own_seconds(statistics: Any) -> dict[str, float]:
    """Return the seconds of each function of this package, with those of Python's own that it calls, by its name."""
    found: dict[str, float] = {}
    for (file, _, name), (_, _, own, _, callers) in statistics.stats.items():
        if PACKAGE in file:
            key = f"{file.rpartition(PACKAGE)[2]}: {name}"
            found[key] = found.get(key, 0.0) + own
        elif file == "~" or (os.sep + "site-packages" + os.sep) not in file:
            for (caller_file, _, caller), (_, _, caller_own, _) in callers.items():
                if PACKAGE in caller_file:
                    key = f"{caller_file.rpartition(PACKAGE)[2]}: {caller}"
                    found[key] = found.get(key, 0.0) + caller_own
    return found


def profiled(model: Any, given: Any) -> pstats.Stats:
    """Compile ``model``, run it forward and backward, and return the profile."""
    import torch

    from pytest_regional.reference import regional

    profile = cProfile.Profile()
    with profile:
        torch.compile(model, backend=regional, fullgraph=True)(given).sum().backward()
    return pstats.Stats(profile)


def main() -> None:
    """Profile both, print a table for each."""
    with tempfile.TemporaryDirectory(prefix="compile-profile-") as folder:
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=folder, TORCHINDUCTOR_COMPILE_THREADS="1")
        import torch

        from bench.probes.blocks import Block
        from pytest_regional import region
        from pytest_regional.reference import regional
        from suites.models.llama import BATCH, LENGTH, SIZE, LlamaBlock

        small = region("warm")(lambda x: (x.sin() + 1).cos())
        torch.compile(small, backend=regional)(torch.randn(7, requires_grad=True)).sum().backward()
        programs = {
            "a Llama block": (LlamaBlock(), torch.randn(BATCH, LENGTH, SIZE, requires_grad=True)),
            "32 equal blocks": (
                torch.nn.Sequential(*(Block() for _ in range(32))),
                torch.randn(16, 32, requires_grad=True),
            ),
        }
        version = f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores"
        for name, (model, given) in programs.items():
            statistics: Any = profiled(model, given)
            total, own = statistics.total_tt, own_seconds(statistics)
            print(f"{name}: {total:.1f} s with the profiler, own {sum(own.values()) / total:.2%} ({version})\n")
            print("| function | own |\n|---|---|")
            for function, seconds in sorted(own.items(), key=lambda one: -one[1]):
                if seconds >= _LEAST * total:
                    print(f"| `{function}` | {seconds / total:.2%} |")
            print(flush=True)


if __name__ == "__main__":
    main()
