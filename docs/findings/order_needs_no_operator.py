"""An edge that values imply gets an operator, and keeps two ops from being one kernel."""

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


def program(x):
    return (x + 1) * 2


def order(graph, nodes):
    preserve_node_ordering(graph, {nodes["mul"]: OrderedSet([nodes["add"]])})


loops = compiled(program, order, torch.randn(4, 4)).count("for(int64_t")
still_fails = loops > 1
print(
    f"torch {torch.__version__}: "
    + ("still fails: add and mul, which need no edge, are two loops" if still_fails else "fixed")
)
sys.exit(still_fails)
