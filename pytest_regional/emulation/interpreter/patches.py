"""What of Triton is replaced while a kernel runs: a table, and everything as it was afterwards."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import triton.language as tl

from pytest_regional._torch.patching import Patch, applied
from pytest_regional._torch.triton import (
    builtin_owners,
    builtins_of,
    cuda_library,
    inductor_helpers,
    is_builtin,
    jit_function_class,
    library_stub,
    loop_condition_class,
    require_attribute,
    unwrapping,
)
from pytest_regional.emulation.device import EmulationError, UnsupportedByEmulationError
from pytest_regional.emulation.interpreter import functions
from pytest_regional.emulation.interpreter.builder import semantic
from pytest_regional.emulation.interpreter.functions import (
    call_device_function,
    device_range,
    is_jitted,
    limits_of,
    method_of,
)
from pytest_regional.emulation.interpreter.values import block_type_init, quick_unwrapping, tensor_init

_LOCK = threading.RLock()


def _bound(builtin: Any) -> Callable[..., Any]:
    """Return a builtin of Triton's language that has its semantic: the one in force when it is called."""

    @functools.wraps(builtin)
    def call(*arguments: Any, **named: Any) -> Any:
        named["_semantic"] = semantic()
        return builtin(*arguments, **named)

    return call


def _truth(value: Any) -> bool:
    """Return a tensor's truth; Triton's own code takes that of a block for the question whether there is one."""
    data = value.handle.data
    return bool(data.item()) if data.size == 1 else True


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _static_assert(condition: Any, message: Any = "") -> None:
    if not condition:
        raise EmulationError(f"tl.static_assert failed: {message}")


def _same(value: Any, *_: Any, **__: Any) -> Any:
    """Return what is only a promise to the compiler about it."""
    return value


def _to_ir(dtype: Any, builder: Any) -> Any:
    """Return a type as the interpreter's operations take it."""
    return dtype


def _static_range(*bounds: Any, step: Any = None, **_: Any) -> range:
    return range(*limits_of(bounds, step))


def _language_patches() -> Iterator[Patch]:
    for owner in builtin_owners():
        for name, member in builtins_of(owner):
            yield Patch(owner, name, _bound(member))
    for module in (tl, tl.core):
        yield Patch(module, "range", device_range)
        yield Patch(module, "static_range", _static_range)
        yield Patch(module, "static_assert", _static_assert)
        yield Patch(module, "static_print", _nothing)
        yield Patch(module, "reduce", functions.reduce)
        yield Patch(module, "associative_scan", functions.scan)
        for promise in ("multiple_of", "max_contiguous", "max_constancy"):
            yield Patch(module, promise, _same)


def _class_patches() -> Iterator[Patch]:
    tensor = tl.core.tensor
    yield Patch(tensor, "__init__", tensor_init)
    yield Patch(tl.block_type, "__init__", block_type_init)
    owner, name, unwrap = unwrapping()
    yield Patch(owner, name, quick_unwrapping(unwrap))
    yield Patch(tensor, "__index__", lambda self: int(self.handle.data.item()), added=True)
    yield Patch(tensor, "__int__", lambda self: int(self.handle.data.item()), added=True)
    yield Patch(tensor, "__bool__", _truth, added=True)
    yield Patch(tensor, "__repr__", lambda self: f"{self.type}: {self.handle.data}")
    yield Patch(tensor, "T", property(lambda self: tl.trans(self)))
    for name, member in vars(tensor).items():
        if is_jitted(member):
            yield Patch(tensor, name, method_of(member))
    yield Patch(tl.core.dtype, "to_ir", _to_ir)
    yield Patch(loop_condition_class(), "__bool__", lambda self: bool(self.condition), added=True)
    yield Patch(jit_function_class(), "__call__", call_device_function)


def _refused(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise UnsupportedByEmulationError(f"libdevice.{name}, which CUDA's library does not have")

    return call


def _library_patches() -> Iterator[Patch]:
    stub, library = library_stub(), cuda_library()
    for name, member in list(vars(library).items()):
        if is_builtin(member):
            yield Patch(library, name, _bound(member))
    for name, member in list(vars(stub).items()):
        if callable(member) and not name.startswith("_"):
            real = getattr(library, name, None)
            yield Patch(stub, name, _refused(name) if real is None else _bound(real))


def _if_mask(mask: Any, value: Any, **_: Any) -> Any:
    """Replace Inductor's ``if_mask``: the value, or None where there is no mask."""
    return None if mask is None else value


def _next_power_of_2(number: Any, **_: Any) -> int:
    """Replace Inductor's ``constexpr_next_power_of_2``."""
    value = int(number.value if isinstance(number, tl.constexpr) else number)
    return 1 << (value - 1).bit_length()


def _helper_patches() -> Iterator[Patch]:
    helpers = inductor_helpers()
    if helpers is not None:
        yield Patch(helpers, "if_mask", _if_mask)
        yield Patch(helpers, "constexpr_next_power_of_2", _next_power_of_2)


@functools.cache
def _triton_patches() -> tuple[Patch, ...]:
    return _checked((*_language_patches(), *_class_patches(), *_library_patches()))


@functools.cache
def _inductor_patches() -> tuple[Patch, ...]:
    return _checked(tuple(_helper_patches()))


def _checked(table: tuple[Patch, ...]) -> tuple[Patch, ...]:
    """Return ``table`` if everything in it is there to be replaced."""
    for patch in table:
        if not patch.added:
            require_attribute(patch.owner, patch.name)
    return table


def patch_table() -> tuple[Patch, ...]:
    """Return everything that is replaced, in order; it is made once, of an unpatched Triton."""
    return _triton_patches() + (_inductor_patches() if inductor_helpers() is not None else ())


@contextlib.contextmanager
def interpreting() -> Iterator[None]:
    """Have Triton's language compute instead of build, in this thread alone, until the block ends."""
    with _LOCK, applied(patch_table()), np.errstate(all="ignore"), torch.no_grad():
        yield
