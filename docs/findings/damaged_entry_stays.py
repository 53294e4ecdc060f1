"""A damaged entry of AOTAutograd's cache is never replaced: from then on every process compiles anew.

A file that is read and then cannot be used (here: one bit is flipped) counts as a bypass, and after a bypass nothing is
stored: ``AOTAutogradCache.try_load`` in ``torch/_functorch/_aot_autograd/autograd_cache.py`` has given up the key. The
values are right; what is lost, in silence, is the cache of that program, until somebody deletes the file. Other flipped
bits are not noticed at all: there is no checksum. Found by fuzzing histories of the cache.

Expected: the program is stored again, as after a miss.
"""

import os
import sys
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp())
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
import torch._functorch.config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


def program(x):
    with annotate({"compile_with_inductor": {}}):
        return torch.sin(x) * 2


def answer_of_a_process():
    """Return what AOTAutograd's cache answers: it is asked for the graph and, on a miss, for the region as well."""
    torch._dynamo.reset()
    counters.clear()
    with torch._functorch.config.patch(force_autograd_cache=True, bundled_autograd_cache=True):
        torch.compile(program, backend=backend)(torch.ones(8))
    found = counters["aot_autograd"]
    return next(name for name in ("bypass", "miss", "hit") if found[f"autograd_cache_{name}"])


print("first, and again:", answer_of_a_process(), answer_of_a_process())
entries = {path: path.read_bytes() for path in (folder / "aotautograd").rglob("*") if path.is_file()}
answers = []
for tenth in range(1, 10):
    for path, data in entries.items():
        place = len(data) * tenth // 10
        path.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
    answers.append((answer_of_a_process(), answer_of_a_process()))
print("one bit flipped, at nine places, and again:", *map(" ".join, answers), sep="\n  ")
wrong = ("bypass", "bypass") in answers
print(f"torch {torch.__version__}: {'still fails' if wrong else 'fixed'}")
sys.exit(wrong)
