"""parity (run): value of output, value of output (second call) (rand_like, add, region 'a': with it left eager the program agrees with eager).

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

import torch
from torch.fx.traceback import annotate
import torch._inductor.config
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import preserve_node_meta


def backend(gm, example_inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, example_inputs)



def program(x0):
    with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
        v1 = torch.rand_like(x0)
    v2 = torch.rand_like(x0)
    with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
        v3 = torch.add(v1, x0)
    return v2, v3

def inputs(device="cpu", seed=0):
    g = torch.Generator().manual_seed(seed)

    def signed(*shape):
        return (torch.rand(shape, generator=g) * 1.75 + 0.25) * (torch.randint(0, 2, shape, generator=g) * 2 - 1)

    x0 = signed().to(device, torch.float32)
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


def differences(found, expected):
    """Yield where two runs differ by more than rounding."""
    if [name for name, _ in found] != [name for name, _ in expected]:
        yield f"compiled has {[name for name, _ in found]}, eager {[name for name, _ in expected]}"
        return
    for (name, ours), (_, theirs) in zip(found, expected):
        for kind in ("dtype", "shape", "stride"):
            one, other = (getattr(value, kind) for value in (ours, theirs))
            one, other = (one(), other()) if callable(one) else (one, other)
            if one != other and (kind != "stride" or theirs.numel() > 1):
                yield f"{name}: {kind} {one}, eager {other}"
        if ours.shape == theirs.shape and not close(ours, theirs):
            yield f"{name}: {ours.flatten()[:4].tolist()} ..., eager {theirs.flatten()[:4].tolist()} ..."


def close(ours, theirs):
    if not theirs.dtype.is_floating_point:
        return torch.equal(ours, theirs.to(ours.dtype))
    tolerance = 16 * torch.finfo(theirs.dtype).eps
    return torch.allclose(ours.double(), theirs.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def is_lacking(error):
    """Whether a compile failed for what this machine has not: a package, a compiler."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) or type(error).__name__ in ("InvalidCxxCompiler", "TritonMissing"):
            return True
        error = getattr(error, "inner_exception", None) or error.__cause__
    return False


torch._inductor.config.fallback_random = True  # the same random numbers as eager
compiled = torch.compile(program, backend=backend, fullgraph=True, dynamic=DYNAMIC)
wrong = []
for seed in SEEDS:
    expected = run(program, seed)
    try:
        found = run(compiled, seed)
    except Exception as error:
        if is_lacking(error):
            raise
        wrong.append(f"call {seed + 1}: compiled raises {type(error).__name__}: {' '.join(str(error).split())[:160]}")
    else:
        wrong += [f"call {seed + 1}: {what}" for what in differences(found, expected)]
print("\n".join(wrong))
print(f"torch {torch.__version__}: {'still fails' if wrong else 'fixed'}")
sys.exit(bool(wrong))
