"""Compiled functions that outlive their process: Dynamo's part of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytest_regional._torch import symbol
from pytest_regional._torch.region_compile import new_fake_mode, tracing


def aot_compile(
    fn: Callable[..., Any], inputs: Sequence[Any], backend: Callable[..., Any], dynamic: bool | None
) -> Any:
    """Compile ``fn`` for ``inputs`` as one graph, without running it, to a callable with Dynamo's guards.

    ``torch.compile(...).aot_compile``, which ``torch._dynamo.config.enable_aot_compile`` switches on (2.11 to 2.15).
    The result is a ``torch._dynamo.aot_compile.AOTCompiledFunction``.
    """
    import torch

    def serializable(gm: Any, example_inputs: Any) -> Any:
        # 2.11 takes nothing else from a backend that is not Inductor.
        wrapper = symbol("torch._dynamo.aot_compile_types", "BundledAOTAutogradSerializableCallable")
        return wrapper(backend(gm, example_inputs))

    with symbol("torch._dynamo.config", "patch")(enable_aot_compile=True):
        compiled = torch.compile(fn, backend=serializable, fullgraph=True, dynamic=dynamic)
        return compiled.aot_compile((tuple(inputs), {}))


def dump_function(compiled: Any) -> bytes:
    """``AOTCompiledFunction.serialize``, which returns bytes, or (2.13, 2.15) an object that holds them."""
    result = type(compiled).serialize(compiled)
    return bytes(getattr(result, "serialized_data", result))


def load_function(data: bytes) -> Any:
    """``AOTCompiledFunction.deserialize`` (2.11 to 2.15).

    Up to 2.13 some stored guards (of a ``torch.cond``) are only read where a trace is going on.
    """
    with tracing(new_fake_mode()):
        return symbol("torch._dynamo.aot_compile", "AOTCompiledFunction").deserialize(data)


def guard_failure(compiled: Any, arguments: Sequence[Any]) -> str:
    """Return why the guards of a compiled function do not hold for ``arguments``; empty where they do.

    ``AOTCompiledFunction.guard_check``; ``check_verbose`` of its guard manager says which guard failed, in
    ``verbose_code_parts`` (2.11 to 2.15).
    """
    if compiled.guard_check(*arguments):
        return ""
    info = compiled._artifacts.guard_manager.check_verbose(compiled.prepare_f_locals(*arguments))
    return "; ".join(str(part).strip() for part in info.verbose_code_parts) or "a guard does not hold"


def call_unguarded(compiled: Any, arguments: Sequence[Any]) -> Any:
    """Call a compiled function whose guards hold (``AOTCompiledFunction.fn``, 2.11 to 2.15)."""
    return compiled.fn(*arguments)


@contextlib.contextmanager
def training_artifacts() -> Iterator[None]:
    """Let ``standalone_compile`` make artifacts that train, with autograd functions of the user's in them.

    ``force_non_lazy_backward_lowering`` has the backward compiled before anything is saved; without it 2.11 fails to
    save before a backward ran. ``autograd_cache_allow_custom_autograd_functions`` lets ``autograd_function_apply`` in,
    which PyTorch refuses to cache by default: such a function may close over Python state. Dynamo lifts that into
    inputs of the graph, so within one of its graphs there is none (``torch._functorch.config``, 2.11 to 2.15).
    """
    with symbol("torch._functorch.config", "patch")(
        force_non_lazy_backward_lowering=True, autograd_cache_allow_custom_autograd_functions=True
    ):
        yield
