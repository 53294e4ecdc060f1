"""PyTorch's state for the current thread: modes, levels, hooks, gradient settings.

Each reader returns something that compares equal while nothing is changed; each writer restores it. Checked with torch
2.13 and 2.14.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch.fx.traceback

from pytest_regional._torch import calling, fetching, symbol

#: The function that graphs call to switch gradients on or off.
gradient_mode_call = fetching("torch._C", "_set_grad_enabled")
#: Whether ``__torch_function__`` is enabled.
torch_function_state = calling("torch._C", "_get_torch_function_state")
set_torch_function_state = calling("torch._C", "_set_torch_function_state")
#: How many functorch transforms (``grad``, ``vmap``) are active, and what exits them until so many are.
functorch_depth = calling("torch._C._functorch", "get_dynamic_layer_stack_depth")
set_functorch_depth = calling("torch._C._functorch", "pop_dynamic_layer_stack_and_undo_to_depth")
#: The level of forward-mode differentiation; -1 outside.
forward_level = fetching("torch.autograd.forward_ad", "_current_level")
#: The message of the error for hooks on saved tensors, or ``None`` if they are allowed.
saved_tensor_hooks_refused = calling("torch._C._autograd", "_saved_tensors_hooks_get_disabled_error_message")
#: Dynamo's callback for new frames of this thread: ``None`` outside of compiled functions.
eval_frame_callback = calling("torch._C._dynamo.eval_frame", "get_eval_frame_callback")
set_eval_frame_callback = calling("torch._C._dynamo.eval_frame", "set_eval_frame")
#: Whether PyTorch's profiler is running.
profiler_runs = calling("torch._C._autograd", "_profiler_enabled")


def profiler_watch() -> Callable[[], bool]:
    """Return a function that says whether the profiler runs, cheap enough for every call of a region (2.11 to 2.15)."""
    profiler = symbol("torch.autograd", "profiler")
    return lambda: bool(profiler._is_profiler_enabled)


def autocast_calls() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the functions that graphs call to enter and leave an autocast.

    ``torch.amp.autocast_mode._enter_autocast`` takes device, dtype, whether it is on, and whether casts are cached;
    ``_exit_autocast`` takes what it returned (2.11 to 2.15).
    """
    module = "torch.amp.autocast_mode"
    return symbol(module, "_enter_autocast"), symbol(module, "_exit_autocast")


#: C++ guards entered to undo what a test left; leaving them would bring it back.
_HELD: list[Any] = []


def dispatch_modes() -> tuple[Any, ...]:
    """Return the active dispatch modes, outermost first, including PyTorch's own (fake, proxy, functional)."""
    return tuple(symbol("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack")())


def set_dispatch_modes(wanted: tuple[Any, ...]) -> None:
    """Exit modes until the remaining ones are a prefix of ``wanted``, then enter the rest of it."""
    pop = symbol("torch.utils._python_dispatch", "_pop_mode")
    _set_modes(
        dispatch_modes, lambda mode: pop(getattr(mode, "_dispatch_key", getattr(mode, "_mode_key", None))), wanted
    )


def function_modes() -> tuple[Any, ...]:
    """Return the active function modes, outermost first, except for that of ``torch.set_default_device``."""
    default = symbol("torch", "_GLOBAL_DEVICE_CONTEXT")
    device = getattr(default, "device_context", None)
    return tuple(mode for mode in symbol("torch.overrides", "_get_current_function_mode_stack")() if mode is not device)


def set_function_modes(wanted: tuple[Any, ...]) -> None:
    """As :func:`set_dispatch_modes`."""
    pop = symbol("torch.overrides", "_pop_mode")
    _set_modes(function_modes, lambda mode: pop(), wanted)


def _set_modes(read: Any, pop: Any, wanted: tuple[Any, ...]) -> None:
    kept = 0
    for now, before in zip(read(), wanted, strict=False):
        if now is not before:
            break
        kept += 1
    for mode in reversed(read()[kept:]):
        depth = len(read())
        with contextlib.suppress(Exception):  # it is the test's code; whatever it raises, the mode is exited
            mode.__exit__(None, None, None)
        if len(read()) == depth:
            pop(mode)
    for mode in wanted[kept:]:
        mode.__enter__()


