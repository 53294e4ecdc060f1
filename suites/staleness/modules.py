"""Changes of modules: attributes, parameters, buffers, hooks, flags, structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.utils.parametrize

from .changes import Case, Changes, numbers, put

changes = Changes(__name__)


class Scaled(torch.nn.Module):
    """A module that multiplies by an attribute."""

    def __init__(self, scale: Any = 2) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x * self.scale


class WithBuffer(torch.nn.Module):
    """A module that multiplies by a buffer, and counts its calls in another one."""

    def __init__(self, buffer: Any) -> None:
        super().__init__()
        self.register_buffer("buffer", buffer)

    def forward(self, x):
        return x * self.buffer


def on_device(module: torch.nn.Module) -> torch.nn.Module:
    """Give a module on the device under test parameters that are small different numbers."""
    module = module.to(numbers(1).device)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(numbers(*parameter.shape) / 8)
    return module


@changes()
def attribute(n):
    """A number that is an attribute."""
    return Scaled(n)


@changes()
def attribute_of_a_submodule(n):
    """A number that is an attribute of a submodule."""
    return torch.nn.Sequential(Scaled(2), Scaled(n))


@changes("two", "three")
def string_attribute(word):
    """A string that is an attribute."""

    class Choosing(Scaled):
        def forward(self, x):
            return x * 2 if self.scale == "two" else x * 3

    return Choosing(word)


@changes()
def tensor_attribute(n):
    """A tensor that is an attribute, but no buffer."""
    return Scaled(numbers(3) * n)


@changes()
def code_of_forward(n):
    """The code of ``forward``."""

    class Multiplying(torch.nn.Module):
        def forward(self, x):
            return x * n

    return Multiplying()


@changes()
def forward_of_an_instance(n):
    """``forward`` of one object is replaced."""
    module = Scaled(1)
    module.forward = lambda x: x * n
    return module


@changes()
def values_of_a_parameter(n):
    """The values of a parameter."""
    module = on_device(torch.nn.Linear(3, 3, bias=False))
    with torch.no_grad():
        module.weight.mul_(n)
    return module


@changes(torch.float64, torch.bfloat16)
def dtype_of_parameters(dtype):
    """The dtype of a module."""
    return Case(on_device(torch.nn.Linear(3, 3)).to(dtype), (numbers(2, 3, dtype=dtype),))


@changes(False, True, requires=("backward",))
def parameter_requires_grad(required):
    """A parameter comes to be trained."""
    module = on_device(torch.nn.Linear(3, 3))
    module.weight.requires_grad_(required)
    return module


@changes(False, True)
def bias(present):
    """A module gets a bias."""
    return on_device(torch.nn.Linear(3, 3, bias=present))


@changes()
def values_of_a_buffer(n):
    """The values of a buffer."""
    return WithBuffer(numbers(3) * n)


@changes(torch.float32, torch.float64, quick=True)
def dtype_of_a_buffer(dtype):
    """The dtype of a buffer."""
    return WithBuffer(numbers(3, dtype=dtype))


@changes((3,), (2, 1))
def shape_of_a_buffer(size):
    """The shape of a buffer."""
    return WithBuffer(numbers(*size))


@changes(False, True)
def buffer_requires_grad(required):
    """A buffer comes to require a gradient."""
    return Case(WithBuffer(numbers(3, requires_grad=required)), (numbers(2, 3),))


@changes(None, 3)
def buffer_is_none(values):
    """A buffer that was None is a tensor."""

    class Optional(WithBuffer):
        def forward(self, x):
            return x + 1 if self.buffer is None else x * self.buffer

    return Optional(None if values is None else numbers(3))


@changes(False, True, requires=("mutation",))
def buffer_written(written):
    """A module comes to write to its buffer."""

    class Counting(WithBuffer):
        def forward(self, x):
            if written:
                self.buffer.add_(1)
            return x * self.buffer

    return Case(Counting(numbers(3)), (numbers(2, 3),))


# Flags and sizes of modules of torch.nn: name, how the module is made, before, after, the shape of its input


def _module_row(name: str, make_module: Callable[[Any], torch.nn.Module], before: Any, after: Any, *shape: int) -> None:
    def make(value: Any) -> Case:
        module = on_device(make_module(value))
        return Case(module, (numbers(*shape, requires_grad=True),))

    make.__doc__ = f"{name.replace('_', ' ').capitalize()} of a module of torch.nn."
    needs = ("mutation",) if "batch_norm" in name else ()
    changes(before, after, name=name, in_region=False, requires=needs)(make)


nn = torch.nn
for _row in (
    ("training_of_batch_norm", lambda flag: nn.BatchNorm1d(3).train(flag), True, False, 4, 3),
    ("momentum_of_batch_norm", lambda m: nn.BatchNorm1d(3, momentum=m), 0.1, 0.9, 4, 3),
    ("running_statistics_of_batch_norm", lambda t: nn.BatchNorm1d(3, track_running_stats=t).eval(), True, False, 4, 3),
    ("eps_of_layer_norm", lambda eps: nn.LayerNorm(3, eps=eps), 1e-5, 1.0, 4, 3),
    ("shape_of_layer_norm", lambda shape: nn.LayerNorm(shape), (3,), (4, 3), 4, 3),
    ("groups_of_group_norm", lambda groups: nn.GroupNorm(groups, 4), 1, 2, 2, 4, 3),
    ("approximation_of_gelu", lambda how: nn.GELU(approximate=how), "none", "tanh", 2, 3),
    ("slope_of_leaky_relu", lambda slope: nn.Sequential(Scaled(-1), nn.LeakyReLU(slope)), 0.1, 0.2, 2, 3),
    ("dimension_of_softmax", lambda dim: nn.Softmax(dim), 0, 1, 2, 3),
    ("stride_of_convolution", lambda stride: nn.Conv1d(2, 2, 1, stride=stride), 1, 2, 1, 2, 4),
    (
        "padding_of_convolution",
        lambda mode: nn.Conv1d(2, 2, 3, padding=1, padding_mode=mode),
        "zeros",
        "circular",
        1,
        2,
        4,
    ),
    ("dilation_of_convolution", lambda dilation: nn.Conv1d(2, 2, 2, dilation=dilation), 1, 2, 1, 2, 4),
    ("size_of_pooling", lambda size: nn.AvgPool1d(size), 1, 2, 1, 2, 4),
    ("mode_of_upsample", lambda mode: nn.Upsample(scale_factor=2, mode=mode), "nearest", "linear", 1, 2, 4),
    ("start_of_flatten", lambda start: nn.Sequential(nn.Flatten(start), Scaled(2)), 0, 1, 1, 2, 4),
    ("class_of_activation", lambda kind: kind(), nn.Sigmoid, nn.Tanh, 2, 3),
    (
        "order_of_sequential",
        lambda kinds: nn.Sequential(*(kind() for kind in kinds)),
        (nn.Tanh, nn.Sigmoid),
        (nn.Sigmoid, nn.Tanh),
        2,
        3,
    ),
    ("length_of_sequential", lambda count: nn.Sequential(*(nn.Sigmoid() for _ in range(count))), 1, 2, 2, 3),
):
    _module_row(*_row)


@changes(None, 1, requires=("backward",))
def padding_index_of_embedding(index):
    """The padding index of an embedding, whose row gets no gradient."""
    module = on_device(torch.nn.Embedding(4, 3, padding_idx=index))
    return Case(module, (torch.tensor([0, 1, 2], device=numbers(1).device),))


@changes(False, True, requires=("backward",))
def embedding_scales_gradient(scaled):
    """An embedding divides gradients by the frequency of indices."""
    module = on_device(torch.nn.Embedding(4, 3, scale_grad_by_freq=scaled))
    return Case(module, (torch.tensor([0, 1, 1], device=numbers(1).device),))


@changes(True, False, requires=("mutation",))
def training_of_a_child(training):
    """A child goes into evaluation while its parent trains."""
    module = on_device(torch.nn.Sequential(torch.nn.BatchNorm1d(3)))
    module[0].train(training)
    return Case(module, (numbers(4, 3, requires_grad=True),))


@changes(False, True)
def training_read(training):
    """The program asks whether the module trains."""

    class Choosing(torch.nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x * 3

    return Choosing().train(training)


# Hooks


@changes(False, True)
def hook_added(added):
    """A module gets a forward hook."""
    module = Scaled()
    if added:
        module.register_forward_hook(lambda module, args, output: output * 3)
    return module


@changes(quick=True)
def forward_hook(n):
    """The code of a forward hook."""
    module = Scaled()
    module.register_forward_hook(lambda module, args, output: output * n)
    return module


@changes()
def forward_pre_hook(n):
    """The code of a forward pre-hook."""
    module = Scaled()
    module.register_forward_pre_hook(lambda module, args: (args[0] + n,))
    return module


@changes()
def hook_of_all_modules(n):
    """The code of a forward hook that all modules have."""
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, output: output * n if isinstance(module, Scaled) else None
    )
    with handle:
        yield Scaled()


@changes(requires=("backward", "higher_order_operators"))
def tensor_hook(n):
    """The code of a hook that the program registers on an intermediate tensor."""

    def program(x):
        y = x * 2
        y.register_hook(lambda gradient: gradient * n)
        return y + x

    return program


@changes(requires=("backward",))
def hook_of_an_argument(n):
    """The code of a hook of an argument."""
    x = numbers(2, 3, requires_grad=True)
    x.register_hook(lambda gradient: gradient * n)
    return Case(lambda x: x * 2, (x,))


@changes(requires=("backward",))
def hook_of_a_parameter(n):
    """The code of a hook of a parameter."""
    module = on_device(torch.nn.Linear(3, 3, bias=False))
    module.weight.register_hook(lambda gradient: gradient * n)
    return module


@changes(requires=("backward",))
def hook_after_accumulation(n):
    """The code of a hook that runs once a parameter has its gradient."""
    module = on_device(torch.nn.Linear(3, 3, bias=False))

    def scale(parameter):
        parameter.grad.mul_(n)

    module.weight.register_post_accumulate_grad_hook(scale)
    return module


@changes()
def hook_captures_another_module(n):
    """An attribute of an object that a hook closes over."""
    other, module = Scaled(n), Scaled()
    module.register_forward_hook(lambda module, args, output: output * other.scale)
    return module


# Structure


@changes()
def parametrization(n):
    """The code of a parametrization of a weight."""

    class Times(torch.nn.Module):
        def forward(self, weight):
            return weight * n

    module = on_device(torch.nn.Linear(3, 3, bias=False))
    torch.nn.utils.parametrize.register_parametrization(module, "weight", Times())
    return module


@changes((0, 1), (1, 0))
def order_of_submodules(order):
    """The order of the modules of a list."""

    class Chain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layers = [Scaled(2), torch.nn.Tanh()]
            self.layers = torch.nn.ModuleList([layers[index] for index in order])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    return Chain()


@changes("first", "second")
def key_of_a_module_dictionary(key):
    """Which module of a dictionary the program calls."""
    table = torch.nn.ModuleDict({"first": Scaled(2), "second": Scaled(3)})
    return lambda x: table[key](x)


@changes()
def class_attribute_of_a_module(n):
    """An attribute of a module's class."""
    with put(Classed, "factor", n):
        yield Classed()


class Classed(torch.nn.Module):
    """A module that multiplies by an attribute of its class."""

    factor = 1

    def forward(self, x):
        return x * self.factor


@changes()
def base_class_of_a_module(n):
    """``forward`` of a base class is replaced."""

    class Derived(Classed):
        pass

    with put(Classed, "forward", lambda self, x: x * n):
        yield Derived()


@changes()
def frozen_size(n):
    """The size of a layer."""
    return on_device(torch.nn.Linear(3, n))
