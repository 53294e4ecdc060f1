"""Changes of Python code and of what it closes over."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint

from pytest_regional.testing import current

from .changes import Case, Changes, numbers, put

changes = Changes(__name__)

SCALE = 1
REPLACED = "stale_hit_replaced_function"
TABLE = {"scale": 1}
FUNCTIONS = ("higher_order_operators", "backward")


def module(**files: str) -> Any:
    """Write source files, in a folder that is the same in each process, and import the first one anew."""
    folder = Path(current().folder, "sources")
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        Path(folder, f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(next(iter(files)))
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = before


# Edited files


@changes("x * 2", "x * 3", quick=True)
def edited_line(expression):
    """A line of the program's source file is edited."""
    return module(staleness_program=f"def program(x):\n    return {expression}\n").program


@changes("x * 2", "x * 3")
def edited_helper_file(expression):
    """A function in another file is edited."""
    program = "from staleness_helper import helper\n\n\ndef program(x):\n    return helper(x)\n"
    return module(staleness_user=program, staleness_helper=f"def helper(x):\n    return {expression}\n").program


@changes()
def edited_constant_file(n):
    """A constant is edited in a file that the program's file imports from."""
    program = "from staleness_constants import SCALE\n\n\ndef program(x):\n    return x * SCALE\n"
    return module(staleness_importer=program, staleness_constants=f"SCALE = {n}\n").program


@changes("x * 2", "x * 3")
def moved_into_a_branch(expression):
    """The line of a branch that is not taken is edited with the one that is."""
    text = f"def program(x, flag=True):\n    if flag:\n        return {expression}\n    return x\n"
    return module(staleness_branch=text).program


# Closures and globals


@changes(quick=True)
def closure_number(n):
    """A number in the closure."""
    return lambda x: x * n


@changes("two", "three")
def closure_string(word):
    """A string in the closure selects a branch."""
    return lambda x: x * 2 if word == "two" else x * 3


@changes([2], [2, 3])
def closure_list(items):
    """A list in the closure is longer."""

    def program(x):
        for n in items:
            x = x * n
        return x

    return program


@changes({"n": 2}, {"n": 3})
def closure_dictionary(table):
    """An entry of a dictionary in the closure."""
    return lambda x: x * table["n"]


@changes(torch.sin, torch.cos)
def closure_torch_function(function):
    """A function of torch in the closure."""
    return lambda x: function(x)


@changes()
def closure_of_a_closure(n):
    """A number in the closure of a function in the closure."""

    def helper(x):
        return x * n

    return lambda x: helper(x)


@changes()
def closure_tensor(n):
    """The values of a tensor in the closure."""
    scale = torch.full((3,), float(n), device=current().device)
    return lambda x: x * scale


@changes(torch.float32, torch.float64)
def closure_tensor_dtype(dtype):
    """The dtype of a tensor in the closure."""
    scale = numbers(3, dtype=dtype)
    return lambda x: x * scale


@changes()
def global_number(n):
    """A global number."""
    with put(globals(), "SCALE", n):
        yield lambda x: x * SCALE


@changes()
def global_dictionary(n):
    """An entry of a global dictionary."""
    with put(TABLE, "scale", n):
        yield lambda x: x * TABLE["scale"]


@changes(lambda x: x * 2, lambda x: x * 3)
def global_function(function):
    """A global function is replaced."""
    with put(globals(), "SCALE", function):
        yield lambda x: SCALE(x)


@changes()
def global_tensor(n):
    """A global tensor is replaced by one with other values."""
    with put(globals(), "SCALE", torch.full((3,), float(n), device=current().device)):
        yield lambda x: x * SCALE


@changes(2.0, None)
def global_none(value):
    """A global number becomes None."""
    with put(globals(), "SCALE", value):
        yield lambda x: x + 1 if SCALE is None else x * SCALE


@changes()
def module_attribute(n):
    """An attribute of an imported module."""
    holder = types.ModuleType("staleness_holder")
    with put(sys.modules, "staleness_holder", holder):
        holder.scale = n
        yield lambda x: x * holder.scale


# Functions


@changes()
def default_argument(n):
    """A default argument."""

    def program(x, scale=n):
        return x * scale

    return program


