"""parity (run): value of output, value of output (second call) (rand_like, add, region 'a': with it left eager the program agrees with eager).

Found by fuzzing, reduced.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()

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


torch._inductor.config.fallback_random = True  # the same random numbers as eager
compiled = torch.compile(program, backend=backend, fullgraph=True, dynamic=DYNAMIC)
wrong = [
    f"call {seed + 1}: {what}" for seed in SEEDS for what in differences(run(compiled, seed), run(program, seed))
]
print("\n".join(wrong))
print(f"torch {torch.__version__}: {'stands' if wrong else 'mended'}")
sys.exit(bool(wrong))
