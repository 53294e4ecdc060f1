"""Tracing: fake modes and values, symbolic sizes, the ambient context and the lock."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pytest_regional._torch import calling, fetching, symbol
from pytest_regional._torch.operators import is_higher_order_op

#: A reentrant lock under which forwards are compiled (2.11 to 2.15). A backward compiles when it first runs, outside of
#: Dynamo. Without the lock, its tracing and that of a forward in another thread undo each other's patches of global
#: state (``torch.fx._symbolic_trace.CURRENT_PATCHER``).
compile_lock = fetching("torch._dynamo.convert_frame", "compile_lock")
#: The state of Dynamo and AOTAutograd for a graph (2.11 to 2.15).
tracing_context_class = fetching("torch._guards", "TracingContext")
#: Makes a context the ambient tracing context (2.11 to 2.15).
entered = calling("torch._guards", "tracing")
#: Returns the fake mode that values belong to, or None (2.11 to 2.15).
detect_fake_mode = calling("torch._guards", "detect_fake_mode")
#: Makes an environment of symbolic sizes (2.11 to 2.15).
new_shape_env = calling("torch.fx.experimental.symbolic_shapes", "ShapeEnv")
#: Returns the symbols in a number, or in sizes, strides and offset of a tensor (2.11 to 2.15).
free_symbols = calling("torch.fx.experimental.symbolic_shapes", "free_symbols")
without_dispatch_modes = calling("torch.utils._python_dispatch", "_disable_current_modes")
#: The base of modes that see every operator that runs (2.11 to 2.15).
dispatch_mode = fetching("torch.utils._python_dispatch", "TorchDispatchMode")
#: The context in which operators are decomposed on symbolic sizes (2.11 to 2.15).
python_dispatcher = calling("torch._dispatch.python", "enable_python_dispatcher")
#: The context in which AOTAutograd compiles: casts are in the graph (2.11 to 2.15).
without_autocast = calling("torch._C", "_DisableAutocast")
#: Returns a function with functional operators instead of those that write, as AOTAutograd traces it.
without_writes = calling("torch.func", "functionalize")
_fake_tensor = functools.cache(fetching("torch._subclasses", "FakeTensor"))
#: Raised for a fake operator that differs from the real one (2.11 to 2.15).
_mismatch_error = fetching("torch._subclasses.fake_tensor", "MetadataMismatchError")


def ambient_context() -> Any:
    """``torch._guards.TracingContext.try_get()``: shared by forward and backward of a graph (2.11 to 2.15)."""
    return tracing_context_class().try_get()


def current_fake_mode() -> Any:
    """Fake mode of the ambient ``torch._guards.TracingContext``, or None without one (2.11 to 2.15)."""
    return getattr(ambient_context(), "fake_mode", None)


def new_fake_mode() -> Any:
    """Return a fresh ``FakeTensorMode`` with a ``ShapeEnv`` (2.11 to 2.15)."""
    return symbol("torch._subclasses", "FakeTensorMode")(shape_env=new_shape_env(), allow_non_fake_inputs=True)


@contextlib.contextmanager
def tracing_inputs(inputs: Iterable[Any]) -> Iterator[None]:
    """Enter a tracing context as Dynamo makes it for a graph of these tensors, all sizes constants (2.11 to 2.15).

    A fake mode remembers which fake tensor stands for a tensor while that one lives, so AOTAutograd finds these here.
    """
    mode = new_fake_mode()
    _alive = [mode.from_tensor(value, static_shapes=True) for value in inputs]
    with tracing(mode):
        yield


def tracing(fake_mode: Any) -> AbstractContextManager[Any]:
    """Enter a new tracing context for ``fake_mode``."""
    return entered(tracing_context_class()(fake_mode))


def propagate_fake_values(gm: Any, fake_inputs: Sequence[Any], fake_mode: Any) -> None:
    """Give every node ``meta["val"]``, through ``FakeTensorProp`` (2.11 to 2.15)."""
    interpreter = symbol("torch.fx.passes.fake_tensor_prop", "FakeTensorProp")(gm, mode=fake_mode)
    interpreter.propagate_dont_convert_inputs(*fake_inputs)


@functools.cache
def _symbolic_numbers() -> tuple[Any, Any, Any]:
    """Return the classes of symbolic numbers, integers first; cached, since they are used for every node."""
    import torch

    return torch.SymInt, torch.SymFloat, torch.SymBool


def is_symbolic(value: Any) -> bool:
    """Return whether ``value`` is a number of symbolic size (``torch.SymInt`` and its kin)."""
    return isinstance(value, _symbolic_numbers())


def is_integer(value: Any) -> bool:
    """Return whether ``value`` is an integer, plain or symbolic, but not a bool."""
    return type(value) in (int, _symbolic_numbers()[0])


def plain_symbol(value: Any) -> str | None:
    """Return the name of a plain ``torch.SymInt`` symbol, or None for a number or a longer expression."""
    if not isinstance(value, _symbolic_numbers()[0]):
        return None
    expression = value.node.expr
    return str(expression) if expression.is_Symbol else None


def size_hint(value: Any) -> int:
    """Return a number, or the example value of a symbolic one (``SymNode.hint``; 2 for unbacked symbols)."""
    if not is_symbolic(value):
        return int(value)
    hint = value.node.hint if value.node.has_hint() else None
    return 2 if hint is None else int(hint)


def is_fake_tensor(value: Any) -> bool:
    """Return whether ``value`` is a ``FakeTensor``, not a subclass around one (2.11 to 2.15)."""
    return type(value) is _fake_tensor()


def storage_key(value: Any) -> int | None:
    """Identity of the storage of a (fake) tensor, or None if it has none (``untyped_storage()._cdata``)."""
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    try:
        return int(value.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse and other subclasses have no storage
        return None


def inner_tensors(value: Any) -> list[Any]:
    """Return the tensors inside a wrapper subclass, at any depth; none for any other value (2.11 to 2.15)."""
    if not symbol("torch.utils._python_dispatch", "is_traceable_wrapper_subclass")(value):
        return []
    own = [getattr(value, name) for name in value.__tensor_flatten__()[0]]
    return [each for one in own for each in (one, *inner_tensors(one))]


def base_of(tensor: Any) -> Any:
    """Return the tensor that ``tensor`` is a view of, by autograd, or None: ``Tensor._base`` (2.11 to 2.15)."""
    return tensor._base


def is_zero_tensor(tensor: Any) -> bool:
    """Say whether ``tensor`` is zeros without memory, to which eager refuses to write (2.11 to 2.15)."""
    return bool(tensor._is_zerotensor())


def with_memory(func: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Return ``args`` as an operator may be called with in a dispatch mode.

    PyTorch kills the process where a mode multiplies a zero tensor by a number, or adds one (2.11 to 2.15); here that
    tensor is given memory. ``docs/findings/zero_tensor_in_graph.py`` says when this can go.
    """
    import torch

    deadly = func in (torch.ops.aten.mul.Scalar, torch.ops.aten.add.Scalar) and is_zero_tensor(args[0])
    return (torch.zeros_like(args[0]), *args[1:]) if deadly else args


