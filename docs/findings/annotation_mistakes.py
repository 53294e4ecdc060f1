"""Misspelt or ill-typed annotations are accepted in silence: the region compiles otherwise than asked for."""

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


MISTAKES = [
    {"inductor_regoin": "r"},
    {"inductor_region": None},
    {"inductor_region": 1.5},
    {"inductor_configs": {"epilogue_fusion": "yes"}},
    ["r"],
]


def accepted(value):
    def program(x, w):
        with annotate({"compile_with_inductor": value}):
            return x @ w

    torch._dynamo.reset()
    try:
        torch.compile(program, backend=backend, fullgraph=True)(torch.randn(4, 8), torch.randn(8, 8))
    except Exception as error:
        print("  refused:", value, type(error).__name__, str(error).splitlines()[1:2])
        return False
    return True


silent = [value for value in MISTAKES if accepted(value)]
print(f"torch {torch.__version__}: accepted in silence: {silent}")
sys.exit(bool(silent))
