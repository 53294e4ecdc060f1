"""A program with a collective outside its regions is compiled anew by every process: AOTAutograd cannot store it."""

import logging
import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
import torch._inductor
import torch.distributed as dist
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.regional_inductor import regional_inductor
from torch.fx.traceback import annotate, preserve_node_meta
from torch.testing._internal.distributed.fake_pg import FakeStore

logging.getLogger("torch._functorch._aot_autograd.autograd_cache").setLevel(logging.ERROR)
torch._functorch.config.force_autograd_cache = torch._functorch.config.bundled_autograd_cache = True
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
regions = []
original = torch._inductor.standalone_compile


def noting(*args, **kwargs):
    regions.append(args[0])
    return original(*args, **kwargs)


torch._inductor.standalone_compile = noting


def backend(gm, inputs):
    with preserve_node_meta():
        return aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)


def local(x):
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        y = x.sin()
    return y + 1


def collective(x):
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        y = x.sin()
    collectives = torch.ops._c10d_functional
    return collectives.wait_tensor(collectives.all_reduce(y, "sum", dist.group.WORLD.group_name)) + 1


def compiled_again(program):
    """Return how many regions the second process would hand to Inductor."""
    for _ in range(2):
        torch._dynamo.reset()
        regions.clear()
        torch.compile(program, backend=backend)(torch.ones(3))
    return len(regions)


without, with_collective = compiled_again(local), compiled_again(collective)
print(f"compiled again: {without} regions of the program without a collective, {with_collective} of the one with")
still_fails = with_collective > without
print(f"torch {torch.__version__}: {'still fails: the one with a collective is not saved' if still_fails else 'fixed'}")
dist.destroy_process_group()
sys.exit(2 if without else still_fails)
