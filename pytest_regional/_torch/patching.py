"""Patch points: the private functions that are replaced for a while, and the one way to do it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_regional._torch import symbol

Wrapper = Callable[..., Any]
"""``advice(original, *args, **kwargs)``: called instead of the seam, decides when to call ``original``."""


@dataclass(frozen=True)
class PatchPoint:
    """One replaceable private attribute: ``holder`` is a module, optionally followed by ``:Class``."""

    holder: str
    attribute: str
    static: bool = False


COMPILE_STAGES: dict[str, PatchPoint] = {
    # One Dynamo frame compilation; keyword compile_id says whether it is a recompile.
    "frame": PatchPoint("torch._dynamo.convert_frame", "_compile"),
    # Returns the reasons why the guards of an earlier compilation failed.
    "recompile_reasons": PatchPoint("torch._dynamo.convert_frame", "get_and_maybe_log_recompilation_reasons"),
    # Returns (exceeded, name of the limit): Dynamo gives the frame up to eager when exceeded.
    "recompile_limit": PatchPoint("torch._dynamo.convert_frame", "exceeds_recompile_limit"),
    # Dynamo hands one graph to the user's backend.
    "backend_call": PatchPoint("torch._dynamo.output_graph:OutputGraph", "call_user_compiler"),
    # torch.compile(..., backend="name") asks for the backend of that name.
    "backend_name": PatchPoint("torch._dynamo.backends.registry", "lookup_backend"),
    # AOTAutograd has traced a graph and is about to call the backend's forward, backward and inference compilers.
    "aot_compile": PatchPoint("torch._functorch.aot_autograd", "aot_stage2_compile"),
    # One AOTAutograd cache lookup, its key computation and one save.
    "aot_lookup": PatchPoint("torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache", "try_load", static=True),
    "aot_key": PatchPoint("torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key"),
    "aot_save": PatchPoint("torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache", "save", static=True),
    # A subgraph is handed to Inductor on its own.
    "standalone_compile": PatchPoint("torch._inductor.standalone_compile", "standalone_compile"),
    # One Inductor code generation (never called on a cache hit).
    "codegen": PatchPoint("torch._inductor.compile_fx", "fx_codegen_and_compile"),
    # One FX graph cache lookup; a key that cannot be made is a bypass.
    "fx_key": PatchPoint("torch._inductor.codecache:FxGraphCache", "prepare_key", static=True),
    "fx_lookup": PatchPoint("torch._inductor.codecache:FxGraphCache", "load_with_key", static=True),
    # Generated code is about to be loaded from what a cache or an artifact kept of it, whichever it was.
    "code_loaded": PatchPoint("torch._inductor.output_code:CompiledFxGraph", "after_deserialization"),
    # Inductor's pre-grad stage for one graph.
    "pre_grad": PatchPoint("torch._inductor.compile_fx", "run_pre_grad_passes"),
}


def _holder(seam: PatchPoint) -> Any:
    """Return the module or class that holds ``seam``; checked on 2.11, 2.13, 2.15."""
    import importlib
    import sys

    module, _, class_name = seam.holder.partition(":")
    # importlib's return value, not a walk over attributes: torch._inductor.standalone_compile names a function as well.
    importlib.import_module(module)
    return symbol(module, class_name) if class_name else sys.modules[module]


@contextlib.contextmanager
def patched_stages(advices: Mapping[str, Wrapper]) -> Iterator[None]:
    """Wrap the named seams with ``advices`` while the context lasts.

    Raises:
        MissingTorchSymbolError: when a seam does not exist in the installed torch.
    """
    with wrapped(COMPILE_STAGES, advices):
        yield


@contextlib.contextmanager
def wrapped(among: Mapping[str, PatchPoint], advices: Mapping[str, Wrapper]) -> Iterator[None]:
    """Wrap the functions that ``among`` names with ``advices`` while the context lasts.

    Raises:
        MissingTorchSymbolError: when one of them does not exist in the installed torch.
    """
    with contextlib.ExitStack() as stack:
        for name, advice in advices.items():
            stack.enter_context(_wrapped(among[name], advice))
        yield


@contextlib.contextmanager
def _wrapped(seam: PatchPoint, advice: Wrapper) -> Iterator[None]:
    symbol(*_address(seam))
    holder = _holder(seam)
    raw = vars(holder)[seam.attribute]
    original = raw.__func__ if isinstance(raw, staticmethod) else raw

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return advice(original, *args, **kwargs)

    # A key computed by functools.wraps users or by a nested listener must still find the seam's own attributes.
    wrapper.__dict__.update(getattr(original, "__dict__", {}))
    wrapper.__name__ = seam.attribute
    setattr(holder, seam.attribute, staticmethod(wrapper) if seam.static else wrapper)
    try:
        yield
    finally:
        setattr(holder, seam.attribute, raw)


def _address(seam: PatchPoint) -> tuple[str, str]:
    module, _, class_name = seam.holder.partition(":")
    return module, f"{class_name}.{seam.attribute}" if class_name else seam.attribute
