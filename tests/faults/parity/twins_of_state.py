"""Twins that differ in what they leave behind: gradients, arguments, state, generators, exceptions, constants."""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque

import numpy
import torch

from tests.faults.parity.twins import Twins, matrix, numbers, trained, two_trained

F = torch.nn.functional

# Gradients


class Scaled(torch.autograd.Function):
    """The identity, with a gradient that is scaled."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None if ctx.factor is None else grad * ctx.factor, None


class Failing(torch.autograd.Function):
    """The identity, without a gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("no gradient")


class Rounded(torch.autograd.Function):
    """A matrix product of which the gradient is computed in bfloat16."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = (one.bfloat16() for one in ctx.saved_tensors)
        return (grad.bfloat16() @ w.t()).float(), (x.t() @ grad.bfloat16()).float()


def hooked(y, factor):
    y.register_hook(lambda grad: grad * factor)
    return y


def squared():
    return tuple(numbers(32, 32, seed=seed).requires_grad_() for seed in (0, 1))


def table():
    return torch.arange(20), numbers(30, 8).requires_grad_()


def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(16, 16)


def tied():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    model[1].weight = model[0].weight
    return model


GRADIENTS = [
    Twins(
        "the gradient of one of two inputs",
        lambda x, w: x * w,
        lambda x, w: x * Scaled.apply(w, 1.05),
        where="grad of input 1",
        inputs=two_trained,
        right=lambda x, w: Scaled.apply(w, 1.0) * x,
    ),
    Twins(
        "no gradient of one input",
        lambda x, w: x * w,
        lambda x, w: x * w.detach(),
        where="grad of input 1",
        kind="missing-grad",
        inputs=two_trained,
    ),
    Twins(
        "a gradient that eager has not",
        lambda x, w: x * w.detach(),
        lambda x, w: x * w,
        where="grad of input 1",
        kind="missing-grad",
        inputs=two_trained,
    ),
    Twins(
        "a gradient of None for zeros",
        lambda x, w: x + w * 0,
        lambda x, w: x + w.detach() * 0,
        where="grad of input 1",
        kind="missing-grad",
        inputs=two_trained,
    ),
    Twins(
        "a gradient that goes through one of two ways",
        lambda x: x.sin() + x.cos(),
        lambda x: x.sin() + x.detach().cos(),
        where="grad of input 0",
        inputs=trained,
        right=lambda x: x.cos() + x.sin(),
    ),
    Twins("a detached result", torch.sin, lambda x: x.sin().detach(), kind="requires_grad", inputs=trained),
    Twins(
        "a result that requires a gradient", lambda x: x.sin().detach(), torch.sin, kind="requires_grad", inputs=trained
    ),
    Twins(
        "the gradient at a kink",
        F.relu,
        lambda x: torch.where(x > 0, x, x * 0.01).detach().clamp(min=0) + 0.01 * x - 0.01 * x.detach(),
        where="grad of input 0",
        inputs=trained,
        right=lambda x: x.clamp(min=0),
    ),
    Twins(
        "straight through", torch.round, lambda x: x + (x.round() - x).detach(), where="grad of input 0", inputs=trained
    ),
    Twins(
        "a gradient in bfloat16",
        torch.matmul,
        Rounded.apply,
        where="grad of input 1",
        inputs=squared,
        right=lambda x, w: torch.einsum("ij,jk->ik", x, w),
    ),
    Twins(
        "a gradient of complex numbers",
        lambda x: x * (1 + 2j),
        lambda x: x.detach() * (1 + 2j) + (x - x.detach()),
        where="grad of input 0",
        inputs=lambda: (torch.complex(numbers(40, 16), numbers(40, 16, seed=1)).requires_grad_(),),
    ),
    Twins(
        "a hook on an intermediate value",
        lambda x: hooked(x.sin(), 2) * 3,
        lambda x: x.sin() * 3,
        where="grad of input 0",
        inputs=trained,
        right=lambda x: hooked(x.sin() * 3, 2),
    ),
    Twins(
        "a sparse gradient",
        lambda i, w: F.embedding(i, w, sparse=True),
        lambda i, w: F.embedding(i, w, sparse=False),
        where="grad of input 1",
        kind="structure",
        inputs=table,
    ),
    Twins(
        "a gradient of rows that are used twice",
        lambda i, w: w[i % 5],
        lambda i, w: w.detach()[i % 5] + (w - w.detach())[i % 5] / 4,
        where="grad of input 1",
        inputs=table,
        right=lambda i, w: F.embedding(i % 5, w),
    ),
    Twins(
        "the gradient of a parameter",
        lambda model: model,
        lambda model: lambda x: F.linear(x, Scaled.apply(model.weight, 1.05), model.bias),
        where="grad of parameter weight",
        held=linear,
        right=lambda model: lambda x: x @ model.weight.t() + model.bias,
    ),
    Twins(
        "no gradient of a bias",
        lambda model: model,
        lambda model: lambda x: F.linear(x, model.weight, model.bias.detach()),
        where="grad of parameter bias",
        kind="missing-grad",
        held=linear,
    ),
    Twins(
        "one of two uses of a tied weight",
        lambda model: model,
        lambda model: lambda x: F.linear(model[0](x), model[1].weight.detach(), model[1].bias),
        where="grad of parameter 0.weight",
        held=tied,
    ),
    Twins(
        "a gradient of a loss",
        lambda x: x.sin(),
        lambda x: Scaled.apply(x, 1.05).sin(),
        where="grad of input 0",
        inputs=trained,
        options={"backward": lambda y: y.square().mean()},
    ),
    Twins(
        "a gradient of given cotangents",
        lambda x: x.sin(),
        lambda x: Scaled.apply(x, 1.05).sin(),
        where="grad of input 0",
        inputs=trained,
        options={"backward": torch.ones(40, 16)},
    ),
    Twins(
        "a gradient of an input that is no leaf",
        lambda x: x.sin(),
        lambda x: Scaled.apply(x, 1.05).sin(),
        where="grad of input 0",
        inputs=lambda: (numbers(40, 16).requires_grad_() * 1,),
    ),
    Twins(
        "a gradient inside of a list",
        lambda given: given[0] * given[1],
        lambda given: given[0] * Scaled.apply(given[1], 1.05),
        where="grad of input 0[1]",
        inputs=lambda: (list(two_trained()),),
    ),
    Twins(
        "a gradient of a keyword argument",
        lambda x, w: x * w,
        lambda x, w: x * Scaled.apply(w, 1.05),
        where="grad of input w",
        options={"kwargs": {"w": numbers(40, 16).requires_grad_()}},
    ),
    Twins(
        "a backward that fails",
        torch.sin,
        lambda x: Failing.apply(x).sin(),
        where="backward",
        kind="exception",
        inputs=trained,
    ),
]

# What is written to tensors


def tagged(x, tag):
    x.tag = tag
    return x


def buffered(value):
    model = torch.nn.Module()
    model.register_buffer("scale", value)
    return model


def added(x, other, value):
    """Write to one argument, and return something else."""
    other.add_(value)
    return x * 2


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x, momentum=0.1, by=1):
        self.mean.lerp_(x.mean(0), momentum)
        self.steps += by
        return x - x.mean(0)


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = None

    def forward(self, x, factor=1):
        self.seen = x * factor
        return x * 2


def overlapping():
    base = numbers(40, 16)
    return base, base[3:9]


WRITES = [
    Twins(
        "an input that is left unchanged",
        lambda x: x.add_(1).sum(0),
        lambda x: (x + 1).sum(0),
        where="input 0 (mutated in place)",
    ),
    Twins(
        "another value written",
        lambda x, y: added(x, y, 1),
        lambda x, y: added(x, y, 2),
        where="input 1 (mutated in place)",
        inputs=lambda: (*matrix(), numbers(40, 16, seed=1)),
    ),
    Twins(
        "an input that is changed",
        lambda x: (x + 1).sum(0),
        lambda x: x.add_(1).sum(0),
        where="input 0 (mutated in place by the compiled program only)",
    ),
    Twins(
        "a part that is written",
        lambda x: x[3:9].zero_().sum(),
        lambda x: x[3:8].zero_().sum(),
        where="input 0 (mutated in place)",
        right=lambda x: x.narrow(0, 3, 6).mul_(0).sum(),
    ),
    Twins(
        "a write through a view of another input",
        lambda x, v: v.mul_(2).sum() + x.sum(),
        lambda x, v: (x.sum(), v.mul_(2).sum())[1] + x.detach().clone().sum() - v.sum() / 2,
        inputs=overlapping,
    ),
    Twins(
        "a write of integers",
        lambda i: (i.add_(1), i * 2)[1],
        lambda i: (i.add_(2), i * 2 - 2)[1],
        where="input 0 (mutated in place)",
        inputs=lambda: (torch.arange(40),),
    ),
    Twins(
        "a transposed input that is written",
        lambda x: x.t().mul_(2).sum(),
        lambda x: x.t()[:3].mul_(2).sum() + x.t()[3:].sum() * 2,
        where="input 0 (mutated in place)",
    ),
    Twins(
        "an input that is resized",
        lambda x: (x.resize_(20, 16), x.sum() * 0 + 1)[1],
        lambda x: x.sum() * 0 + 1,
        where="input 0 (mutated in place)",
        kind="shape",
    ),
    Twins(
        "a buffer with another momentum",
        lambda model: model,
        lambda model: lambda x: model.forward(x, 0.2),
        where="buffer mean (mutated in place)",
        held=Norm,
    ),
    Twins(
        "a buffer that counts",
        lambda model: model,
        lambda model: lambda x: model.forward(x, by=2),
        where="buffer steps (mutated in place)",
        held=Norm,
    ),
    Twins(
        "a buffer that is left unchanged",
        lambda model: model,
        lambda model: lambda x: x - x.mean(0),
        where="buffer mean (mutated in place)",
        held=Norm,
    ),
    Twins(
        "a running variance",
        lambda model: model,
        lambda model: (
            lambda x: (
                model.running_mean.lerp_(x.mean(0), 0.1),
                model.num_batches_tracked.add_(1),
                F.batch_norm(x, None, None, model.weight, model.bias, training=True),
            )[-1]
        ),
        where="buffer running_var (mutated in place)",
        held=lambda: torch.nn.BatchNorm1d(16),
    ),
    Twins(
        "a parameter that is written",
        lambda model: lambda x: (model.bias.data.add_(1), model(x))[1],
        lambda model: lambda x: model(x) + 1,
        where="parameter model.bias (mutated in place)",
        held=linear,
    ),
    Twins(
        "a tensor that a closure holds",
        lambda kept: lambda x: (kept.add_(1), x + kept)[1],
        lambda kept: lambda x: x + kept + 1,
        where="captured tensor kept (mutated in place)",
        held=lambda: torch.zeros(16),
    ),
    Twins(
        "a tensor in an attribute",
        lambda model: model,
        lambda model: lambda x: model.forward(x, 2),
        where="attribute seen (mutated in place)",
        held=Cached,
    ),
    Twins(
        "a tensor in an attribute, not stored",
        lambda model: model,
        lambda model: lambda x: x * 2,
        where="seen (after the call)",
        kind="structure",
        held=Cached,
    ),
]

WRITES += [
    Twins(
        "an attribute set on an input",
        lambda x: (tagged(x, "a") * 2).sum(),
        lambda x: (x * 2).sum(),
        where="input 0 (mutated in place).tag",
        kind="structure",
    ),
    Twins(
        "an attribute of an input that is read",
        lambda x: x * x.tag,
        lambda x: x * 2,
        inputs=lambda: (tagged(numbers(40, 16), 3),),
        right=lambda x: x * 3,
    ),
    Twins(
        "a quantized input that is written",
        lambda q: (q.copy_(q.dequantize() * 2), q.dequantize().sum() * 0)[1],
        lambda q: q.dequantize().sum() * 0,
        where="input 0 (mutated in place)",
        inputs=lambda: (torch.quantize_per_tensor(numbers(40, 16), 0.1, 0, torch.qint8),),
    ),
    Twins(
        "a nested input that is written",
        lambda n: (n.mul_(2), n.values().sum() * 0)[1],
        lambda n: n.values().sum() * 0,
        where="input 0 (mutated in place)",
        inputs=lambda: (torch.nested.nested_tensor([numbers(3, 4), numbers(5, 4)], layout=torch.jagged),),
    ),
    Twins(
        "a buffer of float8",
        lambda model: lambda x: (model.scale.copy_(x[0]), x * 2)[1],
        lambda model: lambda x: (model.scale.copy_(x[0] * 2), x * 2)[1],
        where="buffer model.scale (mutated in place)",
        held=lambda: buffered(torch.zeros(16, dtype=torch.float8_e4m3fn)),
    ),
    Twins(
        "a quantized buffer",
        lambda model: lambda x: (model.scale.copy_(x), x * 2)[1],
        lambda model: lambda x: (model.scale.copy_(x * 2), x * 2)[1],
        where="buffer model.scale (mutated in place)",
        held=lambda: buffered(torch.quantize_per_tensor(torch.zeros(40, 16), 0.1, 0, torch.qint8)),
    ),
    Twins(
        "a sparse buffer",
        lambda model: lambda x: (model.scale.mul_(2), x * 2)[1],
        lambda model: lambda x: (model.scale.mul_(3), x * 2)[1],
        where="buffer model.scale (mutated in place)",
        held=lambda: buffered(numbers(4, 4).to_sparse()),
    ),
    Twins(
        "integers written past what float64 holds",
        lambda i: (i.add_(1), i.sum() * 0)[1],
        lambda i: (i.add_(2), i.sum() * 0)[1],
        where="input 0 (mutated in place)",
        inputs=lambda: (torch.arange(40) + 2**60,),
    ),
]

# Containers and objects that are arguments


class Store:
    """A cache of keys, as models have."""

    def __init__(self):
        self.keys, self.length = [], 0

    def update(self, key):
        self.keys.append(key)
        self.length += 1
        return torch.cat(self.keys)


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


def stores(change, result=lambda x: x * 2):
    """Return a program that calls ``change`` with its input and its container, and returns something else."""

    def program(x, held):
        change(x, held)
        return result(x)

    return program


def holding(make):
    return lambda: (*matrix(), make())


def containers(name, right, wrong, make, where, kind="value", **named):
    return Twins(name, stores(right), stores(wrong), where=where, kind=kind, inputs=holding(make), **named)


ARGUMENTS = [
    containers(
        "a cache in a dict: another tensor",
        lambda x, d: d.update(k=x + 1),
        lambda x, d: d.update(k=x + 2),
        lambda: {"k": torch.zeros(40, 16)},
        "input 1['k'] (mutated in place)",
    ),
    containers(
        "a cache in a dict: not stored",
        lambda x, d: d.update(k=x + 1),
        lambda x, d: None,
        lambda: {"k": torch.zeros(40, 16)},
        "input 1['k'] (mutated in place)",
    ),
    containers(
        "a new key in a dict",
        lambda x, d: d.update(v=x + 1),
        lambda x, d: None,
        lambda: {"k": torch.zeros(40, 16)},
        "input 1['v'] (after the call)",
        "structure",
    ),
    containers(
        "a key that is deleted",
        lambda x, d: d.pop("k"),
        lambda x, d: None,
        lambda: {"k": torch.zeros(40, 16)},
        "input 1['k'] (after the call)",
        "structure",
    ),
    containers(
        "a tensor that is appended",
        lambda x, held: held.append(x + 1),
        lambda x, held: held.append(x + 2),
        list,
        "input 1[0] (mutated in place)",
    ),
    containers(
        "a tensor that is not appended",
        lambda x, held: held.append(x + 1),
        lambda x, held: None,
        list,
        "input 1[0] (after the call)",
        "structure",
    ),
    containers(
        "an element of a list that is replaced",
        lambda x, held: held.__setitem__(0, x + 1),
        lambda x, held: held.__setitem__(0, x + 2),
        lambda: [torch.zeros(40, 16)],
        "input 1[0] (mutated in place)",
    ),
    containers(
        "a tensor of a nested container",
        lambda x, d: d["layers"][0].update(k=x + 1),
        lambda x, d: d["layers"][0].update(k=x + 2),
        lambda: {"layers": [{"k": torch.zeros(40, 16)}]},
        "input 1['layers'][0]['k'] (mutated in place)",
    ),
    containers(
        "a number in a dict",
        lambda x, d: d.update(length=d["length"] + 1),
        lambda x, d: d.update(length=d["length"] + 2),
        lambda: {"length": 3},
        "input 1['length'] (after the call)",
    ),
    containers(
        "a number in a list",
        lambda x, held: held.append(1),
        lambda x, held: held.append(2),
        lambda: [0],
        "input 1[1] (after the call)",
    ),
    containers(
        "a write to a tensor in a dict",
        lambda x, d: d["k"].add_(1),
        lambda x, d: d["k"].add_(2),
        lambda: {"k": torch.zeros(40, 16)},
        "input 1['k'] (mutated in place)",
    ),
    containers(
        "a deque that is an argument",
        lambda x, held: held.append(x + 1),
        lambda x, held: held.append(x + 2),
        lambda: deque([torch.zeros(3)]),
        "input 1[1] (mutated in place)",
    ),
    containers(
        "a tensor in an object that is an argument",
        lambda x, store: store.update(x),
        lambda x, store: store.update(x * 2),
        Store,
        "input 1.keys[0] (mutated in place)",
    ),
    containers(
        "a number in an object",
        lambda x, store: store.update(x),
        lambda x, store: store.keys.append(x),
        Store,
        "input 1.length (after the call)",
    ),
    containers(
        "a tensor that is appended twice",
        lambda x, held: held.append(x),
        lambda x, held: held.extend([x, x]),
        list,
        "input 1[1] (after the call)",
        "structure",
    ),
    containers(
        "an element that is not removed",
        lambda x, held: held.pop(),
        lambda x, held: None,
        lambda: [1, 2],
        "input 1[1] (after the call)",
        "structure",
    ),
    containers(
        "an empty list that is not stored",
        lambda x, d: d.update(a=[]),
        lambda x, d: None,
        dict,
        "containers of the inputs (after the call)",
    ),
    containers(
        "a number in a defaultdict",
        lambda x, d: d["k"].append(1),
        lambda x, d: d["k"].append(2),
        lambda: defaultdict(list),
        "input 1['k'][0] (after the call)",
    ),
    containers(
        "the other end of a deque",
        lambda x, held: held.append(1),
        lambda x, held: held.appendleft(1),
        lambda: deque([0]),
        "input 1[0] (after the call)",
    ),
    containers(
        "the order of keys",
        lambda x, d: d.move_to_end("a"),
        lambda x, d: None,
        lambda: OrderedDict(a=1, b=2),
        "containers of the inputs (after the call)",
    ),
    containers(
        "a slot of an object",
        lambda x, held: setattr(held, "n", 1),
        lambda x, held: setattr(held, "n", 2),
        Slotted,
        "input 1.n (after the call)",
    ),
    Twins(
        "a tensor read from a dict",
        lambda x, d: x * d["k"],
        lambda x, d: x * d["v"],
        inputs=holding(lambda: {"k": numbers(40, 16, seed=1), "v": numbers(40, 16, seed=2)}),
    ),
]

# Python state


def counts(counter, by):
    counter["calls"] += by
    return counter["calls"]


class Counter:
    calls = 0

    def __init__(self):
        self.count = 0


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.notes = 0, []

    def forward(self, x, by=1):
        self.calls += by
        return x * self.calls


def calls(model, by):
    def program(x):
        model.calls += by
        return x * 2

    return program


def notes(kept, note):
    def program(x):
        kept.append(note)
        return x * 2

    return program


def counts_in_class(by):
    def program(x):
        Counter.calls += by
        return x * 2

    return program


CALLS, LOG = 0, []


def logged(by):
    global CALLS
    CALLS += by
    LOG.append(CALLS)


def counts_globally(by):
    def program(x):
        logged(by)
        return x * 2

    return program


class Keeping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x):
        self.kept = x
        return x * 2


def sets_count(counter, by):
    def program(x):
        counter.count += by
        return x * 2

    return program


def scaled_by_count(counter, more=0):
    def program(x):
        counter.count += 1
        return x * (counter.count + more)

    return program


PYTHON = [
    Twins(
        "a count in an object in a closure",
        lambda counter: sets_count(counter, 1),
        lambda counter: sets_count(counter, 2),
        where="counter.count (after the call)",
        held=Counter,
    ),
    Twins(
        "a result that depends on a count",
        lambda counter: scaled_by_count(counter),
        lambda counter: scaled_by_count(counter, 1),
        held=Counter,
    ),
    Twins(
        "a count in a module",
        lambda model: model,
        lambda model: lambda x: model.forward(x, 0) * 0 + x,
        where="calls (after the call)",
        held=Counting,
    ),
    Twins(
        "a count in a class",
        counts_in_class(1),
        counts_in_class(2),
        where="Counter.calls (after the call)",
    ),
    Twins(
        "a list in a global variable",
        counts_globally(1),
        counts_globally(2),
        where="LOG[0] (after the call)",
    ),
    Twins(
        "a tensor that a module keeps",
        lambda model: model,
        lambda model: lambda x: x * 2,
        where="kept (after the call)",
        kind="structure",
        held=Keeping,
    ),
    Twins(
        "a list in a closure",
        lambda kept: notes(kept, "a"),
        lambda kept: notes(kept, "b"),
        where="kept[0] (after the call)",
        held=list,
    ),
    Twins(
        "a dict in a closure",
        lambda counter: lambda x: x * counts(counter, 1),
        lambda counter: lambda x: x * counts(counter, 2) / 2,
        where="counter['calls'] (after the call)",
        held=lambda: {"calls": 0},
    ),
]

# Random numbers


def drawing(before=lambda: None, after=lambda: None, program=torch.sin):
    def twin(x):
        before()
        result = program(x)
        after()
        return result

    return twin


def noisy(x):
    return x + torch.rand_like(x)


def dropped(x):
    return F.dropout(x, 0.5)


def draws(name, program, wrong, right=None, **named):
    return Twins(name, program, wrong, "random state", "draws", right=right, **named)


RANDOMNESS = [
    draws("a reseeded generator", torch.sin, drawing(after=lambda: torch.manual_seed(0))),
    draws(
        "a reseeded generator of a program that draws",
        noisy,
        drawing(after=lambda: torch.manual_seed(0), program=noisy),
    ),
    draws("one draw too many", torch.sin, drawing(after=lambda: torch.rand(1))),
    draws("one draw too many behind a draw", noisy, drawing(after=lambda: torch.rand(1), program=noisy)),
    draws("a draw that is left out", drawing(after=lambda: torch.rand(3)), torch.sin),
    draws(
        "a draw of normal numbers for uniform ones",
        drawing(after=lambda: torch.rand(40)),
        drawing(after=lambda: torch.randn(40)),
    ),
    draws("Python's generator", torch.sin, drawing(after=random.random)),
    draws("numpy's generator", torch.sin, drawing(after=numpy.random.rand)),
    draws("a draw from Python that is left out", drawing(after=random.random), torch.sin),
    Twins(
        "numbers drawn in another order",
        lambda x: (x + torch.rand(16), x * torch.rand(16)),
        lambda x: (lambda a, b: (x + b, x * a))(torch.rand(16), torch.rand(16)),
        where="output[0]",
    ),
    Twins("another distribution", noisy, lambda x: x + torch.randn_like(x)),
    Twins("other numbers, and the generator put back", noisy, lambda x: noisy(x.flip(0)).flip(0)),
    Twins("a dropout of another probability", dropped, lambda x: F.dropout(x, 0.6)),
    Twins("a dropout without its scale", dropped, lambda x: F.dropout(x, 0.5) / 2),
    Twins(
        "another mask in the backward",
        dropped,
        lambda x: dropped(x).detach() + (x - x.detach()) * 2,
        where="grad of input 0",
        inputs=trained,
    ),
    Twins("no dropout", dropped, lambda x: (torch.rand_like(x), x)[1]),
    Twins("a permutation", lambda x: x[torch.randperm(40)], lambda x: x[torch.randperm(40).flip(0)]),
    Twins("a number of Python's", lambda x: x * random.random(), lambda x: x * (1 - random.random())),
    Twins("numbers of numpy", lambda x: x * numpy.random.rand(), lambda x: x * (1 - numpy.random.rand())),
    Twins(
        "numbers of a generator that is an argument",
        lambda x, g: x + torch.rand(40, 16, generator=g),
        lambda x, g: x + torch.rand(40, 16),
        inputs=lambda: (*matrix(), torch.Generator().manual_seed(3)),
    ),
    draws(
        "the state of a generator that is an argument",
        lambda x, g: x + torch.rand(16, generator=g),
        lambda x, g: (x + torch.rand(16, generator=g), torch.rand(1, generator=g))[0],
        inputs=lambda: (*matrix(), torch.Generator().manual_seed(3)),
    ),
]

RANDOMNESS += [
    Twins(
        "numbers of a generator in a closure",
        lambda g: lambda x: x + torch.rand(16, generator=g),
        lambda g: lambda x: x + torch.rand(16),
        held=lambda: torch.Generator().manual_seed(3),
    ),
    draws(
        "the state of a generator in a closure",
        lambda g: lambda x: x + torch.rand(16, generator=g),
        lambda g: lambda x: (x + torch.rand(16, generator=g), torch.rand(1, generator=g))[0],
        held=lambda: torch.Generator().manual_seed(3),
    ),
    Twins(
        "noise added in bfloat16",
        lambda x: x + torch.rand_like(x),
        lambda x: (x.bfloat16() + torch.rand_like(x).bfloat16()).float(),
        right=lambda x: torch.rand_like(x) + x,
    ),
]

# Exceptions


class NotRight(ValueError):
    """A subclass that a compiler may raise as well."""


def raising(error, when=lambda x: True):
    def program(x):
        if when(x):
            raise error
        return x * 2

    return program


def wrapped(x):
    raise RuntimeError("in the compiler") from ValueError("no")


EXPECTED = {"options": {"raises": ValueError}}

EXCEPTIONS = [
    Twins("an exception in the twin alone", torch.sin, raising(RuntimeError("no kernel")), "forward", "exception"),
    Twins("an assertion in the twin alone", torch.sin, raising(AssertionError("stride")), "forward", "exception"),
    Twins("no exception", raising(ValueError("no")), torch.sin, "forward", "exception", **EXPECTED),
    Twins("another exception", raising(ValueError("no")), raising(KeyError("no")), "forward", "exception", **EXPECTED),
    Twins(
        "a base class of the exception",
        raising(ValueError("no")),
        raising(Exception("no")),
        "forward",
        "exception",
        right=raising(NotRight("no")),
        **EXPECTED,
    ),
    Twins(
        "a wrapped exception", raising(ValueError("no")), torch.sin, "forward", "exception", right=wrapped, **EXPECTED
    ),
    Twins(
        "an exception of a size that does not fit",
        lambda x: x @ x,
        lambda x: x @ x.t(),
        "forward",
        "exception",
        options={"raises": RuntimeError},
        right=lambda x: torch.mm(x, x),
    ),
    Twins(
        "an exception in the backward",
        lambda x: Failing.apply(x),
        lambda x: x.clone(),
        "backward",
        "exception",
        inputs=trained,
        options={"raises": NotImplementedError},
    ),
    Twins(
        "an exception of certain values",
        lambda x: x * 2,
        raising(RuntimeError("no"), when=lambda x: x[0, 0] != numbers(40, 16)[0, 0]),
        "forward",
        "exception",
    ),
]

# Constants of the first call


def first(make):
    """Return a program that keeps what ``make`` makes of its first input."""

    def held(kept):
        def program(x):
            return kept.setdefault("made", make(x))

        return program

    return held


def baked(read, use):
    """Return a twin that reads something of its input in its first call only."""

    def held(_):
        kept = []

        def twin(x):
            kept.append(read(x))
            return use(x, kept[0])

        return twin

    return held


def fixed(read, use):
    return lambda _: lambda x: use(x, read(x))


def constants(name, read, use, **named):
    return Twins(name, fixed(read, use), baked(read, use), held=dict, **named)


def kept_buffer(_):
    memory = torch.empty(40, 16)

    def twin(x):
        return memory.copy_(x * 2)

    return twin


CONSTANTS = [
    constants("a maximum of the first call", lambda x: x.max().item(), lambda x, most: x / most),
    constants("a sum of the first call", lambda x: x.sum(), lambda x, total: x * total),
    constants(
        "a branch of the first call",
        lambda x: bool(x[0, 0] > x[1, 1]),
        lambda x, more: x.sin() if more else x.cos(),
    ),
    constants("the whole result of the first call", lambda x: x * 2, lambda x, made: made + 0),
    constants("an index of the first call", lambda x: int(x[:, 0].argmax()), lambda x, row: x[row] * 2),
    Twins(
        "a result that the next call overwrites", lambda _: lambda x: x * 2, kept_buffer, kind="overwritten", held=dict
    ),
]

ROWS = {
    "gradients": GRADIENTS,
    "writes": WRITES,
    "arguments": ARGUMENTS,
    "python state": PYTHON,
    "randomness": RANDOMNESS,
    "exceptions": EXCEPTIONS,
    "constants": CONSTANTS,
}
