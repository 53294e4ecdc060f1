"""A region with a tensor constant: a result that the cache stored whole cannot be called when it is loaded."""

import logging
import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta

logging.disable(logging.CRITICAL)


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


def program(x, w):
    with annotate({"compile_with_inductor": 0}):
        return (x + torch.tensor([1.0, 2.0, 3.0, 4.0])) @ w


def outcome():
    torch._dynamo.reset()
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    try:
        output = torch.compile(program, backend=backend, fullgraph=True)(x, w)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return "right" if torch.allclose(output, program(x, w), atol=1e-4) else "wrong values"


with torch._functorch.config.patch(force_autograd_cache=True, bundled_autograd_cache=True):
    cold, warm = outcome(), outcome()
print(f"  compiled: {cold}\n  loaded: {warm}")
still_fails = (cold, warm) != ("right", "right")
print(f"torch {torch.__version__}: {'still fails' if still_fails else 'fixed'}")
sys.exit(still_fails)
