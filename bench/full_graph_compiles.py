"""Print what compiling the debug Llama costs: ``python -m bench.full_graph_compiles``.

The captured graph of six layers, forward and backward, compiled by three last passes: our regional one, which compiles
equal regions once, PyTorch's, and whole-graph Inductor. Every compile is cold, in a process and a cache folder of its
own, with one small region compiled beforehand, which pays for finding the C++ compiler; what is timed is
``pipeline.compile`` and the first training step. They take turns. ``--layers 2`` is quick, ``--runs`` repeats.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile

NAMES = {"reference": "regional, shared", "torch": "PyTorch's regional", "inductor": "whole graph"}

PROBE = """
import dataclasses, sys, time, warnings
import torch, torch._inductor.compile_fx
from pytest_regional._region import region
from pytest_regional.backends import registry
from pytest_regional.harness.compiling import full_graph_of
from suites.full_graph.llama import DEBUG, Llama

warnings.filterwarnings("ignore")
compiles = 0
original = torch._inductor.compile_fx.fx_codegen_and_compile

def counting(*args, **kwargs):
    global compiles
    compiles += 1
    return original(*args, **kwargs)

torch._inductor.compile_fx.fx_codegen_and_compile = counting
pipeline = full_graph_of(registry.resolve(sys.argv[1]))

warm = region("warm")(lambda x: (x.sin() + 1).cos().sum())
pipeline.compile(warm, [torch.randn(7, requires_grad=True)])(torch.randn(7, requires_grad=True)).backward()
compiles = 0

sizes = dataclasses.replace(DEBUG, layers=int(sys.argv[2]))
model = Llama(sizes)
tokens = torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.length))
graph = pipeline.capture(model, (tokens, tokens))
begin = time.perf_counter()
pipeline.compile(graph)(tokens, tokens).backward()
print("probe", time.perf_counter() - begin, compiles)
"""


def cold(backend: str, layers: int) -> tuple[float, int]:
    """Return seconds and compiles of one cold compile."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, "-c", PROBE, backend, str(layers)]
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    words = next(line for line in output.splitlines() if line.startswith("probe")).split()
    return float(words[1]), int(words[2])


def main() -> None:
    """Take turns; print a line for each, with its time as a ratio to ours."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    import torch

    cores = f"{os.cpu_count()} cores, one compile thread"
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {cores}, median of {options.runs}", flush=True
    )
    results: dict[str, list[tuple[float, int]]] = {name: [] for name in NAMES}
    for _ in range(options.runs):
        for name, runs in results.items():
            runs.append(cold(name, options.layers))
    medians = {name: statistics.median(seconds for seconds, _ in runs) for name, runs in results.items()}
    for name, runs in results.items():
        times = [seconds for seconds, _ in runs]
        spread = f"{medians[name]:6.1f} s (from {min(times):.1f} to {max(times):.1f})"
        ratio = medians[name] / medians["reference"]
        print(f"{options.layers} layers, {NAMES[name]:18} {runs[0][1]:3} compiles, {spread}, {ratio:.2f} of ours")


if __name__ == "__main__":
    main()