@changes()
def keyword_default(n):
    """The default of a keyword-only argument."""

    def program(x, *, scale=n):
        return x * scale

    return program


@changes()
def default_of_a_helper(n):
    """The default argument of a function that the program calls."""

    def helper(x, scale=n):
        return x * scale

    return lambda x: helper(x)


@changes()
def assigned_defaults(n):
    """``__defaults__`` of a function is assigned."""

    def program(x, scale=1):
        return x * scale

    program.__defaults__ = (n,)
    return program


@changes()
def partial_argument(n):
    """An argument of a ``functools.partial``."""
    return functools.partial(lambda scale, x: x * scale, n)


@changes()
def partial_keyword(n):
    """A keyword of a ``functools.partial``."""
    return functools.partial(lambda x, scale: x * scale, scale=n)


@changes(torch.no_grad, torch.enable_grad, requires=("backward",))
def decorator(context):
    """A decorator of a helper switches gradients off."""
    return lambda x: context()(lambda y: y * 2)(x) + x


@changes()
def function_attribute(n):
    """An attribute of a function."""

    def helper(x):
        return x * helper.scale

    helper.scale = n
    return lambda x: helper(x)


@changes()
def recursion(n):
    """How deep a function calls itself."""

    def twice(x, depth):
        return twice(x * 2, depth - 1) if depth else x

    return lambda x: twice(x, n)


@changes()
def constant_result(n):
    """The result of a function that is marked ``assume_constant_result``."""

    @torch._dynamo.assume_constant_result
    def scale():
        return n

    return lambda x: x * scale()


@changes()
def generator(n):
    """What a generator yields."""

    def scales():
        yield n

    def program(x):
        for scale in scales():
            x = x * scale
        return x

    return program


# Classes and objects


@changes()
def class_attribute(n):
    """An attribute of a class."""

    class Scaled:
        scale = n

    scaled = Scaled()
    return lambda x: x * scaled.scale


@changes()
def class_attribute_assigned(n):
    """An attribute of a class is assigned after an object was made."""
    with put(Assigned, "scale", n):
        assigned = Assigned()
        yield lambda x: x * assigned.scale


class Assigned:
    """A class whose attributes change."""

    scale = 1

    def apply(self, x):
        return x * self.scale

    @property
    def size(self):
        return 1

    @classmethod
    def made(cls, x):
        return x

    @staticmethod
    def static(x):
        return x


@changes()
def inherited_method(n):
    """A method of a base class."""

    class Base:
        def apply(self, x):
            return x * n

    class Derived(Base):
        pass

    derived = Derived()
    return lambda x: derived.apply(x)


@changes()
def order_of_bases(n):
    """The order of two base classes."""

    class Two:
        scale = 2

    class Three:
        scale = 3

    scaled = type("Scaled", (Two, Three) if n == 2 else (Three, Two), {})()
    return lambda x: x * scaled.scale


@changes()
def replaced_method(n):
    """A method of a class is replaced."""
    with put(Assigned, "apply", lambda self, x: x * n):
        assigned = Assigned()
        yield lambda x: assigned.apply(x)


@changes()
def replaced_property(n):
    """A property of a class is replaced."""
    with put(Assigned, "size", property(lambda self: n)):
        assigned = Assigned()
        yield lambda x: x * assigned.size


@changes()
def replaced_class_method(n):
    """A class method is replaced."""
    with put(Assigned, "made", classmethod(lambda cls, x: x * n)):
        yield lambda x: Assigned.made(x)


@changes()
def replaced_static_method(n):
    """A static method is replaced."""
    with put(Assigned, "static", staticmethod(lambda x: x * n)):
        yield lambda x: Assigned.static(x)


@changes()
def attribute_of_an_object(n):
    """An attribute of an object."""
    assigned = Assigned()
    assigned.scale = n
    return lambda x: assigned.apply(x)


@changes()
def callable_object(n):
    """``__call__`` of an object's class."""

    class Called:
        def __call__(self, x):
            return x * n

    called = Called()
    return lambda x: called(x)


@changes()
def dynamic_attribute(n):
    """What ``__getattr__`` returns."""

    class Dynamic:
        def __getattr__(self, name):
            return n

    dynamic = Dynamic()
    return lambda x: x * dynamic.scale