def view_like(tensor: Any, base: Any) -> Any:
    """Repeat on ``base`` the views that made ``tensor``; None where that cannot be (2.11 to 2.15)."""
    return tensor._view_func(base)


def known_equal(first: Any, second: Any) -> bool:
    """Return whether two sizes are equal for all values of their symbols, without a guard (2.11 to 2.15)."""
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    return bool(symbol("torch.fx.experimental.symbolic_shapes", "statically_known_true")(first == second))


def fake_mode_of(values: Iterable[Any]) -> Any:
    """Return ``fake_mode`` (2.11 to 2.15) of the first fake tensor of ``values``, or None."""
    return next((value.fake_mode for value in values if is_fake_tensor(value)), None)


def as_fake(value: Any, fake_mode: Any) -> Any:
    """Convert a real tensor to a fake one: ``FakeTensorMode.from_tensor`` (2.11 to 2.15)."""
    return value if is_fake_tensor(value) else fake_mode.from_tensor(value, static_shapes=True)


def unbacked_bindings(fake_mode: Any, value: Any) -> Any:
    """Return the data-dependent sizes in ``value``, in Inductor's format; None if there are none (2.11 to 2.15)."""
    compute = symbol("torch.fx.experimental.symbolic_shapes", "compute_unbacked_bindings")
    return compute(fake_mode.shape_env, value) if fake_mode.shape_env is not None else None


