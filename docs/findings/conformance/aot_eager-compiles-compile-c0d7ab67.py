"""compiles (compile): TorchRuntimeError at torch._dynamo.exc:unimplemented: RuntimeError: Cannot call storage_offset() on tensor with symbolic sizes/strides (jvp, hardswish).

Found by fuzzing, reduced. To blame:
Dynamo: the graph that it captured is wrong already when it runs eagerly.
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

import torch
import torch._inductor.config
backend = "aot_eager"


def block0(x0):
    v1 = torch.nn.functional.hardswish(x0)
    return v1

def program(x0):
    v1 = torch.tanh(torch.func.jvp(block0, (x0,), (torch.ones_like(x0),))[1])
    return x0,

def inputs(device="cpu", seed=0):
    g = torch.Generator().manual_seed(seed)

    def signed(*shape):
        return (torch.rand(shape, generator=g) * 1.75 + 0.25) * (torch.randint(0, 2, shape, generator=g) * 2 - 1)

    x0 = signed(3).to(device, torch.float32)[1:]
    torch._dynamo.maybe_mark_dynamic(x0, 0)
    return (x0,)

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
