"""compiles (compile): AssertionError at torch.fx.passes.utils.fuser_utils:fuse_as_graphmodule (mul_part_, sort, logaddexp, mul_, zeros, mm, round, reciprocal, gelu_tanh, mul_number).

Found by fuzzing, reduced.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()


def cannot_be_checked(kind, error, trace):
    """Exit with 2, neither 0 (fixed) nor 1 (still fails): the error says nothing about the defect."""
    sys.__excepthook__(kind, error, trace)
    print(f"cannot be checked here: {kind.__name__}", flush=True)
    os._exit(2)


if __name__ == "__main__":
    sys.excepthook = cannot_be_checked

import math

import torch
from torch.fx.traceback import annotate
import torch._inductor.config
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import preserve_node_meta


def backend(gm, example_inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, example_inputs)



def block0(x0):
    v1 = torch.reciprocal(x0)
    with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
        v2 = torch.nn.functional.gelu(x0, approximate="tanh")
    with annotate({"compile_with_inductor": {"inductor_region": "c"}}):
        v3 = torch.mul(x0, 2.0)
    return v3

def program(x0, x1, x2, x3, x4):
    with annotate({"compile_with_inductor": {"inductor_region": "b"}}):
        x0[..., 0].mul_(1.0)
    with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
        v5, v6 = torch.sort(x4, 1)
    with annotate({"compile_with_inductor": {"inductor_region": "b"}}):
        v7 = torch.logaddexp(x0, x0)
        x4.mul_(x4)
    with annotate({"compile_with_inductor": {"inductor_region": "c"}}):
        v8 = torch.zeros((), device=x3.device)
    with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
        v9 = torch.mm(x0, x0)
    with annotate({"compile_with_inductor": {"inductor_region": "b"}}):
        v10 = torch.round(v5)
    return x1, x0, x1, v5, v6, v7, v8, v9, v10, x4, v10, x2

def inputs(device="cpu", seed=0):
    g = torch.Generator().manual_seed(seed)

    def distinct(*shape):
        count = max(math.prod(shape), 1)
        return (torch.randperm(count, generator=g)[: math.prod(shape)].reshape(shape) * 2 + 1 - count) / count * 2

    def index(*shape, below):
        return torch.randint(0, below, shape, generator=g)

    x0 = distinct(4, 4).to(device, torch.float32)
    x1 = index(4, 4, below=3).to(device, torch.int64)
    x2 = index(4, 8, below=2).to(device, torch.int64)[..., ::2]
    x3 = index(below=2).to(device, torch.uint8)
    x4 = distinct(4, 4).to(device, torch.float64)
    return (x0, x1, x2, x3, x4,)

SEEDS = (0, 1)
TRAINING = False
DYNAMIC = None


def run(function, seed):
    """Return what a call leaves: outputs, gradients, inputs afterwards."""
    arguments = inputs("cpu", seed)
    torch.manual_seed(seed)
    outputs = function(*arguments)
    differentiable = [value for value in outputs if value.requires_grad]
    if TRAINING and differentiable:
        g = torch.Generator().manual_seed(seed)
        cotangents = [torch.rand(value.shape, generator=g).to(value) for value in differentiable]
        torch.autograd.backward(differentiable, cotangents)
    named = [(f"output {index}", value) for index, value in enumerate(outputs)]
    named += [(f"input {index} afterwards", value) for index, value in enumerate(arguments)]
    named += [(f"gradient of input {index}", value.grad) for index, value in enumerate(arguments)]
    return [(name, value.detach()) for name, value in named if value is not None]


def is_lacking(error):
    """Whether a compile failed for what this machine has not: a package, a compiler."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) or type(error).__name__ in ("InvalidCxxCompiler", "TritonMissing"):
            return True
        error = getattr(error, "inner_exception", None) or error.__cause__
    return False


torch._inductor.config.fallback_random = True  # the same random numbers as eager
compiled = torch.compile(program, backend=backend, fullgraph=True, dynamic=DYNAMIC)
for seed in SEEDS:
    run(program, seed)
    try:
        run(compiled, seed)
    except Exception as error:
        if is_lacking(error):
            raise
        text = " ".join(str(error).split())[:160]
        print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {text}")
        sys.exit(1)
print(f"torch {torch.__version__}: fixed")
