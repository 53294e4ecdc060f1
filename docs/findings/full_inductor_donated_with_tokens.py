"""With a token of effects among the forward's inputs AOTAutograd donates a user's input, which the backward overwrites.

What a backward may overwrite is looked up by the forward's inputs, counted without the token that stands first.
``torch.compile`` with Inductor takes tokens out again (``unlift_effect_tokens``) and is not affected.
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
    return compile_fx_inner(gm, inputs, is_backward=True)


def program(x):
    torch.ops.aten._print("an effect")
    return torch.nn.functional.gelu(x)


x = torch.randn(8, 8, requires_grad=True)
before = x.detach().clone()
backend = aot_autograd(fw_compiler=forward, bw_compiler=backward, decompositions=select_decomp_table())
torch.compile(program, backend=backend, fullgraph=True)(x).sum().backward()
changed = not torch.equal(x, before)
print(f"torch {torch.__version__}: the user's input was overwritten: {changed}")
sys.exit(changed)
