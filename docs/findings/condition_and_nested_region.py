"""One block in both branches of ``torch.cond`` and as a nested region, beside a topk: Inductor's gradient is wrong."""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def block(x):
    return torch.nn.functional.silu(x) * x


nested = torch.compiler.nested_compile_region(block)


def program(x):
    y = StraightThrough.apply(x)
    values, indices = torch.topk(x, 3, 0)
    chosen = torch.cond(y.flatten()[0] > 0, block, block, (y,))
    return indices, chosen, nested(y), values


def gradient(function):
    x = torch.tensor([[-0.3, 0.2, 1.0], [0.6, 0.5, -1.3], [1.2, -0.8, 0.1]], requires_grad=True)
    _, chosen, region, values = function(x)
    (chosen.sum() + 2 * region.sum() + 3 * values.sum()).backward()
    return x.grad


eager, compiled = gradient(program), gradient(torch.compile(program, fullgraph=True))
print(f"largest difference of the gradients: {(eager - compiled).abs().max().item():.3f}")
still_fails = not torch.allclose(eager, compiled, atol=1e-4)
print(f"torch {torch.__version__}: {'still fails: a wrong gradient' if still_fails else 'fixed'}")
sys.exit(still_fails)
