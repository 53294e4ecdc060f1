"""What the state machine of caches compiles, and the settings of the process that it compiles under."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pytest_regional.fuzz.arguments import TensorInput
from pytest_regional.fuzz.cache_model import ASKS_FOR_SIZE, Key
from pytest_regional.fuzz.program import Program, Region, Scope, Step


def program_of(key: Key) -> Program:
    """Return the program that ``key`` names."""
    configs = () if key.fusion is None else (("max_fusion_size", key.fusion),)
    scope = () if key.region is None else (Region(key.region, configs),)
    steps = PROGRAMS[key.program](scope)
    argument = TensorInput((key.size, 4), requires_grad=key.training)
    return Program((argument,), steps, steps[-1].results, training=key.training, dynamic=key.dynamic)


def _plain(scope: Scope) -> tuple[Step, ...]:
    return Step("mul", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,), scope)


def _shorter_region(scope: Scope) -> tuple[Step, ...]:
    return Step("mul", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,))


def _constants(scope: Scope) -> tuple[Step, ...]:
    """Return steps with a constant tensor and a number that is none of float16's, both outside of the region."""
    return (
        Step("mul", (0, 0), (), (1,), scope),
        Step("literal", (0,), (), (2,)),
        Step("add", (1, 2), (), (3,)),
        Step("add_number", (3,), (("value", 0.3),), (4,)),
    )


def _product(scope: Scope) -> tuple[Step, ...]:
    """Return steps that autocast changes."""
    return Step("mm_transposed", (0, 0), (), (1,), scope), Step("sin", (1,), (), (2,), scope)


def _cut_off(scope: Scope) -> tuple[Step, ...]:
    """Return steps that are others for more than five rows, and a region that is told their number."""
    return (
        Step("mul", (0, 0), (), (1,), scope),
        Step("head", (1,), (), (2,)),
        Step("flatten", (2,), (), (3,), scope),
        Step("sin", (3,), (), (4,), scope),
    )


#: What is compiled, by name; the simplest first.
PROGRAMS: Mapping[str, Callable[[Scope], tuple[Step, ...]]] = MappingProxyType(
    {
        "plain": _plain,
        "shorter region": _shorter_region,
        "constants": _constants,
        "product": _product,
        ASKS_FOR_SIZE: _cut_off,
    }
)


# Settings of the process


def _autocast() -> contextlib.AbstractContextManager[Any]:
    import torch

    switched: contextlib.AbstractContextManager[Any] = torch.autocast("cpu", torch.bfloat16)
    return switched


@contextlib.contextmanager
def _one_thread_more() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    import torch

    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _medium_precision() -> Iterator[None]:
    """Have products of float32 rounded; PyTorch's own setter would leave the precision of each backend behind."""
    import torch

    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = torch.get_float32_matmul_precision()
    each = [backend.fp32_precision for backend in backends]
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for backend, value in zip(backends, each, strict=True):
            backend.fp32_precision = value


#: What else decides over code, by name: it holds while something compiles and runs.
STATES: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = MappingProxyType(
    {
        "": contextlib.nullcontext,
        "autocast": _autocast,
        "one thread more": _one_thread_more,
        "deterministic": _deterministic,
        "medium precision": _medium_precision,
    }
)

__all__ = ["PROGRAMS", "STATES", "program_of"]
