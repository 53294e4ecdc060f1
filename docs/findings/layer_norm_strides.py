"""The fake gradient of ``layer_norm`` has other strides than the real one: a region that reads it refuses it."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta
from torch.nn.functional import layer_norm


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


def program(x):
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        h = torch.tanh(x)
    return layer_norm(h, (8,)).transpose(1, 2).contiguous()


x = torch.linspace(-1, 1, 1024).reshape(2, 64, 8).requires_grad_()
(expected,) = torch.autograd.grad(program(x).sin().sum(), x)
try:
    (found,) = torch.autograd.grad(torch.compile(program, backend=backend, fullgraph=True)(x).sin().sum(), x)
except AssertionError as error:
    print(f"torch {torch.__version__}: {str(error).splitlines()[0]}")
    sys.exit(1)
right = torch.allclose(found, expected, atol=1e-6)
print(f"torch {torch.__version__}: the gradient {'equals' if right else 'differs from'} eager's")
sys.exit(not right)
