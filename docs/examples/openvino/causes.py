"""What OpenVINO's backend does otherwise than eager, one small program for each cause: torch and openvino, no tests.

``python causes.py`` prints a line for each. What is ``fixed`` is to go: from here, from ``known-failures.txt``, or
from what the specification disclaims.
"""

from __future__ import annotations

import importlib.metadata
import logging
import warnings
from collections.abc import Callable
from typing import Any

import openvino.torch  # noqa: F401 - makes the backend known
import torch
from openvino.frontend.pytorch.torchdynamo import execute
from torch._dynamo.utils import counters

HALVES = torch.linspace(-2, 2, 32).reshape(4, 8)
SQUARE = torch.eye(8) / 3


def compiled(program: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile it anew."""
    torch._dynamo.reset()
    return torch.compile(program, backend="openvino", fullgraph=True, **options)


def parts_compiled(program: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> int:
    """Return how many parts of the program OpenVINO compiles when it is called."""
    before = len(execute.compiled_cache)
    compiled(program, **options)(*inputs)
    return len(execute.compiled_cache) - before


def no_gradient() -> bool:
    """Return whether a result carries no gradient (backward)."""
    return not compiled(lambda x: x.sin().cos())(HALVES.clone().requires_grad_()).requires_grad


def buffers_filled_again() -> bool:
    """Return whether a second call writes to what the first one returned (results_kept)."""
    call = compiled(lambda x: x.sin().cos())
    first = call(HALVES)
    before = first.clone()
    call(HALVES + 1)
    return not torch.equal(first, before)


def write_is_lost() -> bool:
    """Return whether an input that is written to stays as it was (mutation)."""
    x = HALVES.clone()
    compiled(lambda x: x.add_(1).sin())(x)
    return torch.equal(x, HALVES)


def write_through_a_view_is_lost() -> bool:
    """Return whether a value written to through a view of it stays as it was computed: wrong values (mutation)."""

    def program(x: torch.Tensor) -> torch.Tensor:
        value = x + x
        value[..., 0].mul_(0)
        return value

    return not torch.equal(compiled(program)(HALVES), program(HALVES))


def view_is_a_copy() -> bool:
    """Return whether results that share memory in eager have memory of their own (aliasing)."""
    value, view = compiled(lambda x: (h := x.sin().cos(), h.t()))(HALVES)
    return value.data_ptr() != view.data_ptr()


def always_contiguous() -> bool:
    """Return whether a result is contiguous where that of eager is transposed, or in channels-last (channels_last)."""
    return compiled(lambda x: x.sin().cos())(HALVES.t()).stride() != HALVES.t().stride()


def numbers_of_its_own() -> bool:
    """Return whether torch.rand beside other operators draws other numbers than eager (rng)."""

    def drawn(call: Callable[..., Any]) -> torch.Tensor:
        torch.manual_seed(0)
        return call(HALVES)[0]

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(4), x.sin().cos()

    return not torch.equal(drawn(compiled(program)), drawn(program))


def bfloat16_becomes_float16() -> bool:
    """Return whether a cast to bfloat16, written out or of autocast, gives float16 and other values."""
    return compiled(lambda x: (x * 3).to(torch.bfloat16))(HALVES).dtype == torch.float16


def default_dtype_is_ignored() -> bool:
    """Return whether zeros without a dtype are float32 where the default dtype is float64."""
    torch.set_default_dtype(torch.float64)
    try:
        return compiled(lambda x: torch.zeros(8) + x)(torch.arange(8)).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def nan_is_a_number() -> bool:
    """Return whether a comparison with NaN is true."""
    nan = torch.full((4,), torch.nan)
    return bool(compiled(lambda x: (x > 0, x + 0))(nan)[0].any())


def sign_of_nan() -> bool:
    """Return whether the sign of NaN is NaN, in eager 0."""
    return bool(compiled(lambda x: x.sign() * 1)(torch.full((4,), torch.nan)).isnan().any())


def guard_without_source() -> bool:
    """Return whether split raises, as views and convolutions do: a guard on a size that Dynamo has no source for."""
    try:
        compiled(lambda x: x.split(2)[0])(HALVES)
    except (IndexError, AssertionError):
        return True
    return False


def check_of_a_number() -> bool:
    """Return whether a check of a size that the data decide raises, since it is given a tensor."""

    def program(x: torch.Tensor) -> torch.Tensor:
        count = (x > -1).sum().item()
        torch._check(count <= x.shape[0])
        return x.narrow(0, 0, count).sin()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        try:
            compiled(program, dynamic=True)(HALVES[3])
        except RuntimeError as error:
            return "_assert_scalar" in str(error)
    return False


def one_operator_alone() -> bool:
    """Return whether a part of one operator is run in PyTorch."""
    return parts_compiled(torch.tanh, HALVES) == 0


def failed_compile_in_silence() -> bool:
    """Return whether what OpenVINO's compiler refuses is run in PyTorch, and nothing said."""
    return parts_compiled(lambda x, w: (x @ w) * torch.arange(8, dtype=x.dtype), HALVES, SQUARE) == 0


def size_in_silence() -> bool:
    """Return whether arithmetic with a symbolic size is run in PyTorch, and nothing said."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        half = x.shape[0] // 2
        return (x[:half] @ w).reshape(half * 2, -1)

    return parts_compiled(program, HALVES, SQUARE, dynamic=True) == 0


def handed_to_inductor() -> bool:
    """Return whether what cannot be traced is handed to Inductor, and nothing said."""
    counters.clear()
    compiled(torch.randn_like)(HALVES.half())
    return bool(counters["inductor"])


CAUSES = (
    no_gradient,
    buffers_filled_again,
    write_is_lost,
    write_through_a_view_is_lost,
    view_is_a_copy,
    always_contiguous,
    numbers_of_its_own,
    bfloat16_becomes_float16,
    default_dtype_is_ignored,
    nan_is_a_number,
    sign_of_nan,
    guard_without_source,
    check_of_a_number,
    one_operator_alone,
    failed_compile_in_silence,
    size_in_silence,
    handed_to_inductor,
)

if __name__ == "__main__":
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "openvino"))
    print(versions)
    for cause in CAUSES:
        sentence = str(cause.__doc__).removeprefix("Return whether ")
        print(f"{'still fails' if cause() else 'fixed'}: {cause.__name__}: {sentence}")
