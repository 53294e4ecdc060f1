"""Random draws of a region and draws outside change places: with fallback_random values are not eager's."""

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


import torch._inductor.config


def program(x):
    with in_region("r"):
        first = torch.rand_like(x) @ x
    second = torch.rand_like(x) @ x
    with in_region("r"):
        third = torch.rand_like(x) @ x
    return first, second, third


x = torch.randn(8, 8)
torch.manual_seed(0)
expected = program(x)
torch.manual_seed(0)
with torch._inductor.config.patch(fallback_random=True):
    found = torch.compile(program, backend=backend, fullgraph=True)(x)
equal = [torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True)]
print(f"torch {torch.__version__}: three draws, the second outside the region; equal to eager: {equal}")
sys.exit(not all(equal))
