"""An edge from an op without result is lost, unless that op itself waits for something."""

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


library = torch.library.Library("findings", "FRAGMENT")
library.define("tell(Tensor x) -> ()")
library.impl("tell", lambda x: None, "CompositeExplicitAutograd")
torch.fx.node.has_side_effect(torch.ops.findings.tell.default)


def program(x, w):
    torch.ops.findings.tell(x)
    return w @ w


dependencies = []


def order(graph, nodes):
    tell, mm = nodes["tell"], nodes["mm"]
    preserve_node_ordering(graph, {mm: OrderedSet([tell])})


from torch._inductor.graph import GraphLowering

codegen = GraphLowering.codegen


def watched(lowering):
    dependencies.extend(name for names in lowering.additional_buffer_deps.values() for name in names)
    return codegen(lowering)


GraphLowering.codegen = watched
compiled(program, order, torch.randn(4, 4), torch.randn(4, 4))
still_fails = not dependencies
seen = "still fails: the scheduler is told of no dependency"
print(f"torch {torch.__version__}: {seen if still_fails else 'fixed'}")
sys.exit(still_fails)
