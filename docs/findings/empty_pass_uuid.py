"""A pass whose uuid is an empty string counts as having one, and then makes every lookup a bypass without a word."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import warnings

import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass


class Idle(CustomGraphPass):
    def __call__(self, graph):
        """Do nothing."""

    def uuid(self):
        return ""


def product(x, w):
    return x @ w


def outcomes():
    return {k.removeprefix("autograd_cache_"): n for k, n in counters["aot_autograd"].items() if "cache" in k and n}


error = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        for _ in range(2):
            torch._dynamo.reset()
            with config.patch(pre_grad_custom_pass=Idle()):
                torch.compile(product, fullgraph=True)(torch.ones(4, 4), torch.ones(4, 4))
    except Exception as raised:
        error = str(raised).splitlines()[0]
said = [str(w.message) for w in caught if "uuid" in str(w.message)]
print(f"torch {torch.__version__}: two compiles gave {outcomes()}, error {error}, warnings {said}")
sys.exit(bool(outcomes().get("bypass")) and not said and error is None)