@contextlib.contextmanager
def fake_execution(fake_mode: Any) -> Iterator[None]:
    """Run ops on fake values, with symbolic sizes, as AOTAutograd does while it traces (2.11 to 2.15)."""
    import torch

    with fake_mode, python_dispatcher(), torch.no_grad(), without_autocast():
        yield


def fake_result(call: Callable[[], Any], fake_mode: Any) -> tuple[bool, Any]:
    """Return whether the result of ``call`` is known from fake values, and that; keeps no guards (2.11 to 2.15)."""
    fakes, sizes = "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes"
    depends_on_data = (
        symbol(fakes, "DataDependentOutputException"),
        symbol(fakes, "DynamicOutputShapeException"),
        symbol(fakes, "UnsupportedFakeTensorException"),
        symbol(sizes, "GuardOnDataDependentSymNode"),
    )
    environment = fake_mode.shape_env
    with fake_execution(fake_mode), contextlib.nullcontext() if environment is None else environment.suppress_guards():
        try:
            return True, call()
        except depends_on_data:
            return False, None


def fakes_checked() -> AbstractContextManager[Any]:
    """Make every operator that runs raise if its fake kernel returns other sizes or strides.

    ``torch._subclasses.fake_utils.CrossRefFakeMode`` (2.11 to 2.15). It raises ``AssertionError``, and for strides
    ``MetadataMismatchError``, a ``RuntimeError``; both name the operator.
    """

    class Checking(symbol("torch._subclasses.fake_utils", "CrossRefFakeMode")):  # type: ignore[misc]  # torch's class
        """Lets Dynamo trace eager loops and conditions, whose frames it skips under other modes."""

        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if is_higher_order_op(func):
                return func(*args, **(kwargs or {}))
            made = super().__torch_dispatch__(func, types, with_memory(func, args), kwargs)
            _check_fake_of_index(func, args, made)
            return made

    return Checking(check_aliasing=False, only_check_ops_with_meta=False)


def _check_fake_of_index(func: Any, args: Sequence[Any], made: Any) -> None:
    """Raise if the fake ``index`` by integers has other strides: PyTorch checks no operator whose masks count."""
    import torch

    if func is not torch.ops.aten.index.Tensor or any(
        index is not None and index.dtype == torch.bool for index in args[1]
    ):
        return
    with new_fake_mode() as mode:
        fake = func(as_fake(args[0], mode), [None if index is None else as_fake(index, mode) for index in args[1]])
    strides = zip(made.shape, fake.stride(), made.stride(), strict=True)
    if any(size > 1 and said != found for size, said, found in strides):
        raise _mismatch_error()(f"found in {func} strides {fake.stride()}, not {made.stride()}")


def is_fake_disagreement(error: BaseException | None) -> bool:
    """Return whether :func:`fakes_checked` raised ``error``."""
    return isinstance(error, _mismatch_error())


def size_expression(value: Any) -> Any:
    """Return sympy's expression of a ``SymInt``: ``SymInt.node.expr`` (torch 2.11 to 2.15)."""
    return value.node.expr


def known_of_sizes(values: Iterable[Any]) -> tuple[list[Any], list[tuple[Any, Any, Any]]]:
    """Return what is known of symbolic sizes: the guards so far, and the ranges of their symbols (2.11 to 2.15)."""
    sizes = [value for value in values if isinstance(value, _symbolic_numbers()[0])]
    environments = {id(size.node.shape_env): size.node.shape_env for size in sizes}
    guards, ranges = [], []
    for environment in environments.values():
        guards += [guard.expr for guard in environment.guards]
        ranges += [(s, range.lower, range.upper) for s, range in environment.var_to_range.items()]
    return guards, ranges
