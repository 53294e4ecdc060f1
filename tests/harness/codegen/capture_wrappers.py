"""Write the wrappers in ``wrappers/``: ``python tests/harness/codegen/capture_wrappers.py [EMULATION] [NAMES...]``.

On a machine with a GPU the programs are compiled as they are. Elsewhere EMULATION names a module that can be imported
and makes Inductor generate Triton code without one: ``backend_post`` is its Dynamo backend, ``CODES`` the list of
wrappers that it generated, ``PICK["kind"]`` the kind of template it takes, ``pretend`` a context in which Dynamo, too,
believes that there is a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from pathlib import Path

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()

import torch
import triton
import triton.language as tl

WRAPPERS = Path(__file__).parent / "wrappers"


@triton.jit
def double_and_exp(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Write ``x * 2 + exp(y)``."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x, y = tl.load(x_ptr + offsets, mask=mask), tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * 2 + tl.exp(y), mask=mask)


def train(a, b):
    """Two products, and a kernel that needs both."""
    c, d = a + 1, a @ b
    return torch.nn.functional.silu(d) * c + (d @ b).sum()


def user(x, y):
    """A kernel that the user wrote, and one that Inductor did."""
    out = torch.empty_like(x)
    double_and_exp[(1,)](x, y, out, out.numel(), BLOCK=256)
    return out + 1


def branch(a):
    """Kernels in both branches and around them."""
    return torch.cond(a.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() - 1, (a,)) * 2


def template(a, b):
    """A product that Inductor writes itself, with what follows it fused in."""
    return (a @ b).relu() + 1


def foreach(a, b):
    """One kernel over two tensors."""
    return torch._foreach_add([a, b], 1.0)


def leaf(*shape):
    """Make an input that requires a gradient."""
    return torch.randn(shape, requires_grad=True)


TEMPLATES = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
PROGRAMS = {
    "train": (train, [leaf(8, 8), leaf(8, 8)], {}),
    "user": (user, [torch.randn(64), torch.randn(64)], {}),
    "branch": (branch, [torch.randn(8, 8)], {}),
    "template": (template, [torch.randn(64, 96), torch.randn(96, 80)], TEMPLATES),
    "foreach": (foreach, [torch.randn(8, 8), torch.randn(8)], {}),
}


def generated(name: str, emulation) -> list[str]:
    """Return the wrappers of one program, forward before backward."""
    function, inputs, configs = PROGRAMS[name]
    with torch._inductor.config.patch(configs), contextlib.ExitStack() as stack:
        if emulation is None:
            from torch._inductor.utils import run_and_get_code

            inputs = [x.detach().cuda().requires_grad_(x.requires_grad) for x in inputs]
            return run_and_get_code(lambda: run(torch.compile(function), inputs))[1]
        emulation.CODES.clear()
        emulation.PICK["kind"] = "Triton" if configs else None
        # The kernels need not run: what fails after the code was generated is no concern here.
        stack.enter_context(contextlib.suppress(AttributeError))
        stack.enter_context(emulation.pretend())
        run(torch.compile(function, backend=emulation.backend_post), inputs)
    return list(emulation.CODES)


def run(compiled, inputs) -> None:
    """Run forward, and backward where an input wants a gradient."""
    outputs = compiled(*inputs)
    if any(x.requires_grad for x in inputs):
        outputs.sum().backward()


def without_paths(text: str) -> str:
    """Return ``text`` without the folders of the machine that generated it."""
    places = ("# kernel path:", "# Original path:")
    told = ((line, next(filter(line.startswith, places), None)) for line in text.split("\n"))
    return "\n".join(f"{place} elsewhere" if place else line for line, place in told)


def main() -> None:
    """Write one file for each wrapper."""
    emulation = importlib.import_module(sys.argv[1]) if len(sys.argv) > 1 else None
    version = ".".join(torch.__version__.split(".")[:2])
    for name in sys.argv[2:] or PROGRAMS:
        texts = generated(name, emulation)
        kinds = ("forward", "backward") if len(texts) == 2 else ("inference",)
        assert len(texts) == len(kinds), f"{name} gave {len(texts)} wrappers"
        for kind, text in zip(kinds, texts, strict=True):
            (WRAPPERS / f"triton_{name}_{kind}_torch{version}.txt").write_text(without_paths(text))


if __name__ == "__main__":
    main()
