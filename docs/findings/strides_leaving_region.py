"""A channels-last value leaves a region with strides that neither eager nor the traced graph have."""

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


def program(x):
    with in_region("r"):
        return torch.stack([x, x])


x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
found, expected = torch.compile(program, backend=backend, fullgraph=True)(x).stride(), program(x).stride()
print(f"torch {torch.__version__}: strides {found}, eager {expected}")
sys.exit(found != expected)
