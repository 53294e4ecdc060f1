"""After a second ``torch.compiler.save_cache_artifacts()`` in one process the first one's entries are not loaded.

``CacheArtifactManager.serialize`` in ``torch/compiler/_cache.py`` appends what is new to what it returned before, as a
list of its own for each kind of artifact; ``deserialize`` makes a dictionary of those lists, so the last list of a kind
replaces the others. The ``CacheInfo`` that is returned with the bytes still names all of them.

Expected: what the second call names is loaded.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


def save_after(function):
    torch.compile(function)(torch.ones(8))
    return torch.compiler.save_cache_artifacts()


first = save_after(torch.sin)
second = save_after(torch.cos)
loaded = torch.compiler.load_cache_artifacts(second[0])

print("named by the first save: ", first[1].aot_autograd_artifacts)
print("named by the second save:", second[1].aot_autograd_artifacts)
print("loaded of the second:    ", loaded.aot_autograd_artifacts)
wrong = set(loaded.aot_autograd_artifacts) != set(second[1].aot_autograd_artifacts)
print(f"torch {torch.__version__}: {'still fails' if wrong else 'fixed'}")
sys.exit(wrong)
