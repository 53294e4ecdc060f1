"""With the min-cut partitioner an op inside a region is merged with its twin outside: the region loses it."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta


def in_region(name, **configs):
    value = {"inductor_region": name}
    return annotate({"compile_with_inductor": value | ({"inductor_configs": configs} if configs else {})})


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


from functorch.compile import min_cut_rematerialization_partition

held = []


def forward_compiler(gm, inputs):
    marked = [node for node in gm.graph.nodes if "compile_with_inductor" in node.meta.get("custom", {})]
    held.append([str(node.target) for node in marked if node.op == "call_function"])
    return regional_inductor(gm, *inputs)


def min_cut_backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(
            fw_compiler=forward_compiler,
            bw_compiler=regional_inductor,
            partition_fn=min_cut_rematerialization_partition,
        )(gm, inputs)


def program(x, w):
    before = x @ w
    with in_region("r"):
        h = (x @ w) @ w
    return before.sin() + h


x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
torch.compile(program, backend=min_cut_backend, fullgraph=True)(x, w)
print(f"torch {torch.__version__}: two products are written in the region, it holds {held[0]}")
sys.exit(held[0].count("aten.mm.default") != 2)
