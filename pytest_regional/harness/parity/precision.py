"""Run an eager program in another precision: in float64, in a coarser one, or with every result off by a rounding.

Each is a mode around the program and its backward.

* Float64 (:func:`float64_everywhere`) has to reach casts, too. ``x.float()`` inside an RMSNorm would narrow the values
  in the middle, the float64 run would carry the same rounding as the eager one, and the tolerance earned from their
  distance would be too tight. Autocast needs no care: it leaves float64 alone.
* A coarser :class:`Precision` is that of a backend that computes in one: :class:`RoundsOperands`.
* :class:`Rounded` is stochastic arithmetic (D. S. Parker, *Monte Carlo Arithmetic*, 1997): each result of an operator
  is moved by at most one unit in its last place, at random; where several such runs disagree, the difference is noise.
  Sums of terms that cancel then differ by what the terms' magnitudes leave, whether or not eager's own errors happened
  to cancel too. Inputs and parameters are never moved: eager and the compiled program get the same bits, so that a
  difference that only another input explains is a fault.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pytest_regional._torch import fx_graphs
from pytest_regional._torch.aot_autograd import backwards_inside
from pytest_regional._torch.operators import is_op_overload, schema_of, written_arguments
from pytest_regional._torch.tracing import dispatch_mode, is_zero_tensor, with_memory
from pytest_regional.harness.parity.state import LOW_PRECISION_TO_FP64

#: The dtype that a cast asks for by its name.
_NAMED = {
    torch.Tensor.float: torch.float32,
    torch.Tensor.half: torch.float16,
    torch.Tensor.bfloat16: torch.bfloat16,
    torch.Tensor.cfloat: torch.complex64,
    torch.Tensor.double: torch.float64,
    torch.Tensor.cdouble: torch.complex128,
}
#: The wide cast in place of a narrow one.
_CASTS = {
    cast: torch.Tensor.cdouble if dtype.is_complex else torch.Tensor.double
    for cast, dtype in _NAMED.items()
    if dtype in LOW_PRECISION_TO_FP64
}
_BACKWARDS = frozenset({torch.autograd.backward, torch.autograd.grad, torch.Tensor.backward})
#: What a wide tensor of unknown origin is taken to be in the program's own precision.
_USUAL = {torch.float64: torch.float32, torch.complex128: torch.complex64}


class _WideCasts(TorchFunctionMode):  # type: ignore[misc]
    """Replaces every low-precision dtype among a torch function's arguments by float64 or complex128.

    A cast that changes the dtype makes a copy, which may be written to. In float64 it changes nothing and would return
    its argument: so the dtype that each value has in the program's own precision is kept with it, and where that
    changes, the argument is copied. An input of float64 is taken for one of float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self._own = WeakTensorKeyDictionary()
        self._off = threading.local()

    @contextmanager
    def again(self) -> Iterator[None]:
        """Be active in a backward although the mode, which handles the call of it, is off meanwhile."""
        off, self._off.now = getattr(self._off, "now", False), False
        try:
            with self if off else nullcontext():
                yield
        finally:
            self._off.now = off

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_dynamo_compiling() or func not in _BACKWARDS:
            return self._handle(func, args, kwargs)
        self._off.now = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._off.now = False

    def _handle(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        named = kwargs or {}
        wide_args = [_wide(argument) for argument in args]
        result = _CASTS.get(func, func)(*wide_args, **{name: _wide(value) for name, value in named.items()})
        if torch.compiler.is_dynamo_compiling():
            # Eager loops and conditions are traced, this function with them, but no dictionary of tensors can be.
            # Their bodies write to nothing.
            return result
        given = [value for value in [*args, *named.values()] if isinstance(value, torch.Tensor)]
        own = self._asked(func, args, named)
        if own is None:
            own = functools.reduce(torch.promote_types, map(self._own_dtype, given)) if given else None
        elif result is args[0] and self._own_dtype(result) != own:
            result = result.clone()
        for value in result if isinstance(result, (tuple, list)) else (result,):
            # What is written in place keeps the dtype that it has.
            known = not isinstance(value, torch.Tensor) or any(value is one for one in given)
            if own is not None and not known and value.dtype in _USUAL:
                self._own[value] = own
        return result

    def _asked(self, func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> torch.dtype | None:
        """Return the dtype that a cast asks for; None for all that is no cast."""
        if func in _NAMED:
            return _NAMED[func]
        if func not in (torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as):
            return None
        for value in [*args[1:], *named.values()]:
            if isinstance(value, torch.dtype):
                return value
            if isinstance(value, torch.Tensor):
                return self._own_dtype(value)
        return None

    def _own_dtype(self, tensor: torch.Tensor) -> torch.dtype:
        own: torch.dtype = self._own.get(tensor) or _USUAL.get(tensor.dtype, tensor.dtype)
        return own


def _wide(argument: Any) -> Any:
    return LOW_PRECISION_TO_FP64.get(argument, argument) if isinstance(argument, torch.dtype) else argument


@contextmanager
def float64_everywhere() -> Iterator[None]:
    """Run the body with float64 as default dtype and with every cast to a lower precision going to float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        casts = _WideCasts()
        with casts, backwards_inside(casts.again):
            yield
    finally:
        torch.set_default_dtype(default)


@dataclass(frozen=True)
class Precision:
    """One precision."""

    name: str  # as of ``BackendSpec.precision``
    dtype: torch.dtype  # the dtype whose range it has, and for bfloat16, float16 and float32 its values
    eps: float  # the spacing of its numbers above 1
    usual: torch.dtype  # the dtype whose defaults of ``torch.testing.assert_close`` are those of this precision

    def is_coarser_than(self, dtype: torch.dtype) -> bool:
        """Say whether a tensor of floating or complex ``dtype`` holds more than this precision computes."""
        return is_float(dtype) and torch.finfo(dtype).eps < self.eps

    def round(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` with each number rounded to this precision, in the dtype that it had."""
        if tensor.is_complex():
            return torch.view_as_complex(self.round(torch.view_as_real(tensor.resolve_conj())))
        if self.name != "tf32":
            return tensor.to(self.dtype).to(tensor.dtype)
        bits = tensor.float().contiguous().view(torch.int32)
        # To nearest, ties to even, at the thirteenth of the 23 bits of a float32's fraction.
        rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
        return torch.where(tensor.isfinite(), rounded.view(torch.float32), tensor.float()).to(tensor.dtype)


PRECISIONS = {
    "bfloat16": Precision("bfloat16", torch.bfloat16, 2.0**-7, torch.bfloat16),
    "float16": Precision("float16", torch.float16, 2.0**-10, torch.float16),
    "tf32": Precision("tf32", torch.float32, 2.0**-10, torch.float16),
    "float32": Precision("float32", torch.float32, 2.0**-23, torch.float32),
}


def precision_of(spec: Any) -> Precision | None:
    """Return the precision that a backend's specification names for this machine, or None."""
    name = spec.computes_in()
    return None if name is None else PRECISIONS[name]


class RoundsOperands(dispatch_mode()):  # type: ignore[misc]
    """A mode in which eager code computes in ``precision``: what every operator reads, and writes to, is rounded.

    An operator of higher order is a single one.
    """

    # Without it flex_attention, in the middle of a trace of Dynamo's, ends in an error (2.13 and 2.15).
    supports_higher_order_operators = True

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self._precision = precision

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "is_view", False):
            return func(*with_memory(func, args), **named)
        leaves = fx_graphs.flatten(written_arguments(func, args, named))[0]
        written = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
        args, named = fx_graphs.map_leaves(lambda x: x if id(x) in written else self._rounded(x), (args, named))
        result = func(*with_memory(func, args), **named)
        for tensor in written.values():
            if self._precision.is_coarser_than(tensor.dtype):
                tensor.copy_(self._precision.round(tensor))
        return result

    def _rounded(self, leaf: Any) -> Any:
        plain = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
        if not plain or not self._precision.is_coarser_than(leaf.dtype):
            return leaf
        values, strides = self._precision.round(leaf), leaf.stride()
        if values.stride() == strides or 0 in strides:
            return values
        # Operators look at strides.
        return torch.empty_strided(leaf.shape, strides, dtype=values.dtype, device=values.device).copy_(values)


def ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the spacing of floating ``dtype`` at the magnitude of each float64 element of ``values``."""
    info = torch.finfo(dtype)
    magnitude = values.abs().clamp(min=info.tiny, max=info.max).nan_to_num(info.tiny)
    exponent = torch.frexp(magnitude).exponent - 1
    return torch.ldexp(torch.full_like(magnitude, info.eps), exponent)


#: What of a result no gradient flows through, and no rounding of an input shows in.
_RANDOM_OPS = frozenset(
    {
        *("bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_"),
        *("poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random_", "randperm"),
        "uniform_",
    }
)


def is_random_op(func: Any) -> bool:
    """Say whether ``func`` is an operator whose result is random and nothing else."""
    name = schema_of(func).name.removeprefix("aten::") if is_op_overload(func) else ""
    return name in _RANDOM_OPS and schema_of(func).is_mutable == name.endswith("_")


class OutsideCompilers(dispatch_mode()):  # type: ignore[misc]
    """A mode under which eager loops and conditions, which Dynamo traces, go on as without; what they draw is not seen.

    Without the two answers Dynamo would refuse the frames of the program for the rest of the process (2.11 to 2.15).
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return that a compile under the mode is to be done as without it."""
        return True


class RecordedRandomOps(OutsideCompilers):
    """Keeps what is drawn while it is active, in ``recorded``."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*with_memory(func, args), **(kwargs or {}))
        if is_random_op(func):
            self.recorded.append(made.detach().clone())
        return made


class ReplayedRandomOps(OutsideCompilers):
    """Gives ``recorded`` in place of what would be drawn, in float64 where it is of floating point.

    A result that does not fit is sampled again; ``left`` holds those that were not used.
    """

    def __init__(self, recorded: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.left = deque(recorded)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_random_op(func) or not self.left:
            return func(*with_memory(func, args), **(kwargs or {}))
        wide = self.left.popleft()
        if wide.is_floating_point():
            wide = wide.double()
        if not schema_of(func).is_mutable:
            return wide
        return args[0].copy_(wide) if args[0].shape == wide.shape else func(*with_memory(func, args), **(kwargs or {}))


#: Operators whose results are their arguments' values, chosen, copied or moved: nothing is rounded in them.
EXACT_OPS = frozenset(
    {
        *("_reshape_copy", "_to_copy", "_unsafe_index", "_unsafe_view", "alias_copy", "clone", "copy", "expand_copy"),
        *("lift_fresh_copy", "permute_copy", "slice_copy", "split_copy", "unbind_copy", "view_copy", "slice_backward"),
        *("cat", "stack", "flip", "roll", "repeat", "tril", "triu", "gather", "index", "index_put", "index_select"),
        *("embedding", "scatter", "select_scatter", "slice_scatter", "diagonal_scatter", "select_backward", "where"),
        *("masked_fill", "masked_scatter", "masked_select", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d"),
        *("abs", "neg", "sgn", "sign", "relu", "threshold_backward", "hardtanh", "clamp", "clamp_min", "clamp_max"),
        *("amax", "amin", "max", "min", "maximum", "minimum", "cummax", "cummin", "kthvalue", "median", "mode"),
        *("sort", "topk", "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "ceil"),
        *("floor", "round", "trunc", "nan_to_num", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_full", "new_ones", "new_zeros", "arange", "eye"),
        *("scalar_tensor", "im2col", "unfold_backward", "complex", "real", "imag", "resolve_conj", "pixel_shuffle"),
        *("fill", "zero", "index_fill", "index_copy"),
    }
)


#: Operators that sum terms. In any order, the sum is the exact one of terms that are each off by a rounding.
_SUMS = frozenset(
    {
        *("sum", "nansum", "mean", "var", "std", "var_mean", "std_mean", "cumsum", "prod", "cumprod", "trace"),
        *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linalg_vector_norm"),
        *("convolution", "convolution_backward", "index_add", "scatter_add", "embedding_dense_backward"),
        *("native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm"),
        *("native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"),
    }
)


class Rounded(OutsideCompilers):
    """A mode under which the result of every operator that rounds is moved by at most one unit in its last place.

    So is every term of a sum. An element that an operator writes in place is moved where the operator changed it.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if not _rounds(func):
            return func(*with_memory(func, args), **named)
        written = [leaf for leaf in fx_graphs.flatten(written_arguments(func, args, named))[0] if _is_rounded(leaf)]
        if _name(func) in _SUMS:
            own = {id(leaf) for leaf in written}
            args, named = fx_graphs.map_leaves(lambda x: x if id(x) in own else self._moved(x), (args, named))
        before = [tensor.clone() for tensor in written]
        made = func(*with_memory(func, args), **named)
        for tensor, old in zip(written, before, strict=True):
            tensor.copy_(torch.where(tensor == old, tensor, self._moved(tensor)))
        fresh = [returned.alias_info is None for returned in schema_of(func).returns]
        if len(fresh) != 1:
            return tuple(self._moved(x) if new else x for x, new in zip(made or (), fresh, strict=True)) or made
        return fx_graphs.map_leaves(self._moved, made) if fresh[0] else made

    def _moved(self, value: Any) -> Any:
        return moved(value, self._generator)


def _name(func: Any) -> str:
    return str(schema_of(func).name.removeprefix("aten::")).removesuffix("_")


def _rounds(func: Any) -> bool:
    if not is_op_overload(func) or is_random_op(func) or torch.Tag.inplace_view in func.tags:
        return False
    alias = [returned.alias_info for returned in schema_of(func).returns]
    gives_views = any(info is not None and not info.is_write for info in alias)
    return not gives_views and _name(func) not in EXACT_OPS


def is_float(dtype: torch.dtype) -> bool:
    """Say whether numbers of ``dtype`` are rounded."""
    return bool(dtype.is_floating_point or dtype.is_complex)


def _is_rounded(value: Any) -> bool:
    """Say whether ``value`` is a tensor of numbers that are rounded, with memory of its own."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.numel():
        return False
    # Zeros stay; and they have no memory, which operators inside a mode read all the same, and crash.
    return is_float(value.dtype) and not is_zero_tensor(value)


def moved(value: Any, generator: torch.Generator) -> Any:
    """Return ``value`` with each element moved at random by at most one unit in its last place; others as they are.

    Zeros, infinities and NaN stay, and nothing finite becomes infinite. The layout is kept.
    """
    if not _is_rounded(value):
        return value
    if value.is_complex():
        real = moved(torch.view_as_real(value.resolve_conj().contiguous()), generator)
        return torch.empty_like(value).copy_(torch.view_as_complex(real))
    # Half of the elements move: what is added, in float64, is less than half a unit for the others.
    shift = 2 * torch.rand(value.shape, generator=generator, dtype=torch.float64).to(value.device) - 1
    wide = value.detach().double()
    result = torch.empty_like(value).copy_(torch.where(wide == 0, 0.0, wide + shift * ulp(wide, value.dtype)))
    return torch.where(result.isfinite() == value.isfinite(), result, value)
