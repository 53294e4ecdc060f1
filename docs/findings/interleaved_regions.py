"""Two regions that wait for each other are refused as a dependency cycle."""

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


def program(x, y, w):
    with in_region("a"):
        a1 = x @ w
    with in_region("b"):
        b1, b2 = y @ w, a1 @ w.T
    with in_region("a"):
        a2 = b1 @ w.T
    return a2, b2


try:
    torch.compile(program, backend=backend, fullgraph=True)(torch.randn(4, 8), torch.randn(4, 8), torch.randn(8, 8))
except Exception as error:
    text = " ".join(str(error).split())[:160]
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {text}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
