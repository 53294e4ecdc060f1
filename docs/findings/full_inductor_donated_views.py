"""AOTAutograd donates two saved values that are one tensor, and Inductor's backward overwrites one through the other.

Without Inductor's passes on the joint graph (here: forward and backward compiled by ``compile_fx_inner``, as in the
discussion of whole-graph Inductor as a pass), a softmax and its ``detach`` are both saved. Both are donated.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table


def forward(gm, inputs):
    return compile_fx_inner(gm, inputs)


def backward(gm, inputs):
    print("donated:", torch._guards.TracingContext.get().fw_metadata.bw_donated_idxs)
    for node in gm.graph.find_nodes(op="placeholder"):
        print(f"  {node.name}: storage {node.meta['val'].untyped_storage()._cdata:x}")
    return compile_fx_inner(gm, inputs, is_backward=True)


def loss(x):
    return torch.nn.functional.kl_div(torch.log_softmax(x, -1), torch.softmax(x * 2, -1), reduction="sum")


torch.manual_seed(0)
x = torch.randn(8, 8, requires_grad=True)
(expected,) = torch.autograd.grad(loss(x), x)
backend = aot_autograd(fw_compiler=forward, bw_compiler=backward, decompositions=select_decomp_table())
(found,) = torch.autograd.grad(torch.compile(loss, backend=backend, fullgraph=True)(x), x)
error = (found - expected).abs().max().item()
print(f"torch {torch.__version__}: largest difference of the gradient from eager: {error}")
sys.exit(error > 1e-5)
