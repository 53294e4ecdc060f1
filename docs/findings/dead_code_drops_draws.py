"""``Graph.eliminate_dead_code`` removes a random draw that nobody uses, wherever a graph pass calls it in a compile.

Outside of any tracing context the same call keeps it, so that a pass tested on its own looks right. Every draw that
follows gives another number than eager.
"""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch.fx.experimental.proxy_tensor import make_fx


def program(x):
    torch.rand_like(x)
    return torch.rand_like(x)


def draws(gm):
    return len(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.rand_like.default))


x = torch.zeros(4)
alone, compiling = (make_fx(program)(x) for _ in range(2))
alone.graph.eliminate_dead_code()
with torch._guards.tracing(torch._guards.TracingContext(None)):
    compiling.graph.eliminate_dead_code()
compiling.recompile()

torch.manual_seed(0)
expected = program(x)
torch.manual_seed(0)
found = compiling(x)
print(f"torch {torch.__version__}: {draws(alone)} draws left outside a compile, {draws(compiling)} inside one")
print(f"as eager: {torch.equal(found, expected)}")
sys.exit(not torch.equal(found, expected))
