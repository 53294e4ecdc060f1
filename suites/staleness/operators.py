"""Changes of operators: those of users, and what users change of PyTorch's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._inductor.decomposition
import torch._library.opaque_object
import torch.utils.checkpoint

from .changes import Case, Changes, numbers, put

changes = Changes(__name__, requires=("custom_ops",))

NAMESPACE = "staleness"

CODE, DECOMPOSITION = "stale_hit_operator_code", "stale_hit_decomposition"


@contextlib.contextmanager
def decomposition(op: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Put a function into Inductor's table of decompositions, of which Inductor keeps a copy."""
    try:
        with put(torch._inductor.decomposition.decompositions, op.default, function):
            torch._inductor.decomposition.fast_random_decomps.cache_clear()
            yield
    finally:
        torch._inductor.decomposition.fast_random_decomps.cache_clear()


@contextlib.contextmanager
def library(schema: str, namespace: str = NAMESPACE, **kernels: Callable[..., Any]) -> Iterator[Any]:
    """Define an operator with kernels by dispatch key; yields it."""
    name = schema.partition("(")[0]
    with torch.library._scoped_library(namespace, "FRAGMENT") as scoped:
        scoped.define(schema)
        for key, kernel in kernels.items():
            scoped.impl(name, kernel, key)
        yield getattr(getattr(torch.ops, namespace), name)


def custom_op(name: str, *, scale: int = 1, mutates: tuple[str, ...] = (), tags: Any = None) -> Any:
    """Return a new custom operator that multiplies."""

    def multiplied(x: torch.Tensor) -> torch.Tensor:
        return x * scale

    options = {} if tags is None else {"tags": tags}
    made = torch.library.custom_op(f"{NAMESPACE}::{name}", multiplied, mutates_args=mutates, **options)
    made.register_fake(lambda x: torch.empty_like(x))
    return made


def derivative(context: Any, gradient: Any) -> Any:
    """Return the gradient as it is."""
    return gradient


@changes()
def custom_op_kernel(n):
    """The code of a custom operator."""
    op = custom_op("kernel", scale=n)
    op.register_autograd(derivative)
    return lambda x: op(x)


@changes(quick=True, finding=CODE, stale_on=("inductor",), requires=("backward",))
def custom_op_derivative(n):
    """The autograd formula of a custom operator."""
    op = custom_op("derivative")
    op.register_autograd(lambda context, gradient: gradient * n)
    return lambda x: op(x)


@changes(finding=CODE, stale_on=("inductor",), requires=("backward",))
def custom_op_setup_context(n):
    """What the autograd formula of a custom operator saves."""
    op = custom_op("setup")
    op.register_autograd(
        lambda context, gradient: gradient * context.scale,
        setup_context=lambda ctx, inputs, output: setattr(ctx, "scale", n),
    )
    return lambda x: op(x)


@changes(False, True, requires=("backward",))
def custom_op_derivative_added(added):
    """A custom operator gets an autograd formula."""
    op = custom_op("added")
    if added:
        op.register_autograd(derivative)
    return lambda x: (op(x), x * 2)


@changes(finding=CODE, stale_on=("inductor",), requires=("backward",))
def derivative_calls_a_helper(n):
    """A function that the autograd formula of a custom operator calls."""

    def helper(gradient):
        return gradient * n

    op = custom_op("helper")
    op.register_autograd(lambda context, gradient: helper(gradient))
    return lambda x: op(x)


FACTOR = 1


@changes(finding=CODE, stale_on=("inductor",), requires=("backward",))
def derivative_reads_a_global(n):
    """A global number that the autograd formula of a custom operator reads."""
    op = custom_op("reads")
    op.register_autograd(lambda context, gradient: gradient * FACTOR)
    with put(globals(), "FACTOR", n):
        yield lambda x: op(x)


