"""Annotations in bodies of operators, while gradients are traced: a scan loses all, the others those of gradients."""

import os
import sys

sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch.fx.traceback import annotate, preserve_node_meta

seen = {}


def look(kind):
    def compile_graph(gm, inputs):
        graphs = [module for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
        nodes = [node for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
        seen[kind] = sum("compile_with_inductor" in node.meta.get("custom", {}) for node in nodes)
        return gm

    return compile_graph


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=look("forward"), bw_compiler=look("backward"))(gm, inputs)


def body(row, weight):
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        h = (row @ weight).sin()
    return h.tanh()


def scanned(x, w):
    return scan(lambda carried, row: (carried + body(row, w), body(row, w)), x[0], x)[1]


def mapped(x, w):
    return map_over(body, x, w)


def branched(x, w):
    return torch.cond(x.sum() > 0, body, lambda a, b: (a @ b).cos(), (x[0], w))


lost = []
for program in (scanned, mapped, branched):
    seen.clear()
    x, w = torch.rand(3, 4, 8, requires_grad=True), torch.rand(8, 8, requires_grad=True)
    torch.compile(program, backend=backend, fullgraph=True)(x, w).sum().backward()
    lost += [f"{program.__name__} {kind}" for kind, count in seen.items() if not count]
print(f"torch {torch.__version__}: graphs without any annotated op: {lost}")
sys.exit(bool(lost))
