"""A misspelt pre_grad_pass_timing is no error: the pass never runs, and the result without it is cached."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import operator

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass


class Square(CustomGraphPass):
    """Takes x @ x for x @ w."""

    calls = 0

    def __call__(self, graph):
        self.calls += 1
        for node in graph.find_nodes(op="call_function", target=operator.matmul):
            node.args = (node.args[0], node.args[0])

    def uuid(self):
        return "v1"


if not hasattr(config, "pre_grad_pass_timing"):
    print(f"torch {torch.__version__}: no pre_grad_pass_timing here")
    sys.exit(0)

x, w = torch.randn(4, 4), torch.randn(4, 4)
custom, error = Square(), None
try:
    with config.patch(pre_grad_custom_pass=custom, pre_grad_pass_timing="erly"):
        result = torch.compile(lambda x, w: x @ w, fullgraph=True)(x, w)
except Exception as raised:
    error = str(raised).splitlines()[0]
print(f"torch {torch.__version__}: timing 'erly' gave {error or 'no error'}; the pass ran {custom.calls} times")
sys.exit(error is None and custom.calls == 0)