def set_inference_mode(wanted: bool) -> None:
    """Enter and keep a guard that sets this thread's inference mode to ``wanted``.

    A guard that a test left restores the earlier state when its last reference is destroyed.
    """
    _hold(symbol("torch._C", "_InferenceMode")(wanted))


def dispatch_keys() -> tuple[int, int]:
    """Return this thread's included and excluded dispatch keys, as numbers."""
    include = symbol("torch._C", "_dispatch_tls_local_include_set")()
    exclude = symbol("torch._C", "_dispatch_tls_local_exclude_set")()
    return include.raw_repr(), exclude.raw_repr()


def set_dispatch_keys(wanted: tuple[int, int]) -> None:
    """Enter and keep a guard that sets the thread's dispatch keys to ``wanted``."""
    make = symbol("torch._C", "DispatchKeySet").from_raw_repr
    _hold(symbol("torch._C", "_ForceDispatchKeyGuard")(*map(make, wanted)))


def _hold(guard: Any) -> None:
    guard.__enter__()
    _HELD.append(guard)


def set_forward_level(level: int) -> None:
    """Exit levels of forward-mode differentiation until ``level`` is the innermost."""
    leave = symbol("torch.autograd.forward_ad", "exit_dual_level")
    while forward_level() > level:
        leave()


def saved_tensor_hooks() -> Any:
    """Return the innermost default hooks on saved tensors, a pair of functions, or ``None``."""
    return symbol("torch._C._autograd", "_top_saved_tensors_default_hooks")(True)


def set_saved_tensor_hooks(wanted: Any) -> None:
    """Exit default hooks on saved tensors until ``wanted`` are the innermost."""
    pop = symbol("torch._C._autograd", "_pop_saved_tensors_default_hooks")
    while (now := saved_tensor_hooks()) is not None and not same_hooks(now, wanted):
        pop()
    if now is None and wanted is not None:
        symbol("torch._C._autograd", "_push_saved_tensors_default_hooks")(*wanted)


def same_hooks(one: Any, other: Any) -> bool:
    """Say whether two pairs of hooks have the same functions."""
    if one is None or other is None:
        return one is other
    return all(a is b for a, b in zip(one, other, strict=True))


def refuse_saved_tensor_hooks(message: str | None) -> None:
    """Restore the result of :func:`saved_tensor_hooks_refused`."""
    if message is None:
        symbol("torch._C._autograd", "_saved_tensors_hooks_enable")()
    else:
        symbol("torch._C._autograd", "_saved_tensors_hooks_disable")(message)


def gradient_flags() -> tuple[bool, bool, bool]:
    """Return whether autograd uses threads, forward gradients flow, and views are replayed."""
    return (
        symbol("torch._C", "_is_multithreading_enabled")(),
        symbol("torch._C", "_is_fwd_grad_enabled")(),
        symbol("torch._C", "_is_view_replay_enabled")(),
    )


def set_gradient_flags(flags: tuple[bool, bool, bool]) -> None:
    """Restore the result of :func:`gradient_flags`."""
    for name, flag in zip(("multithreading", "fwd_grad", "view_replay"), flags, strict=True):
        symbol("torch._C", f"_set_{name}_enabled")(flag)


def stop_profiler() -> None:
    """Stop PyTorch's profiler; its data is lost."""
    symbol("torch._C._autograd", "_disable_profiler")()
    symbol("torch.autograd.profiler", "_run_on_profiler_stop")()


def graph_metadata() -> dict[str, Any]:
    """Return the metadata for new nodes, as set by ``torch.fx.traceback.annotate``: empty outside."""
    metadata: dict[str, Any] = symbol("torch.fx.traceback", "current_meta")
    return {key: dict(value) if isinstance(value, dict) else value for key, value in metadata.items()}


def set_graph_metadata(metadata: dict[str, Any]) -> None:
    """Restore the result of :func:`graph_metadata`."""
    torch.fx.traceback.current_meta = metadata