@changes(1, 2, finding=CODE)
def custom_op_fake(rows):
    """The fake implementation of a custom operator: the shape of its result."""

    def first(x: torch.Tensor) -> torch.Tensor:
        return x[:rows].clone()

    op = torch.library.custom_op(f"{NAMESPACE}::fake", first, mutates_args=())
    op.register_fake(lambda x: x.new_empty(rows, *x.shape[1:]))
    return Case(lambda x: op(x) * 2, (numbers(2, 3),))


@changes((), ("x",))
def custom_op_mutates(mutates):
    """A custom operator comes to write to its argument."""

    def write(x: torch.Tensor) -> torch.Tensor:
        y = x if mutates else x.clone()
        y.mul_(2)
        return y.clone()

    op = torch.library.custom_op(f"{NAMESPACE}::mutating", write, mutates_args=mutates)
    op.register_fake(lambda x: torch.empty_like(x))
    return Case(lambda x: op(x) + x, (numbers(2, 3),))


@changes(finding=CODE)
def custom_op_default(n):
    """The default of an argument in the schema of a custom operator."""
    schema = f"defaulted(Tensor x, int scale={n}) -> Tensor"
    with library(schema, CompositeExplicitAutograd=lambda x, scale=n: x * scale) as op:
        yield Case(lambda x: op(x), (numbers(2, 3),))


@changes(finding=CODE)
def custom_op_vmap(n):
    """The vmap rule of a custom operator."""
    op = custom_op("vmapped")
    op.register_vmap(lambda info, dims, x: (x * n, dims[0]))
    return Case(lambda x: torch.func.vmap(lambda y: op(y))(x), (numbers(2, 3),))