@changes()
def item_of_an_object(n):
    """What ``__getitem__`` of an object returns."""

    class Table:
        def __getitem__(self, key):
            return n

    table = Table()
    return lambda x: x * table["scale"]


@changes()
def frozen_settings(n):
    """A field of a frozen dataclass that holds settings."""

    @dataclasses.dataclass(frozen=True)
    class Settings:
        scale: int

    settings = Settings(n)
    return lambda x: x * settings.scale


@changes()
def field_default(n):
    """The default of a field of a dataclass."""

    @dataclasses.dataclass
    class Settings:
        scale: int = n

    return lambda x: x * Settings().scale


@changes()
def enum_value(n):
    """The value of a member of an enum."""

    class Kind(enum.Enum):
        scaled = n

    return lambda x: x * Kind.scaled.value


@changes()
def named_tuple(n):
    """A field of a named tuple in the closure."""
    pair = collections.namedtuple("Pair", ["scale", "other"])(n, 0)
    return lambda x: x * pair.scale


# Functions of torch that somebody replaces


@changes(lambda x: x * 2, lambda x: x * 3)
def replaced_functional(function):
    """``torch.nn.functional.silu`` is replaced."""
    with put(torch.nn.functional, "silu", lambda x, inplace=False: function(x)):
        yield torch.nn.SiLU()


@changes(lambda x: x * 2, lambda x: x * 3)
def replaced_torch_function(function):
    """``torch.sin`` is replaced."""
    with put(torch, "sin", function):
        yield lambda x: torch.sin(x)


@changes(lambda x: x * 2, lambda x: x * 3, finding=REPLACED)
def replaced_below_a_functional(function):
    """``torch.relu``, which ``torch.nn.functional.relu`` calls, is replaced."""
    with put(torch, "relu", function):
        yield lambda x: torch.nn.functional.relu(x)


@changes(2.0, 3.0, finding=REPLACED)
def replaced_batch_norm(n):
    """``torch.batch_norm``, which ``torch.nn.functional.batch_norm`` calls, is replaced."""
    with put(torch, "batch_norm", lambda x, *rest: x * n):
        mean, variance = numbers(3), numbers(3)
        yield lambda x: torch.nn.functional.batch_norm(x, mean, variance)


@changes(2.0, 3.0, finding=REPLACED)
def replaced_layer_norm(n):
    """``torch.layer_norm``, which ``torch.nn.functional.layer_norm`` calls, is replaced."""
    with put(torch, "layer_norm", lambda x, *rest: x * n):
        yield lambda x: torch.nn.functional.layer_norm(x, (3,))


@changes(lambda x: x * 2, lambda x: x * 3)
def replaced_tensor_method(function):
    """A method of ``torch.Tensor`` is replaced."""
    with put(torch.Tensor, "new_method", function):
        yield lambda x: x.new_method()


@changes(lambda x: x * 2, lambda x: x * 3)
def replaced_forward(function):
    """``forward`` of a class of torch.nn is replaced."""
    with put(torch.nn.Tanh, "forward", lambda self, x: function(x)):
        yield torch.nn.Tanh()


# Autograd functions


