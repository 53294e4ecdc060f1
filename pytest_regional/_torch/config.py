"""Configuration modules of PyTorch's compilers, and their settings."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal, get_args

from pytest_regional._torch import fetching, importing, private_module, symbol
from pytest_regional._torch.patching import PatchPoint, missing, wrapped

#: The marker of a setting that was not set (2.11 to 2.15).
_unset = fetching("torch.utils._config_module", "_UNSET_SENTINEL")


def pre_grad_custom_passes() -> tuple[Any, ...]:
    """Return the passes in ``torch._inductor.config.pre_grad_custom_pass`` as a tuple (one, a list, or none)."""
    passes = inductor_config().pre_grad_custom_pass
    if passes is None:
        return ()
    return tuple(passes) if isinstance(passes, (list, tuple)) else (passes,)


INDUCTOR = "torch._inductor.config"
DYNAMO = "torch._dynamo.config"
FUNCTORCH = "torch._functorch.config"
#: Each is a ``torch.utils._config_module.ConfigModule`` (2.11 to 2.15).
CONFIG_MODULES = (INDUCTOR, DYNAMO, FUNCTORCH)
inductor_config = importing(INDUCTOR)
dynamo_config = importing(DYNAMO)
functorch_config = importing(FUNCTORCH)

#: Configuration modules that may not be imported yet.
MORE_CONFIG_MODULES = (
    "torch._export.config",
    "torch.compiler.config",
    "torch.distributed.config",
    "torch.fx.experimental._config",
    "torch.utils.serialization.config",
)

#: Prefix of modules with generated code, which Inductor reloads at any time (2.13, 2.14).
GENERATED_MODULES = "torch._inductor.runtime.compile_tasks."


def config_values(name: str) -> dict[str, Any]:
    """Return a snapshot of every setting of configuration module ``name``, containers copied."""
    return private_module(name).get_config_copy()


def config_state(name: str) -> dict[str, Any]:
    """Return what is set in configuration module ``name``, containers copied; empty if not imported.

    Like :func:`config_values` without unset settings, in a tenth of the time. The entry's ``user_override`` is a
    ``ContextVar`` in 2.13 and 2.14, the value itself before.
    """
    module = sys.modules.get(name)
    if module is None:
        return {}
    unset = _unset()
    values = {}
    for key, entry in module._config.items():
        override = entry.user_override
        value = override.get() if isinstance(override, ContextVar) else override
        if value is not unset and entry.alias is None:
            values[key] = _with_containers_copied(value)
    return values


def _with_containers_copied(value: Any) -> Any:
    """Copy lists, sets and dictionaries; what they hold, such as passes, may equal nothing but itself."""
    if isinstance(value, dict):
        return {key: _with_containers_copied(one) for key, one in value.items()}
    return type(value)(map(_with_containers_copied, value)) if isinstance(value, list | set) else value


def config_default(name: str, key: str) -> Any:
    """Return the default of a setting."""
    entry = sys.modules[name]._config[key]
    unset = _unset()
    return copy.deepcopy(entry.default if entry.env_value_default is unset else entry.env_value_default)


def changed_values(name: str) -> dict[str, Any]:
    """Return the settings of configuration module ``name`` that are not at their default, containers copied.

    A setting that was read may be set to a copy of its default. ``1`` is not the default ``True``.
    """
    found = {}
    for key, value in config_state(name).items():
        default = config_default(name, key)
        if type(value) is not type(default) or value != default:
            found[key] = value
    return found


def set_config(name: str, key: str, value: Any) -> None:
    """Write one setting; isolation restores settings with it."""
    module = private_module(name)
    if key not in module._config:
        raise KeyError(f"{name}.{key}")
    setattr(module, key, value)


@contextlib.contextmanager
def patched_config(name: str, values: Mapping[str, Any]) -> Iterator[None]:
    """Hold ``values`` in configuration module ``name`` while the context lasts."""
    module = private_module(name)
    for key in values:
        if key not in module._config:
            raise KeyError(key)
    with module.patch(dict(values)):
        yield


def config_names(name: str) -> frozenset[str]:
    """Return the settings of configuration module ``name``, dotted where nested (``triton.cudagraphs``)."""
    return frozenset(private_module(name)._config)


def inductor_config_type(name: str) -> Any:
    """Return the declared type of a setting of Inductor, ``config.get_type`` (2.11 to 2.15)."""
    return inductor_config().get_type(name)


@contextlib.contextmanager
def region_compile_settings(configs: Mapping[str, Any], name: str) -> Iterator[None]:
    """Patch Inductor's and functorch's configuration around the compilation of one region.

    2.11 lacks ``remat_using_tags_for_fwd_loss_bwd_graph`` and
    ``torch.fx.traceback._set_regional_inductor_subgraph_name``, which names the region in structured logs. The outer
    graph is already partitioned, so rematerialisation must not run again. Nor may its pass on float arguments
    (``tensorify_python_scalars``): a float that the outer graph made a tensor is no symbol of the region's graph, and
    Dynamo would compile the program again for each value.
    """
    functorch = functorch_config()
    floats = {"floats": PatchPoint("torch._functorch._aot_autograd.graph_compile", "tensorify_python_scalars")}
    named_in_logs = getattr(private_module("torch.fx.traceback"), "_set_regional_inductor_subgraph_name", None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(inductor_config().patch(dict(configs)))
        if hasattr(functorch, "remat_using_tags_for_fwd_loss_bwd_graph"):
            stack.enter_context(functorch.patch(remat_using_tags_for_fwd_loss_bwd_graph=False))
        if named_in_logs is not None:
            stack.enter_context(named_in_logs(name))
        if not missing(floats):
            stack.enter_context(wrapped(floats, {"floats": lambda *_: None}))
        yield


def global_state() -> dict[str, Any]:
    """Return the global state that Dynamo guards, by name: grad mode, autocast, threads and more (2.11 to 2.15)."""
    return symbol("torch._C._dynamo.guards", "GlobalStateGuard")().__getstate__()


def compile_state() -> dict[str, Any]:
    """Return all that a compile in this process may depend on besides its graph.

    These are :func:`global_state` and the settings of ``torch._inductor.config`` and ``torch._functorch.config``. A
    default does not change while a process lives, so a setting is listed only where it differs from its default.
    """
    inductor_config()
    functorch_config()
    return {"inductor": changed_values(INDUCTOR), "functorch": changed_values(FUNCTORCH), "global": global_state()}


def force_autograd_cache() -> bool:
    """``torch._functorch.config.force_autograd_cache`` (2.11 to 2.15)."""
    return bool(functorch_config().force_autograd_cache)


def without_cse() -> AbstractContextManager[Any]:
    """Switch ``torch._functorch.config.cse`` off, which the min-cut partitioner reads (2.11 to 2.15)."""
    return functorch_config().patch(cse=False)


def without_states_of_checkpoints() -> AbstractContextManager[Any]:
    """Switch ``graphsafe_rng_functionalization`` of :func:`functorch_config` off, for the partitioners (2.11 to 2.15).

    With it, draws that a checkpoint repeats on a GPU get generators that are seeded once, from the generator of the
    CPU: with one seed, the next call draws other numbers. Without it, the forward hands over the state that it drew in.
    """
    return functorch_config().patch(graphsafe_rng_functionalization=False)


def random_numbers_are_functional() -> bool:
    """``torch._functorch.config.functionalize_rng_ops``: seeds are passed as arguments (2.11 to 2.15)."""
    return bool(functorch_config().functionalize_rng_ops)


def portable_settings() -> dict[str, Any]:
    """Return the settings of Inductor and AOTAutograd that affect results, as PyTorch chooses them (2.11 to 2.15)."""
    modules = {"inductor": inductor_config(), "functorch": functorch_config()}
    return {name: module.save_config_portable(ignore_private_configs=False) for name, module in modules.items()}


def configured_pre_grad_passes() -> Any:
    """Return Inductor's ``pre_grad_custom_pass``, or ``None`` where ``use_pre_grad_passes`` is off (2.11 to 2.15)."""
    config = inductor_config()
    return config.pre_grad_custom_pass if config.use_pre_grad_passes else None