@changes(torch.bfloat16, torch.float16, finding=CODE, stale_on=("inductor",))
def custom_op_autocast(dtype):
    """The dtype that a custom operator is cast to under autocast."""
    op = custom_op("autocast")
    op.register_autocast("cpu", dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield Case(lambda x: op(x), (numbers(2, 3),))


@changes(quick=True, finding=CODE)
def composite_kernel(n):
    """The composite kernel of a user's operator."""
    with library("composite(Tensor x) -> Tensor", CompositeImplicitAutograd=lambda x: x * n) as op:
        yield lambda x: op(x)


@changes(finding=CODE)
def composite_of_composites(n):
    """The composite kernel of an operator that another operator's composite kernel calls."""
    with (
        library("inner(Tensor x) -> Tensor", CompositeImplicitAutograd=lambda x: x * n) as inner,
        library("outer(Tensor x) -> Tensor", CompositeImplicitAutograd=lambda x: inner(x)) as op,
    ):
        yield lambda x: op(x)


@changes(finding=CODE)
def composite_in_aten(n):
    """The composite kernel of an operator that was added to namespace ``aten``."""
    schema = "staleness_scaled(Tensor x) -> Tensor"
    with library(schema, "aten", CompositeImplicitAutograd=lambda x: x * n) as op:
        yield lambda x: op(x)


@changes()
def explicit_kernel(n):
    """A kernel for all devices of a user's operator, which has a fake implementation."""
    kernels = {"CompositeExplicitAutograd": lambda x: x * n, "Meta": lambda x: torch.empty_like(x)}
    with library("explicit(Tensor x) -> Tensor", **kernels) as op:
        yield Case(lambda x: op(x), (numbers(2, 3),))


@changes(finding=CODE, stale_on=("inductor",), requires=("backward",))
def autograd_kernel(n):
    """The kernel for key ``Autograd`` of a user's operator."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            with torch._C._AutoDispatchBelowAutograd():
                return torch.ops.staleness.differentiable(x)

        @staticmethod
        def backward(context, gradient):
            return gradient * n

    kernels = {
        "CompositeExplicitAutograd": lambda x: x * 1,
        "Meta": lambda x: torch.empty_like(x),
        "Autograd": lambda x: Scaled.apply(x),
    }
    with library("differentiable(Tensor x) -> Tensor", **kernels) as op:
        yield lambda x: op(x)


@changes(finding=CODE)
def autograd_kernel_of_aten(n):
    """A user's kernel for key ``AutogradCPU`` of an operator of PyTorch."""

    def kernel(x):
        return x * n

    with torch.library._scoped_library("aten", "IMPL") as scoped:
        scoped.impl("silu", kernel, "AutogradCPU")
        yield Case(lambda x: torch.ops.aten.silu(x), (numbers(2, 3, requires_grad=True),))


@changes(finding=CODE)
def triton_op(n):
    """The code of a ``triton_op``, which the compiler looks into."""

    def multiplied(x: torch.Tensor) -> torch.Tensor:
        return x * n

    op = torch.library.triton_op(f"{NAMESPACE}::triton", multiplied, mutates_args=())
    return Case(lambda x: op(x), (numbers(2, 3),))


@changes(quick=True, requires=("inductor_code",), finding=DECOMPOSITION)
def decomposition_of_a_custom_op(n):
    """The decomposition in Inductor's table of a user's operator."""
    kernels = {"CompositeExplicitAutograd": lambda x: x * n, "Meta": lambda x: torch.empty_like(x)}
    with library("decomposed(Tensor x) -> Tensor", **kernels) as op, decomposition(op, lambda x: x * n):
        yield Case(lambda x: op(x), (numbers(2, 3),))


@changes(2.0, 3.0, requires=("inductor_code",), finding=DECOMPOSITION)
def decomposition_of_aten(n):
    """The decomposition in Inductor's table of an operator of PyTorch."""
    with decomposition(torch.ops.aten.silu, lambda x: x * n):
        yield Case(lambda x: torch.ops.aten.silu(x), (numbers(2, 3),), expected=lambda x: x * n)


@changes(False, True, requires=("inductor_code",), finding=DECOMPOSITION)
def decomposition_added(added):
    """A user's operator gets a decomposition in Inductor's table."""
    kernels = {"CompositeExplicitAutograd": lambda x: x * 2, "Meta": lambda x: torch.empty_like(x)}
    with (
        library("decomposed_later(Tensor x) -> Tensor", **kernels) as op,
        decomposition(op, lambda x: x * 3) if added else contextlib.nullcontext(),
    ):
        yield Case(lambda x: op(x), (numbers(2, 3),), expected=lambda x: x * (3 if added else 2))


# Objects that only operators look into

OPAQUE = hasattr(torch._library.opaque_object, "register_opaque_type")


class Factor(torch._opaque_base.OpaqueBase if OPAQUE else object):  # type: ignore[misc]
    """A number that compilers take for a constant that they cannot look into."""

    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return isinstance(other, Factor) and self.n == other.n

    def __hash__(self):
        return hash(self.n)

    def __fx_repr__(self):
        return f"Factor({self.n})", {"Factor": Factor}


def takes_factor() -> Any:
    """Return an operator that multiplies by a :class:`Factor`."""

    def multiplied(x: torch.Tensor, factor: Factor) -> torch.Tensor:
        return x * factor.n

    made = torch.library.custom_op(f"{NAMESPACE}::takes_factor", multiplied, mutates_args=())
    made.register_fake(lambda x, factor: torch.empty_like(x))
    made.register_autograd(
        lambda ctx, gradient: (gradient * ctx.factor.n, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )
    return made


if OPAQUE:
    torch._library.opaque_object.register_opaque_type(Factor, typ="value")

    @changes()
    def opaque_object(n):
        """An opaque object that an operator gets."""
        op, factor = takes_factor(), Factor(n)
        return lambda x: op(x, factor)

    @changes(requires=("higher_order_operators", "backward"))
    def opaque_object_in_a_checkpoint(n):
        """An opaque object that an operator gets in a checkpointed function."""
        op, factor = takes_factor(), Factor(n)
        return lambda x: torch.utils.checkpoint.checkpoint(lambda y: op(y, factor), x, use_reentrant=False)
