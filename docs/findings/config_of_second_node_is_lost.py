"""Of two inductor_configs in one region the first silently wins for both."""

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


seen = []
original = torch._inductor.standalone_compile


def spy(*arguments, **options):
    seen.append(torch._inductor.config.epilogue_fusion)
    return original(*arguments, **options)


torch._inductor.standalone_compile = spy


def program(x, w):
    with in_region("one", epilogue_fusion=False):
        h = x @ w
    with in_region("one", epilogue_fusion=True):
        return h @ w


torch.compile(program, backend=backend, fullgraph=True)(torch.randn(4, 8), torch.randn(8, 8))
print(f"torch {torch.__version__}: epilogue_fusion seen by the compiles: {seen}, asked for: [False, True]")
sys.exit(seen != [False, True])
