"""A backward that compiles while another thread compiles a forward: their tracing undoes each other's patches."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta


def in_region(name, **configs):
    value = {"inductor_region": name}
    return annotate({"compile_with_inductor": value | ({"inductor_configs": configs} if configs else {})})


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


from concurrent.futures import ThreadPoolExecutor


def one(x, w):
    with in_region("one"):
        h = x @ w
    return h.sin()


def two(x, w):
    with in_region("two"):
        h = x @ w @ w
    return h.sin()


def three(x, w):
    with in_region("three"):
        h = x @ w @ w @ w
    return h.sin()


def four(x, w):
    with in_region("four"):
        h = x @ w @ w.t()
    return h.sin()


def work(program):
    x, w = torch.ones(4, 8, requires_grad=True), torch.ones(8, 8, requires_grad=True)
    torch.compile(program, backend=backend, fullgraph=True)(x, w).sum().backward()


with ThreadPoolExecutor(4) as pool:
    errors = [job.exception() for job in [pool.submit(work, program) for program in (one, two, three, four)]]
failed = [f"{type(error).__name__}: {' '.join(str(error).split())[:100]}" for error in errors if error]
print(f"torch {torch.__version__}: {len(failed)} of 4 threads failed: {failed}")
sys.exit(bool(failed))
