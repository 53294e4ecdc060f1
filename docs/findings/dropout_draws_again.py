"""With eager's random numbers, a dropout behind another op draws a second time in the backward.

AOTAutograd's default partitioner saves the mask, but leaves the draw (and the product that it draws for) in the
backward graph, where nobody uses it: draws are no dead code. Whatever draws next gets other numbers than in eager.
The min-cut partitioner removes it.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from functorch.compile import default_partition, make_boxed_func
from torch._dynamo.backends.common import aot_autograd


def program(x, w):
    return torch.nn.functional.dropout(x @ w, 0.5)


def eager(gm, inputs):
    return make_boxed_func(gm)


backend = aot_autograd(fw_compiler=eager, bw_compiler=eager, partition_fn=default_partition)
x, w = (torch.ones(8, 8, requires_grad=True) for _ in range(2))
with torch._inductor.config.patch(fallback_random=True):
    output = torch.compile(program, backend=backend)(x, w)
    before = torch.get_rng_state()
    output.sum().backward()
still_fails = not torch.equal(before, torch.get_rng_state())
print(f"torch {torch.__version__}: {'still fails: the backward drew' if still_fails else 'fixed'}")
sys.exit(still_fails)
