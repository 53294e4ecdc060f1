"""Write the wrappers in ``wrappers/``: ``python -m tests.harness.codegen.capture_wrappers [NAMES...]``.

On a machine with a GPU the programs are compiled as they are. Elsewhere the GPU is emulated: Inductor generates the
same code, but for the lines that enter the device and ask for its stream. Where torch is a build with CUDA and no
backward has to run, these lines, too, are those for a GPU.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo.variables.streams  # registers the operators of namespace streams
import triton
import triton.language as tl
from torch.fx.traceback import annotate

import pytest_regional.emulation.backend
from pytest_regional._torch import triton as private_triton
from pytest_regional.testing import regional

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


def combined(a, b):
    """Reductions and a pointwise operator in combined kernels."""
    return a.sum(1), b.relu() + 1, (a * 2).amax(0)


def scan(a):
    """A scan whose programs tell each other through a workspace."""
    return a.cumsum(0) + 1


def scatter(a, indices, values):
    """A kernel that adds into what another wrote."""
    return a.index_put((indices,), values, accumulate=True) * 2


def streams(a, b):
    """A product on a stream of its own, and a kernel that needs it without waiting for it."""
    with annotate({"stream": 1}):
        product = (b @ b).relu()
    return a.sin() + product.cos()


def waiting(a, b):
    """As above, with an event recorded and waited for."""
    with annotate({"stream": 1}):
        product = (b @ b).relu()
        torch.ops.streams.record_event(2, 1)
    torch.ops.streams.wait_event(2, 0)
    return a.sin() + product.cos()


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
    "combined": (combined, [torch.randn(32, 64), torch.randn(48)], {"combo_kernels": True}),
    "scan": (scan, [torch.randn(100_000)], {}),
    "scatter": (scatter, [torch.randn(10), torch.tensor([1, 2, 1, 1]), torch.randn(4)], {}),
    "streams": (streams, [torch.randn(8, 8), torch.randn(8, 8)], {}),
    "waiting": (waiting, [torch.randn(8, 8), torch.randn(8, 8)], {}),
}


def generated(name: str) -> list[tuple[str, str]]:
    """Return the wrappers of one program, forward before backward, each with the kind of its graph."""
    function, inputs, configs = PROGRAMS[name]
    device = "cuda" if torch.cuda.is_available() else "cuda-emulated"
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(regional("inductor", device, inductor_configs=configs, expects_regions=False))
        if device == "cuda-emulated":  # only now: the emulation has tested itself
            trains = any(x.requires_grad for x in inputs)
            stack.enter_context(only_generating(as_on_a_gpu=bool(torch.version.cuda) and not trains))
        moved = [x.detach().to(made.device).requires_grad_(x.requires_grad) for x in inputs]
        # The code need not run: what fails after it was generated is no concern here.
        with contextlib.suppress(Exception):
            made.run(function, *moved)
        return [(source.graph, source.text) for source in made.observer.code(0)]


@contextlib.contextmanager
def only_generating(*, as_on_a_gpu: bool):
    """Launch no kernel; with ``as_on_a_gpu`` write wrappers as for a GPU, which do not run here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest_regional.emulation.backend, "launch_inductor_kernel", lambda *args, **kwargs: None)
        if as_on_a_gpu:
            patch.setattr(private_triton, "_overrides", lambda base: base)
        yield


def without_paths(text: str) -> str:
    """Return ``text`` without the folders of the machine that generated it."""
    places = ("# kernel path:", "# Original path:")
    told = ((line, next(filter(line.startswith, places), None)) for line in text.split("\n"))
    return "\n".join(f"{place} elsewhere" if place else line for line, place in told)


def main() -> None:
    """Write one file for each wrapper."""
    version = ".".join(torch.__version__.split(".")[:2])
    for name in sys.argv[1:] or PROGRAMS:
        texts = generated(name)
        assert texts, f"{name} gave no wrapper"
        for kind, text in texts:
            (WRAPPERS / f"triton_{name}_{kind}_torch{version}.txt").write_text(without_paths(text))


if __name__ == "__main__":
    main()
