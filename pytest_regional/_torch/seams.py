"""Where the harness listens: the functions through which every compile in PyTorch passes, whatever the backend.

A seam is a private function that PyTorch looks up by name at each call, so that replacing the module attribute wraps
every caller. All of them exist with a compatible signature in torch 2.11, 2.13 and 2.15 (read there); the wrappers
pass arguments through untouched. Remove a seam when PyTorch grows a public hook for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_regional._torch import symbol

Advice = Callable[..., Any]
"""``advice(original, *args, **kwargs)``: called instead of the seam, decides when to call ``original``."""


@dataclass(frozen=True)
class Seam:
    """One replaceable private attribute: ``holder`` is a module, optionally followed by ``:Class``."""

    holder: str
    attribute: str
    static: bool = False


SEAMS: dict[str, Seam] = {
    # One Dynamo frame compilation; keyword compile_id says whether it is a recompile.
    "frame": Seam("torch._dynamo.convert_frame", "_compile"),
    # Returns the reasons why the guards of an earlier compilation failed.
    "recompile_reasons": Seam("torch._dynamo.convert_frame", "get_and_maybe_log_recompilation_reasons"),
    # Returns (exceeded, name of the limit): Dynamo gives the frame up to eager when exceeded.
    "recompile_limit": Seam("torch._dynamo.convert_frame", "exceeds_recompile_limit"),
    # Dynamo hands one graph to the user's backend.
    "backend_call": Seam("torch._dynamo.output_graph:OutputGraph", "call_user_compiler"),
    # torch.compile(..., backend="name") asks for the backend of that name.
    "backend_name": Seam("torch._dynamo.backends.registry", "lookup_backend"),
    # AOTAutograd has traced a graph and is about to call the backend's forward, backward and inference compilers.
    "aot_compile": Seam("torch._functorch.aot_autograd", "aot_stage2_compile"),
    # One AOTAutograd cache lookup, its key computation and one save.
    "aot_lookup": Seam("torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache", "try_load", static=True),
    "aot_key": Seam("torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key"),
    "aot_save": Seam("torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache", "save", static=True),
    # A subgraph is handed to Inductor on its own.
    "standalone_compile": Seam("torch._inductor.standalone_compile", "standalone_compile"),
    # One Inductor code generation (never called on a cache hit).
    "codegen": Seam("torch._inductor.compile_fx", "fx_codegen_and_compile"),
    # One FX graph cache lookup; a key that cannot be made is a bypass.
    "fx_key": Seam("torch._inductor.codecache:FxGraphCache", "prepare_key", static=True),
    "fx_lookup": Seam("torch._inductor.codecache:FxGraphCache", "load_with_key", static=True),
    # Generated code is about to be loaded from what a cache or an artifact kept of it, whichever it was.
    "code_loaded": Seam("torch._inductor.output_code:CompiledFxGraph", "after_deserialization"),
    # Inductor's pre-grad stage for one graph.
    "pre_grad": Seam("torch._inductor.compile_fx", "run_pre_grad_passes"),
}


def _holder(seam: Seam) -> Any:
    """Return the module or class that holds ``seam``; checked on 2.11, 2.13, 2.15."""
    import importlib
    import sys

    module, _, class_name = seam.holder.partition(":")
    # importlib's return value, not a walk over attributes: torch._inductor.standalone_compile names a function as well.
    importlib.import_module(module)
    return symbol(module, class_name) if class_name else sys.modules[module]


@contextlib.contextmanager
def listening(advices: Mapping[str, Advice]) -> Iterator[None]:
    """Wrap the named seams with ``advices`` while the context lasts.

    Raises:
        MissingTorchSymbolError: when a seam does not exist in the installed torch.
    """
    with wrapping(SEAMS, advices):
        yield


@contextlib.contextmanager
def wrapping(among: Mapping[str, Seam], advices: Mapping[str, Advice]) -> Iterator[None]:
    """Wrap the functions that ``among`` names with ``advices`` while the context lasts.

    Raises:
        MissingTorchSymbolError: when one of them does not exist in the installed torch.
    """
    with contextlib.ExitStack() as stack:
        for name, advice in advices.items():
            stack.enter_context(_wrapped(among[name], advice))
        yield


@contextlib.contextmanager
def _wrapped(seam: Seam, advice: Advice) -> Iterator[None]:
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


def _address(seam: Seam) -> tuple[str, str]:
    module, _, class_name = seam.holder.partition(":")
    return module, f"{class_name}.{seam.attribute}" if class_name else seam.attribute


def compiler_like(original: Any, compiler: Callable[..., Any]) -> Any:
    """Return ``compiler`` wearing the type that AOTAutograd looks for on ``original``.

    AOTAutograd caches only what comes from a ``SerializableAOTDispatchCompiler`` (2.11 to 2.15), so a wrapper must
    stay one.
    """
    serializable = symbol("torch._functorch.aot_autograd", "SerializableAOTDispatchCompiler")
    if isinstance(original, serializable):
        return serializable(original.output_code_ty, compiler)
    return compiler


def aot_counters() -> Mapping[str, int]:
    """Return Dynamo's live ``aot_autograd`` counters (2.11 to 2.15)."""
    counters: Mapping[str, int] = symbol("torch._dynamo.utils", "counters")["aot_autograd"]
    return counters


def cache_bypass_reasons() -> Mapping[str, int]:
    """Return why backends with a cache of their own could not use it, as they say in Dynamo's counters."""
    reasons: Mapping[str, int] = symbol("torch._dynamo.utils", "counters")["regional_cache_bypass"]
    return reasons


def graph_module_in(result: Any) -> Any:
    """Return what a compiler returned without the wrappers around it.

    ``torch._dynamo.disable`` puts a module into ``_orig_mod``, ``RegionalOutputCode`` into ``_graph_module`` (2.11 to
    2.15).
    """
    for attribute in ("_orig_mod", "_graph_module"):
        result = getattr(result, attribute, result)
    return result


def regional_fallbacks() -> int:
    """Return how many regions backends gave up to eager, as Dynamo's counter ``regional/fallbacks`` says.

    Backends of regional compilation tell it there; PyTorch's own never gives one up (2.11 to 2.15).
    """
    return int(symbol("torch._dynamo.utils", "counters")["regional"]["fallbacks"])


def pre_grad_custom_passes() -> tuple[Any, ...]:
    """Return the passes in ``torch._inductor.config.pre_grad_custom_pass`` as a tuple (one, a list, or none)."""
    passes = symbol("torch._inductor.config", "pre_grad_custom_pass")
    if passes is None:
        return ()
    return tuple(passes) if isinstance(passes, (list, tuple)) else (passes,)


def is_region_artifact(target: Any) -> bool:
    """Return whether ``target`` is a function around what ``standalone_compile`` returned.

    PyTorch's regional backend and ours put such functions into the graph, with the
    ``torch._inductor.standalone_compile.AOTCompiledArtifact`` as their ``__wrapped__`` (2.11 to 2.15).
    """
    artifact = symbol("torch._inductor.standalone_compile", "AOTCompiledArtifact")
    return isinstance(getattr(target, "__wrapped__", None), artifact)
