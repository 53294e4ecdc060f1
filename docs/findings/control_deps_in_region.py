"""An ordering edge (control_deps) whose node is inside a region does not compile."""

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


from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch.utils._ordered_set import OrderedSet


def ordered(gm, *inputs):
    products = [node for node in gm.graph.nodes if node.target == torch.ops.aten.mm.default]
    preserve_node_ordering(gm.graph, {products[1]: OrderedSet([products[0]])})
    gm.recompile()
    return regional_inductor(gm, *inputs)


def ordering_backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=ordered, bw_compiler=regional_inductor)(gm, inputs)


def program(x, w):
    with in_region("r"):
        return x @ w, x @ w.T


try:
    torch.compile(program, backend=ordering_backend, fullgraph=True)(torch.randn(8, 8), torch.randn(8, 8))
except Exception as error:
    text = " ".join(str(error).split())[:160]
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {text}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