def scaled(forward: int, backward: int) -> Any:
    """Return an autograd function with these two factors."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * forward

        @staticmethod
        def backward(context, gradient):
            return gradient * backward

    return lambda x: Scaled.apply(x)


@changes(requires=FUNCTIONS)
def autograd_function_forward(n):
    """The forward of an ``autograd.Function``."""
    return scaled(n, 1)


@changes(quick=True, requires=FUNCTIONS)
def autograd_function_backward(n):
    """The backward of an ``autograd.Function``."""
    return scaled(1, n)


@changes(requires=FUNCTIONS)
def autograd_function_context(n):
    """What an ``autograd.Function`` keeps in its context."""

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.scale = n
            return x * 1

        @staticmethod
        def backward(context, gradient):
            return gradient * context.scale

    return lambda x: Kept.apply(x)


@changes(requires=FUNCTIONS)
def autograd_function_saved(n):
    """Which tensor an ``autograd.Function`` saves."""

    class Saving(torch.autograd.Function):
        @staticmethod
        def forward(context, x, y):
            context.save_for_backward(x if n == 2 else y)
            return x * y

        @staticmethod
        def backward(context, gradient):
            (saved,) = context.saved_tensors
            return gradient * saved, None

    return Case(lambda x, y: Saving.apply(x, y), (numbers(3, requires_grad=True), numbers(3, start=7)))


@changes(False, True, requires=FUNCTIONS)
def autograd_function_not_differentiable(marked):
    """An ``autograd.Function`` marks its output as not differentiable."""

    class Marking(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            first, second = x * 2, x * 3
            if marked:
                context.mark_non_differentiable(second)
            return first, second

        @staticmethod
        def backward(context, first, second):
            return first * 2 + second * 3

    return lambda x: Marking.apply(x)


# Bodies of higher-order operators


@changes(requires=("higher_order_operators", "backward"))
def checkpointed_function(n):
    """The function of a checkpoint."""
    return lambda x: torch.utils.checkpoint.checkpoint(lambda y: y * n, x, use_reentrant=False)


@changes(requires=("higher_order_operators",))
def branch_of_cond(n):
    """A branch of ``torch.cond``."""
    x = numbers(2, 3)
    return Case(lambda x: torch.cond(x.sum() > 0, lambda y: y * n, lambda y: y * 1, (x,)), (x,))


@changes(requires=("higher_order_operators",))
def other_branch_of_cond(n):
    """The branch of ``torch.cond`` that another predicate takes."""
    x = numbers(2, 3)
    return Case(lambda x: torch.cond(x.sum() < n * 8, lambda y: y * 2, lambda y: y * 3, (x,)), (x,))


@changes(requires=("higher_order_operators",))
def body_of_map(n):
    """The body of a map."""
    from torch._higher_order_ops.map import map as mapped

    return Case(lambda x: mapped(lambda y: y * n, x), (numbers(2, 3),))


@changes(requires=("higher_order_operators",))
def body_of_while_loop(n):
    """The body of a while loop."""
    from torch._higher_order_ops.while_loop import while_loop

    def program(x):
        return while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y * n), (torch.zeros((), dtype=torch.int64), x))[1]

    return Case(program, (numbers(2, 3),))


@changes(requires=("higher_order_operators",))
def body_of_scan(n):
    """The body of a scan."""
    from torch._higher_order_ops.scan import scan

    return Case(lambda x: scan(lambda c, y: (c + y * n, c * 1), x[0], x)[0], (numbers(2, 3),))


@changes(requires=("higher_order_operators",))
def nested_compile_region(n):
    """The function of a ``nested_compile_region``."""
    body = torch.compiler.nested_compile_region(lambda x: x * n)
    return lambda x: body(x)


@changes()
def transformed_by_grad(n):
    """The function that ``torch.func.grad`` differentiates."""
    return Case(lambda x: torch.func.grad(lambda y: (y * n).sum())(x), (numbers(2, 3),))


@changes()
def transformed_by_vmap(n):
    """The function that ``torch.func.vmap`` maps."""
    return Case(lambda x: torch.func.vmap(lambda y: y * n)(x), (numbers(2, 3),))


@changes(0, 1)
def vmapped_dimension(dimension):
    """The dimension that ``torch.func.vmap`` maps over."""
    return Case(lambda x: torch.func.vmap(lambda y: y.cumsum(0), in_dims=dimension)(x), (numbers(3, 3),))


@changes(0, 1)
def differentiated_argument(argument):
    """``argnums`` of ``torch.func.grad``."""
    inputs = numbers(3), numbers(3, start=5)
    return Case(lambda x, y: torch.func.grad(lambda a, b: (a * b).sum(), argnums=argument)(x, y), inputs)


@changes()
def transformed_by_jvp(n):
    """The function that ``torch.func.jvp`` differentiates."""
    return Case(lambda x: torch.func.jvp(lambda y: y * n, (x,), (x,))[1], (numbers(2, 3),))


@changes()
def replaced_parameters(n):
    """The parameters given to ``torch.func.functional_call``."""
    layer = torch.nn.Linear(3, 3, bias=False, device=current().device)
    given = {"weight": numbers(3, 3) * n}
    return Case(lambda x: torch.func.functional_call(layer, given, (x,)), (numbers(2, 3),))
