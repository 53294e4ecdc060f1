"""AOTAutograd's cache gives back what was compiled for other annotations: its key does not hold them."""

import contextlib
import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
import torch._inductor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


def program(**annotations):
    """Return two products of square matrices; ``first`` and ``second`` say what each is annotated with."""

    def marked(name):
        value = annotations.get(name)
        return annotate({"compile_with_inductor": value}) if value else contextlib.nullcontext()

    def products(x, w):
        with marked("first"):
            x = x @ w
        with marked("second"):
            return x @ w

    return products


def compile_and_run(fn):
    """Return how many regions were handed to Inductor, and whether the whole result came from the cache."""
    torch._dynamo.reset()
    counters.clear()
    regions.clear()
    torch.compile(fn, backend=backend, fullgraph=True)(torch.randn(8, 8), torch.randn(8, 8))
    return len(regions), counters["aot_autograd"]["autograd_cache_hit"]


regions = []
original = torch._inductor.standalone_compile


def noting(*args, **kwargs):
    regions.append(args[0])
    return original(*args, **kwargs)


torch._inductor.standalone_compile = noting

plain, in_a = {}, {"first": {"inductor_region": "a"}}
CHANGES = {
    "annotated": (plain, in_a),
    "no longer annotated": (in_a, plain),
    "another region id": (in_a, {"first": {"inductor_region": "b"}}),
    "another config": (in_a, {"first": {"inductor_region": "a", "inductor_configs": {"epilogue_fusion": False}}}),
    "a moved border": (in_a, {"second": {"inductor_region": "a"}}),
}

stale = 0
with torch._functorch.config.patch(force_autograd_cache=True, bundled_autograd_cache=True):
    for change, (before, after) in CHANGES.items():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
        compiled, _ = compile_and_run(program(**before))
        again, hits = compile_and_run(program(**after))
        stale += hits
        print(f"  {change}: {compiled} regions compiled before, {again} after, whole results found: {hits}")

print(f"torch {torch.__version__}: {'still fails' if stale else 'fixed'}: {stale} of {len(CHANGES)} changes were a hit")
sys.exit(bool(stale))
