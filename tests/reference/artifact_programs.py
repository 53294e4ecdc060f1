"""Programs whose artifacts other processes load: importable there by name."""

from __future__ import annotations

import torch

from pytest_regional import region


def block(x, w):
    with region("block"):
        h = torch.sin(x @ w) * 2
    return h + x


def product(x, w):
    """Needs no generated kernel, and so no C++ compiler."""
    with region("product"):
        h = x @ w
    return h + x


class Cube(torch.autograd.Function):
    """Has a gradient of its own, which is not what autograd would find: three times that."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with region("cube"):
            return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * gradient * x.cos()


def custom(x, w):
    with region("product"):
        h = x @ w
    return Cube.apply(h) + x


def marked_branch(x, w):
    with region("branch"):
        return x @ w


def other_branch(x, w):
    return x - w


def conditional(x, w):
    return torch.cond(x.sum() > 0, marked_branch, other_branch, (x, w))


class Model(torch.nn.Module):
    """Two layers, the first in a region."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x):
        with region("first"):
            h = self.first(x).relu()
        return self.second(h) * self.scale


def structured(x, w):
    return {"sum": block(x, w), "pair": (x + w, 3)}


def inputs(size: int = 4) -> list[torch.Tensor]:
    """Return two leaves, the same in every process."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(size, size, generator=generator).requires_grad_() for _ in range(2)]


def model() -> Model:
    """Return the model, with the same parameters in every process."""
    torch.manual_seed(5)
    return Model()


def results(fn, *arguments, parameters=()):
    """Return output and gradients of ``fn``, detached."""
    output = fn(*arguments)
    output.sum().backward()
    leaves = [value for value in (*arguments, *parameters) if value.grad is not None]
    return [output.detach(), *(value.grad.clone() for value in leaves)]


def run_all_loaded(folder: str, names: tuple[str, ...]) -> dict[str, list[torch.Tensor]]:
    """Load the artifacts of ``names`` in ``folder`` and return what each computes."""
    return {name: run_loaded(f"{folder}/{name}", name) for name in names}


def run_loaded(path: str, name: str) -> list[torch.Tensor]:
    """Load an artifact where nothing may compile, and return what it computes."""
    from pytest_regional.reference import artifacts
    from pytest_regional.testing import no_compile

    with no_compile():
        if name == "model":
            owner = model()
            return results(artifacts.load(path, owner), inputs()[0], parameters=list(owner.parameters()))
        loaded = artifacts.load(path)
        if name == "region":
            return results(lambda *values: loaded(*values)[0], *inputs())
        return results(loaded, *inputs())
