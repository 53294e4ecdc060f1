"""With eager's random numbers, a dropout whose result nobody uses breaks the split into forward and backward.

The draw has to stay in the graph, so that later draws are those of eager. AOTAutograd's default partitioner recognises
an op with several results by its users alone and takes one without users for a tensor:
"AssertionError: Expected native_dropout to be a tensor". The min-cut partitioner takes it.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from functorch.compile import default_partition, make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import config


def program(x):
    torch.nn.functional.dropout(x, 0.25)
    return torch.nn.functional.dropout(x, 0.25)


def eager(gm, inputs):
    return make_boxed_func(gm)


backend = aot_autograd(fw_compiler=eager, bw_compiler=eager, partition_fn=default_partition)
x = torch.randn(8, requires_grad=True)
with config.patch(fallback_random=True):
    try:
        torch.compile(program, backend=backend)(x)
    except Exception as error:
        print(f"torch {torch.__version__}: {type(error).__name__}: {str(error).splitlines()[1]}")
        sys.exit(1)
print(f"torch {torch.__version__}: fixed")
