"""A slice leaves a region without the gaps that it has in eager mode; a region of the backward refuses it."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops import associative_scan
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


def combine(left, right):
    return left[0] * right[0], left[1] * right[0] + right[1]


def program(a, b):
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        h = associative_scan(combine, (a, b), 1, combine_mode="generic")[1]
    return h.sin()


def gradients(call):
    a, b = (torch.linspace(0.1, 0.9, 24).reshape(2, 4, 3).requires_grad_() for _ in range(2))
    return torch.autograd.grad(call(a, b).sum(), (a, b))


expected = gradients(program)
try:
    found = gradients(torch.compile(program, backend=backend, fullgraph=True))
except AssertionError as error:
    print(f"torch {torch.__version__}: {str(error).splitlines()[0]}")
    sys.exit(1)
right = all(map(torch.allclose, found, expected))
print(f"torch {torch.__version__}: gradients {'as' if right else 'other than'} eager's")
sys.exit(not right)