Timing = Literal["early", "late", "default"]
"""When Inductor's pre-grad passes run: before its cache lookup, after it, or as PyTorch decides (from 2.12)."""

TIMINGS: tuple[str, ...] = get_args(Timing)


def configured_pre_grad_timing() -> object:
    """Return Inductor's ``pre_grad_pass_timing`` (2.12 and later), ``"default"`` if torch has none (2.11)."""
    return getattr(inductor_config(), "pre_grad_pass_timing", "default")


def training_artifacts() -> AbstractContextManager[Any]:
    """Let ``standalone_compile`` make artifacts that train and contain the user's autograd functions.

    ``force_non_lazy_backward_lowering`` compiles the backward before anything is saved; without it 2.11 fails to save
    before a backward ran. ``autograd_cache_allow_custom_autograd_functions`` allows ``autograd_function_apply``, which
    PyTorch refuses to cache by default because such a function may close over Python state. Dynamo lifts that state
    into inputs of the graph, so its graphs have none (``torch._functorch.config``, 2.11 to 2.15).
    """
    return functorch_config().patch(
        force_non_lazy_backward_lowering=True, autograd_cache_allow_custom_autograd_functions=True
    )


def remote_cache_settings() -> tuple[bool | None, bool | None]:
    """Return the settings of AOTAutograd's and Inductor's remote caches (2.11 to 2.15).

    Outside Meta, PyTorch treats ``None``, unset, as off, even if a Redis host is named.
    """
    return functorch_config().enable_remote_autograd_cache, inductor_config().fx_graph_remote_cache


def backward_lowered_at_once() -> AbstractContextManager[Any]:
    """Lower the backward with the forward, not at the first ``backward()`` (2.11 to 2.15)."""
    return functorch_config().patch(force_non_lazy_backward_lowering=True)


def inductor_settings_now(names: Sequence[str]) -> dict[str, Any]:
    """Return those of Inductor's settings ``names`` that exist, dotted where nested (2.11 to 2.15)."""
    config = inductor_config()
    return {name: getattr(config, name) for name in names if name in config._config}


def forced_autograd_cache() -> AbstractContextManager[Any]:
    """Let AOTAutograd's cache store whole results of any backend whose results can be stored (2.11 to 2.15)."""
    return functorch_config().patch(force_autograd_cache=True, bundled_autograd_cache=True)


def recompiles_allowed(number: int) -> AbstractContextManager[Any]:
    """Let Dynamo compile one function ``number`` times before it gives up (``recompile_limit``, 2.11 to 2.15)."""
    return dynamo_config().patch(recompile_limit=number)


def settings_for_emulation() -> AbstractContextManager[Any]:
    """Hold settings for an absent device: kernels are compiled in this process, none is timed (2.11 to 2.15)."""
    return inductor_config().patch({"compile_threads": 1, "triton.autotune_at_compile_time": False})


def cache_tagged(tag: str) -> AbstractContextManager[Any]:
    """Add ``tag`` to ``torch.compiler.config.cache_key_tag``, part of all of PyTorch's cache keys (2.11 to 2.15)."""
    config = private_module("torch.compiler.config")
    return config.patch(cache_key_tag=f"{config.cache_key_tag}{tag}")
