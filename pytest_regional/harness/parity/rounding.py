"""Run a program with every result off by a rounding, which shows how much its results owe to rounding alone.

Stochastic arithmetic (D. S. Parker, *Monte Carlo Arithmetic*, 1997): each result of an operator is moved by at most one
unit in its last place, at random; where several such runs disagree, the difference is noise. Sums of terms that cancel
then differ by what the terms' magnitudes leave, whether or not eager's own errors happened to cancel too.

Inputs and parameters are never moved: eager and the compiled program get the same bits, so that a difference that only
another input explains is a fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from pytest_regional._torch import fx_graphs
from pytest_regional._torch.operators import is_op_overload, schema_of, written_arguments
from pytest_regional._torch.tracing import dispatch_mode, is_zero_tensor, with_memory
from pytest_regional.harness.parity.tolerance import ulp

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


def _is_rounded(value: Any) -> bool:
    """Say whether ``value`` is a tensor of numbers that are rounded, with memory of its own."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.numel():
        return False
    # Zeros stay; and they have no memory, which operators inside a mode read all the same, and crash.
    return (value.is_floating_point() or value.is_complex()) and not is_zero_tensor(value)


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


__all__ = ["EXACT_OPS", "Rounded", "moved"]
