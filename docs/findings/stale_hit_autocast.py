"""Whole-graph Inductor's cache gives back what was compiled under another autocast dtype."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x, w):
    return x @ w


def dtype_of_result(dtype):
    torch._dynamo.reset()
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        return torch.compile(program, fullgraph=True)(torch.randn(8, 8), torch.randn(8, 8)).dtype


asked = (torch.bfloat16, torch.float16)
got = tuple(map(dtype_of_result, asked))
print(f"torch {torch.__version__}: {'fixed' if got == asked else 'still fails'}: asked for {asked}, got {got}")
sys.exit(got != asked)
