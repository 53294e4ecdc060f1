"""With eager's random numbers asked for, Inductor's backward draws once more what it does not need."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def program(x):
    return torch.rand(4, 4), torch.ceil(x)


def next_draw(function):
    torch.manual_seed(0)
    function(torch.ones((), requires_grad=True))[1].backward()
    return torch.rand(()).item()


with torch._inductor.config.patch(fallback_random=True):
    eager, compiled = next_draw(program), next_draw(torch.compile(program))
print(f"the next draw: eager {eager}, compiled {compiled}")
still_fails = eager != compiled
print(f"torch {torch.__version__}: {'still fails: later draws are others' if still_fails else 'fixed'}")
sys.exit(still_fails)
