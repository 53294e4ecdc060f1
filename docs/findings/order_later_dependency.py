"""preserve_node_ordering makes a graph that is no program where the dependency stands later."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch.utils._ordered_set import OrderedSet

from torch.fx.experimental.proxy_tensor import make_fx


def traced(program, *inputs):
    gm = make_fx(program, tracing_mode="fake")(*inputs)
    return gm, {node.name: node for node in gm.graph.nodes}


def program(x):
    return x + 1, x @ x


gm, nodes = traced(program, torch.randn(4, 4))
preserve_node_ordering(gm.graph, {nodes["add"]: OrderedSet([nodes["mm"]])})
try:
    gm.graph.lint()
    still_fails = False
except RuntimeError as error:
    still_fails = True
    text = " ".join(str(error).split())[:120]
print(f"torch {torch.__version__}: " + (f"still fails: no error until lint says: {text}" if still_fails else "fixed"))
sys.exit(still_fails)
