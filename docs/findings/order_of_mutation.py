"""A custom op that writes to an argument does not compile once it is ordered."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
from torch._inductor import config
from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch.utils._ordered_set import OrderedSet


@torch.library.custom_op("findings::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    x.mul_(2)


def order(graph):
    (product,) = (node for node in graph.nodes if node.target is torch.ops.aten.mm.default)
    (write,) = (node for node in graph.nodes if "auto_functionalized" in str(node.target))
    preserve_node_ordering(graph, {write: OrderedSet([product])})


def program(x, w):
    y = x.clone()
    product = w @ w
    double_(y)
    return y, product


try:
    with config.patch(post_grad_custom_post_pass=order, force_disable_caches=True):
        torch.compile(program, fullgraph=True)(torch.randn(4, 4), torch.randn(4, 4))
except Exception as error:
    text = " ".join(str(error).split())[:160]
    print(f"torch {torch.__version__}: still fails: {type(error).__name__}: {text}")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
