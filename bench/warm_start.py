"""Print what compiling Llama blocks costs with an empty and with a filled cache folder, beside PyTorch's backend.

``python -m bench.warm_start [LAYERS]``, by default one. Each run is a process of its own, forward and backward, timed
from ``torch.compile`` to the end of the first training step; one small program is compiled beforehand, which pays for
imports and for finding the C++ compiler. PyTorch's regional backend has its whole-result cache switched on
(``force_autograd_cache``, ``bundled_autograd_cache``). ``ahead`` is PyTorch's backend compiled ahead of time to a file
(``aot_compile``), which the second process loads. All take turns; a warm process follows its cold one.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile

RUNS = 3

PROBE = """
import os, sys, time
import torch, torch._functorch.config, torch._inductor.compile_fx
from pytest_regional._region import region
from pytest_regional._torch.dynamo import aot_compile, dump_function, load_function
from suites.models.llama import BATCH, LENGTH, SIZE, LlamaBlock

compiles = 0
original = torch._inductor.compile_fx.fx_codegen_and_compile

def counting(*args, **kwargs):
    global compiles
    compiles += 1
    return original(*args, **kwargs)

torch._inductor.compile_fx.fx_codegen_and_compile = counting

def backend():
    if sys.argv[1] == "ours":
        from pytest_regional.reference import regional
        return regional
    from pytest_regional._torch.dynamo import regional_inductor_backend
    torch._functorch.config.force_autograd_cache = True
    torch._functorch.config.bundled_autograd_cache = True
    return regional_inductor_backend()

def train(fn, *inputs):
    output = fn(*inputs)
    torch.autograd.backward(output, torch.ones_like(output))

def compiled(fn):
    return torch.compile(fn, backend=backend(), fullgraph=True)

def small(x):
    return (x.sin() + 1).cos()

def call(module, x):
    return module(x)

def ahead(model, x):
    path = os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ahead")
    if os.path.exists(path):
        function = load_function(open(path, "rb").read())
    else:
        function = aot_compile(call, [model, x], backend(), None)
        with open(path, "wb") as file:
            file.write(dump_function(function))
    train(function, model, x)

train(compiled(region("warm")(small)), torch.randn(7, requires_grad=True))
compiles = 0
model = torch.nn.Sequential(*(LlamaBlock() for _ in range(int(sys.argv[2]))))
x = torch.randn(BATCH, LENGTH, SIZE, requires_grad=True)
begin = time.perf_counter()
if sys.argv[1] == "ahead":
    ahead(model, x)
else:
    train(compiled(model), x)
print("probe", compiles, time.perf_counter() - begin)
"""


#: What takes turns.
WAYS = ("ours", "pytorch", "ahead")


def probe(which: str, layers: int, folder: str) -> tuple[int, float]:
    """Return region compiles and seconds of one process with its caches in ``folder``."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": folder,
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    command = [sys.executable, "-c", PROBE, which, str(layers)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    words = next(line for line in done.stdout.splitlines() if line.startswith("probe")).split()
    return int(words[1]), float(words[2])


def main(layers: int = 1) -> None:
    """Take turns, print a line for each way."""
    seen: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for _ in range(RUNS):
        for which in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                for temperature in ("cold", "warm"):
                    seen.setdefault((which, temperature), []).append(probe(which, layers, folder))
    version = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    )
    print(f"torch {version.stdout.strip()}, Python {platform.python_version()}, {os.cpu_count()} cores, {RUNS} runs")
    for which in WAYS:
        cold, warm = (statistics.median(seconds for _, seconds in seen[which, kind]) for kind in ("cold", "warm"))
        compiles = [sorted({count for count, _ in seen[which, kind]}) for kind in ("cold", "warm")]
        print(
            f"{which:8} cold {cold:6.2f} s, region compiles {compiles[0]}; warm {warm:5.2f} s, "
            f"region compiles {compiles[1]}; warm/cold 1/{cold / warm:.1f}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
