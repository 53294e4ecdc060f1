"""Small models for the pipeline: importable, so that other processes build the same ones."""

from __future__ import annotations

import torch
import torch.utils.checkpoint

from pytest_regional import region


class Block(torch.nn.Module):
    """A region, a buffer that is written to, keyword arguments, and results of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x, *, scale=2.0, extra=None):
        self.calls.add_(1)
        with region("product"):
            h = (x @ self.weight).sin() * scale
        if extra is not None:
            h = h + extra["shift"]
        return {"h": self.norm(h), "view": h.view(-1), "size": x.shape[0]}


class Tied(torch.nn.Module):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.second = torch.nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).relu())


class Dropping(torch.nn.Module):
    """Draws random numbers, and draws them again under a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self._inner, x, use_reentrant=False)

    def _inner(self, x):
        return torch.nn.functional.dropout(self.linear(x), 0.5).sin()


class Cube(torch.autograd.Function):
    """Has a gradient of its own, three times what autograd would find."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * gradient * x.cos()


class Branching(torch.nn.Module):
    """A conditional, and an autograd function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        h = torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.linear(x),))
        return Cube.apply(h)


class Repeating(torch.nn.Module):
    """The same nested region twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return repeated(repeated(self.linear(x)))


@torch.compiler.nested_compile_region
def repeated(x):
    return x.sin() * 2


class Mixed(torch.nn.Module):
    """Two dtypes."""

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x.T).float() + x.sum()


class Writing(torch.nn.Module):
    """Writes to its input and returns a view of it."""

    def forward(self, x, y):
        y.mul_(2)
        return y[1:], (x * y).sum()


MODELS = {cls.__name__: cls for cls in (Block, Tied, Dropping, Branching, Repeating, Mixed, Writing)}


def model_and_inputs(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Return a model and its inputs, the same in every process."""
    torch.manual_seed(5)
    model = MODELS[name]()
    inputs = [torch.randn(6, 4, requires_grad=True)]
    if name == "Writing":
        inputs.append(torch.randn(6, 4))
    return model, tuple(inputs)


def step(model, inputs, *, seed=3, **keywords):
    """Run forward and backward, and return all that came of it: outputs, gradients, buffers, inputs."""
    torch.manual_seed(seed)
    inputs = [value.detach().clone().requires_grad_(value.requires_grad) for value in inputs]
    output = model(*inputs, **keywords)
    leaves = torch.utils._pytree.tree_leaves(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    sum(value.float().square().sum() for value in tensors if value.requires_grad).backward()
    gradients = [value.grad for value in (*inputs, *model.parameters())]
    model.zero_grad()
    return [*leaves, *gradients, *model.buffers(), *inputs]


def assert_same_bits(found, expected):
    """Compare what two steps returned."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype
            assert one.stride() == other.stride()
            assert torch.equal(one, other)
        else:
            assert one == other
