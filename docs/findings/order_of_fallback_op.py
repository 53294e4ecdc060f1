"""An op that is marked to fall back to eager does not compile once it is ordered."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch.utils._ordered_set import OrderedSet
from torch._inductor import config
from torch._inductor.utils import run_and_get_code


def compiled(program, order, *inputs):
    """Return the generated wrapper after ``order(graph, nodes by name)`` ran behind Inductor's own passes."""

    def add_edges(graph):
        order(graph, {node.name: node for node in graph.nodes})

    with config.patch(post_grad_custom_post_pass=add_edges, force_disable_caches=True, reorder_for_locality=False):
        _, (code,) = run_and_get_code(torch.compile(program, fullgraph=True), *inputs)
    return code


def program(x, w):
    return x + 1, w.neg()


def order(graph, nodes):
    nodes["neg"].meta["should_fallback"] = True
    preserve_node_ordering(graph, {nodes["neg"]: OrderedSet([nodes["add"]])})


try:
    compiled(program, order, torch.randn(4, 4), torch.randn(4, 4))
except Exception as error:
    text = " ".join(str(error).split())[:120]
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {text}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
