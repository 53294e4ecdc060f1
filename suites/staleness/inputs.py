"""Changes of arguments other than their values: types, dtypes, shapes, flags, and the structure of containers."""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import Any

import numpy
import torch

from .changes import Case, Changes, numbers

changes = Changes(__name__)


class Mode(enum.Enum):
    """How a program scales."""

    TWO = 2
    THREE = 3


class IntMode(enum.IntEnum):
    """As :class:`Mode`, of numbers."""

    TWO = 2
    THREE = 3


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a program."""

    scale: int


@dataclasses.dataclass
class Batch:
    """An argument with a tensor and a number."""

    x: Any
    scale: int


Pair = collections.namedtuple("Pair", ["x", "scale"])


def scaled_by(value: Any) -> Case:
    """Return a product with a number that is an argument."""
    return Case(lambda x, n: x * n, (numbers(2, 3, requires_grad=True), value))


VALUES = {
    "integer": (2, 3),
    "float": (2.0, 3.0),
    "integer_and_float_of_one_value": (2, 2.0),
    "boolean": (False, True),
    "boolean_and_integer": (True, 3),
    "complex_number": (2j, 3j),
    "negative_zero": (0.0, -0.0),
    "large_integer": (2**40, 2**41),
    "last_digit_of_a_float": (0.1, 0.1 + 2**-30),
    "infinity": (2.0, float("inf")),
    "nan": (2.0, float("nan")),
    "enum_of_numbers": (IntMode.TWO, IntMode.THREE),
    "numpy_scalar": (numpy.float32(2), numpy.float32(3)),
}


def _value_row(name: str, before: Any, after: Any) -> None:
    def make(value: Any) -> Case:
        if name in ("integer_and_float_of_one_value", "boolean"):
            return Case(lambda x, n: x * n, (numbers(2, 3, dtype=torch.int64), value))
        if name == "negative_zero":
            return Case(lambda x, n: 1 / (x * n), (numbers(2, 3), value))
        if name == "last_digit_of_a_float":
            return Case(lambda x, n: (x * n - 0.1 * x) * 1e9, (numbers(2, 3, dtype=torch.float64), value))
        return scaled_by(value)

    make.__doc__ = f"A number among the arguments: {name.replace('_', ' ')}."
    changes(before, after, name=name)(make)


for _name, (_before, _after) in VALUES.items():
    _value_row(_name, _before, _after)


# Other objects


@changes("two", "three")
def string(word):
    """A string selects a branch."""
    return Case(lambda x, word: x * 2 if word == "two" else x * 3, (numbers(2, 3), word))


@changes(None, 3)
def none(scale):
    """An argument that was None is a number."""
    return Case(lambda x, scale: x + 1 if scale is None else x * scale, (numbers(2, 3), scale))


@changes(False, True)
def none_and_tensor(given):
    """An argument that was None is a tensor."""
    return Case(lambda x, y: x + 1 if y is None else x * y, (numbers(2, 3), numbers(3) if given else None))


@changes(Mode.TWO, Mode.THREE)
def enum_member(mode):
    """A member of an enum."""
    return Case(lambda x, mode: x * mode.value, (numbers(2, 3), mode))


@changes(torch.float64, torch.float16)
def dtype_argument(dtype):
    """A dtype."""
    return Case(lambda x, dtype: x.to(dtype), (numbers(2, 3), dtype))


@changes("cpu", "meta")
def device_argument(device):
    """A device."""
    return Case(lambda x, device: (x * 2, torch.ones(3, device=device)), (numbers(2, 3), device))


@changes(torch.contiguous_format, torch.channels_last, requires=("channels_last",))
def memory_format_argument(format):
    """A memory format."""
    return Case(lambda x, f: (x * 2).contiguous(memory_format=f), (numbers(2, 3, 2, 2), format))


@changes(slice(0, 1), slice(1, 2))
def slice_argument(part):
    """A slice."""
    return Case(lambda x, part: x[part] * 2, (numbers(2, 3), part))


@changes(torch.Size([3, 2]), torch.Size([6, 1]))
def size_argument(size):
    """A size."""
    return Case(lambda x, size: (x * 2).reshape(size), (numbers(2, 3), size))


@changes(Settings(2), Settings(3))
def dataclass_argument(settings):
    """A field of a frozen dataclass."""
    return Case(lambda x, settings: x * settings.scale, (numbers(2, 3), settings))


@changes()
def dataclass_with_tensor(n):
    """A number in a dataclass that has a tensor too."""
    return Case(lambda batch: batch.x * batch.scale, (Batch(numbers(2, 3), n),))


@changes()
def named_tuple_argument(n):
    """A number in a named tuple."""
    return Case(lambda pair: pair.x * pair.scale, (Pair(numbers(2, 3), n),))


@changes({2}, {3})
def set_argument(items):
    """A set of numbers."""
    return Case(lambda x, items: x * 2 if 2 in items else x * 3, (numbers(2, 3), items))


@changes(2, 4)
def range_argument(stop):
    """A range."""
    return Case(lambda x, steps: x * sum(steps), (numbers(2, 3), range(stop)))


@changes(torch.sin, torch.cos)
def function_argument(function):
    """A function of torch."""
    return Case(lambda x, f: f(x), (numbers(2, 3), function))


@changes()
def python_function_argument(n):
    """The code of a function that is an argument."""
    return Case(lambda x, f: f(x), (numbers(2, 3), lambda x: x * n))


@changes(torch.nn.Sigmoid, torch.nn.Tanh)
def module_argument(kind):
    """A module that is an argument."""
    return Case(lambda x, layer: layer(x), (numbers(2, 3), kind()))


@changes()
def array_dtype(n):
    """The dtype of a NumPy array."""
    array = numpy.arange(3, dtype=numpy.float32 if n == 2 else numpy.float64)
    return Case(lambda x, array: x * torch.from_numpy(array), (numbers(2, 3), array))


# Containers


@changes()
def length_of_a_list(n):
    """The length of a list of tensors."""
    return Case(lambda items: sum(x * 2 for x in items), ([numbers(3, start=i) for i in range(n)],))


@changes((0, 1), (1, 0))
def order_of_a_list(order):
    """The order of two tensors of different sizes in a list."""
    items = numbers(3), numbers(1, start=7)
    return Case(lambda items: items[0].sum() * 2 + items[1].sum() * items[1].numel(), ([items[i] for i in order],))


@changes(("a", "b"), ("b", "a"))
def order_of_keys(keys):
    """The order of the keys of a dictionary, which the program goes through."""
    x = numbers(3)
    table = {"a": x, "b": x * 10}

    def program(table):
        result = 0
        for value in table.values():
            result = result * 2 + value
        return result

    return Case(program, ({key: table[key] for key in keys},))


@changes("scale", "shift")
def key_of_a_dictionary(key):
    """The key of a tensor in a dictionary."""
    return Case(lambda x, t: x * t["scale"] if "scale" in t else x + t["shift"], (numbers(3), {key: numbers(3)}))


@changes()
def number_in_a_dictionary(n):
    """A number in a dictionary."""
    return Case(lambda x, table: x * table["scale"], (numbers(3), {"scale": n}))


@changes()
def number_in_nested_containers(n):
    """A number in a list in a dictionary in a tuple."""
    return Case(lambda x, tree: x * tree[0]["scales"][1], (numbers(3), ({"scales": [1, n]},)))


@changes(list, tuple)
def list_or_tuple(kind):
    """A list becomes a tuple."""
    return Case(lambda items: items[0] * (2 if isinstance(items, list) else 3), (kind([numbers(3)]),))


@changes(dict, collections.OrderedDict)
def class_of_a_dictionary(kind):
    """A dictionary becomes an ordered one."""
    return Case(lambda t: t["x"] * (3 if isinstance(t, collections.OrderedDict) else 2), (kind(x=numbers(3)),))


@changes(1, 2)
def number_of_arguments(count):
    """How many arguments a function with ``*args`` gets."""
    return Case(lambda *items: sum(x * 2 for x in items), tuple(numbers(3, start=i) for i in range(count)))


@changes("scale", "shift")
def name_of_a_keyword(name):
    """Which keyword an argument is given as."""

    def program(x, scale=None, shift=None):
        return x * scale if shift is None else x + shift

    return Case(program, (numbers(3),), {name: numbers(3)})


@changes(False, True)
def keyword_given(given):
    """A keyword is given that was at its default."""
    return Case(lambda x, scale=2: x * scale, (numbers(3),), {"scale": 3} if given else {})


# Tensors

DTYPES = {
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}


def _dtype_row(name: str, dtype: torch.dtype) -> None:
    def make(chosen: torch.dtype) -> Case:
        return Case(lambda x: x + x, (numbers(2, 3, dtype=chosen),))

    make.__doc__ = f"The dtype of an argument becomes {name}."
    changes(torch.float32, dtype, name=f"dtype_{name}", quick=name == "float64")(make)


for _name, _dtype in DTYPES.items():
    _dtype_row(_name, _dtype)


@changes((2, 3), (3, 2))
def shape(size):
    """The shape of an argument."""
    return Case(lambda x: x * x.shape[0], (numbers(*size),))


@changes((6,), (6, 1))
def dimensions(size):
    """The number of dimensions of an argument."""
    return Case(lambda x: x + x, (numbers(*size),))


@changes((3,), ())
def no_dimensions(size):
    """An argument becomes a tensor without dimensions."""
    return Case(lambda x, y: x * y, (numbers(3), numbers(*size)))


@changes((2, 3), (0, 3))
def empty(size):
    """An argument becomes empty."""
    return Case(lambda x: x * 2, (numbers(*size),))


@changes((2, 3), (1, 3))
def broadcast(size):
    """An argument comes to be broadcast."""
    return Case(lambda x, y: (x * y, y * 2), (numbers(2, 3), numbers(*size)))


@changes(False, True, quick=True, requires=("backward",))
def requires_grad(required):
    """An argument comes to require a gradient."""
    return Case(lambda x: x * 2, (numbers(2, 3, requires_grad=required),))


@changes((True, False), (False, True), requires=("backward",))
def which_requires_grad(required):
    """Another argument requires a gradient."""
    inputs = tuple(numbers(3, requires_grad=flag, start=2 + flag) for flag in required)
    return Case(lambda x, y: x * y, inputs)


@changes(False, True)
def requires_grad_read(required):
    """The program asks whether its argument requires a gradient."""
    x = numbers(2, 3, requires_grad=required)
    return Case(lambda x: (x * 2 if x.requires_grad else x * 3).detach(), (x,))


@changes(False, True, requires=("backward",))
def leaf_read(leaf):
    """The program asks whether its argument is a leaf."""
    x = numbers(2, 3, requires_grad=True)
    return Case(lambda x: (x * 2 if x.is_leaf else x * 3).detach(), (x if leaf else x * 1,))


@changes(torch.Tensor, torch.nn.Parameter)
def parameter_read(kind):
    """The program asks whether its argument is a parameter."""
    x = kind(numbers(2, 3))
    return Case(lambda x: (x * 2 if isinstance(x, torch.nn.Parameter) else x * 3).detach(), (x,))


@changes(False, True)
def conjugate_bit(conjugate):
    """An argument has its conjugate bit set."""
    x = numbers(3, dtype=torch.complex64) * (1 + 2j)
    return Case(lambda x: x * 2, (x.conj() if conjugate else x,))


@changes(False, True, requires=("dynamic_shapes",))
def static_or_dynamic(dynamic):
    """The program is compiled for sizes that are symbols, and reads one."""
    size = 4 if dynamic else 3
    return Case(lambda x: x * x.shape[0], (numbers(size, 3),), options={"dynamic": dynamic})


# Subclasses of tensors


class Two(torch.Tensor):
    """A subclass whose method doubles."""

    def scaled(self):
        return self * 2


class Three(torch.Tensor):
    """A subclass whose method triples."""

    def scaled(self):
        return self * 3


@changes(Two, Three)
def subclass(kind):
    """The subclass of an argument."""
    return Case(lambda x: x.scaled(), (numbers(2, 3).as_subclass(kind),))


@changes(torch.Tensor, Two)
def made_a_subclass(kind):
    """An argument becomes of a subclass."""
    return Case(lambda x: x * 3 if type(x) is torch.Tensor else x * 2, (numbers(2, 3).as_subclass(kind),))


@changes()
def torch_function_of_a_subclass(n):
    """``__torch_function__`` of a subclass."""

    class Scaling(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is torch.add:
                return super().__torch_function__(torch.mul, types, (args[0], n), {})
            return super().__torch_function__(function, types, args, kwargs or {})

    return Case(lambda x: torch.add(x, 1), (numbers(2, 3).as_subclass(Scaling),))


class Wrapped(torch.Tensor):
    """A subclass that holds a tensor and a number, and multiplies by the number."""

    factor = 1

    @staticmethod
    def __new__(cls, inner, scale):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner, scale):
        self.inner, self.scale = inner, scale

    def __tensor_flatten__(self):
        return ["inner"], self.scale

    @staticmethod
    def __tensor_unflatten__(inner, scale, size, stride):
        return Wrapped(inner["inner"], scale)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        scale = next(value.scale for value in args if isinstance(value, Wrapped))
        plain = [value.inner if isinstance(value, Wrapped) else value for value in args]
        result = function(*plain, **(kwargs or {}))
        return Wrapped(result * scale * cls.factor, scale) if function is torch.ops.aten.mul.Tensor else result


@changes()
def number_of_a_subclass(n):
    """A number that a wrapper subclass holds."""
    return Case(lambda x: x * 2, (Wrapped(numbers(2, 3), n),))


@changes(finding="stale_hit_subclass_code")
def dispatch_of_a_subclass(n):
    """What ``__torch_dispatch__`` of a wrapper subclass computes."""
    Wrapped.factor = n
    try:
        yield Case(lambda x: x * 2, (Wrapped(numbers(2, 3), 1),))
    finally:
        Wrapped.factor = 1


@changes(torch.float32, torch.float64)
def inner_dtype_of_a_subclass(dtype):
    """The dtype of the tensor that a wrapper subclass holds."""
    return Case(lambda x: x * 2, (Wrapped(numbers(2, 3, dtype=dtype), 1),))
