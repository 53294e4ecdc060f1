"""Print what an emulated test costs: ``python -m bench.emulated_speed``.

Twenty small annotated programs, each compiled by the reference backend and trained for one step with cold caches, on
``cuda-emulated`` and, taking turns with it, through the C++ compiler on ``cpu``: the ratio of the two, with its spread.
Then ``--processes`` at once run the emulated ones for ``--seconds``: programs a minute. ``--profile`` prints instead
what the emulated programs spend their time on.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import pstats
import statistics
import subprocess
import sys
import time
import warnings

PROGRAMS = (
    "silu_mul", "gelu", "activations", "exponentials", "broadcasting", "sum_rows", "logsumexp", "softmax_persistent",
    "layer_norm", "rms_norm", "cross_entropy", "cumsum", "embedding", "gather", "transposed", "cat", "mm_relu",
    "attention_by_hand", "rotary", "perceptron",
)  # fmt: skip
EMULATED, COMPILED = "cuda-emulated", "cpu"


def one_test(name: str, device: str) -> float:
    """Compile and train one program as a test would; return seconds."""
    import torch

    from pytest_regional import region
    from pytest_regional.testing import regional
    from tests.emulation.functions import CASES

    case = CASES[name]
    torch.manual_seed(0)
    inputs = [value.requires_grad_(value.is_floating_point()) for value in case.inputs()]
    begin = time.perf_counter()
    with regional("reference", device) as harness:
        outputs = harness.compile(region("r")(case.function))(*inputs)
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(outputs) if leaf.requires_grad]
        torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
    return time.perf_counter() - begin


def compare(rounds: int) -> None:
    """Take turns between the two devices; print a line for each program, and the ratio."""
    for device in (EMULATED, COMPILED):
        one_test("silu_mul", device)  # imports, the self-test, finding the C++ compiler
    ratios, totals = [], {EMULATED: 0.0, COMPILED: 0.0}
    for name in PROGRAMS:
        times = {device: [] for device in (EMULATED, COMPILED)}
        for _ in range(rounds):
            for device, seconds in times.items():
                seconds.append(one_test(name, device))
        emulated, compiled = (statistics.median(times[device]) for device in (EMULATED, COMPILED))
        ratios.append(compiled / emulated)
        totals[EMULATED] += emulated
        totals[COMPILED] += compiled
        print(f"{name:22} emulated {emulated:5.2f} s, C++ {compiled:5.2f} s, ratio {ratios[-1]:4.1f}", flush=True)
    ordered = sorted(ratios)
    print(
        f"all: emulated {totals[EMULATED]:.1f} s, C++ {totals[COMPILED]:.1f} s, ratio "
        f"{totals[COMPILED] / totals[EMULATED]:.2f}; of the programs: median {statistics.median(ratios):.2f}, "
        f"from {ordered[0]:.2f} to {ordered[-1]:.2f}"
    )


def count(seconds: float) -> int:
    """Return how many emulated programs run in ``seconds``, after one for the imports."""
    one_test("silu_mul", EMULATED)
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        one_test(PROGRAMS[done % len(PROGRAMS)], EMULATED)
        done += 1
    return done


def throughput(processes: int, seconds: float) -> None:
    """Print how many programs a minute several processes run at once."""
    command = [sys.executable, "-m", "bench.emulated_speed", "--count", str(seconds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(command, env=environment, stdout=-1, stderr=subprocess.DEVNULL, text=True)
        for _ in range(processes)
    ]
    counts = [int(process.communicate()[0]) for process in running]
    print(f"{processes} processes: {sum(counts) * 60 / seconds:.0f} programs a minute, forward and backward")


def profile(lines: int) -> None:
    """Print what the time of the emulated programs goes into."""
    one_test("silu_mul", EMULATED)
    profiler = cProfile.Profile()
    profiler.enable()
    for name in PROGRAMS:
        one_test(name, EMULATED)
    profiler.disable()
    statistics_of = pstats.Stats(profiler)
    for order in ("cumulative", "tottime"):
        statistics_of.sort_stats(order).print_stats(lines)


def main() -> None:
    """Measure what the options ask for."""
    os.environ["PYTEST_REGIONAL_KERNEL_STORE"] = "off"  # what is compiled is what is timed
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--count", type=float)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch
    import triton

    if options.count is not None:
        print(count(options.count))
        return
    versions = f"torch {torch.__version__}, triton {triton.__version__}, Python {platform.python_version()}"
    print(f"{versions}, {os.cpu_count()} cores", flush=True)
    if options.profile:
        profile(60)
        return
    compare(options.rounds)
    throughput(options.processes, options.seconds)


if __name__ == "__main__":
    main()
