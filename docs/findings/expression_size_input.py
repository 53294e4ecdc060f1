"""A region input whose size is an expression of symbolic sizes does not compile with PyTorch's regional Inductor."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta


def program(x, w):
    doubled = torch.cat([x, x])
    with annotate({"compile_with_inductor": 0}):
        h = doubled.sin() + 1
    return h @ w


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


x, w = torch.randn(4, 8), torch.randn(8, 8)
try:
    torch.compile(program, backend=backend, fullgraph=True, dynamic=True)(x, w)
except Exception as error:
    text = " ".join(str(error).split())[:160]
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {text}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
