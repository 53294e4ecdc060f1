"""Global state of PyTorch's compilers: configuration modules, resets, in-memory caches."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from pytest_regional._errors import RegionalError
from pytest_regional._torch import private_module, symbol

CONFIG_MODULES = ("torch._inductor.config", "torch._dynamo.config", "torch._functorch.config")

#: Configuration modules that not every process imports.
MORE_CONFIG_MODULES = (
    "torch._export.config",
    "torch.compiler.config",
    "torch.distributed.config",
    "torch.fx.experimental._config",
    "torch.utils.serialization.config",
)


#: What the names of modules with generated code begin with, which Inductor loads anew at will (2.13, 2.14).
GENERATED_MODULES = "torch._inductor.runtime.compile_tasks."


def config_module(name: str) -> Any:
    """Return one of :data:`CONFIG_MODULES`; each is a ``torch.utils._config_module.ConfigModule`` (2.11 to 2.15)."""
    import importlib

    return importlib.import_module(name)


def config_values(name: str) -> dict[str, Any]:
    """Return a snapshot of every setting of configuration module ``name``, containers copied."""
    values: dict[str, Any] = config_module(name).get_config_copy()
    return values


def config_state(name: str) -> dict[str, Any]:
    """Return what is set in configuration module ``name``, containers copied; empty where nobody has imported it.

    As :func:`config_values`, at a tenth of its time: a setting that nobody has set is not there. The entry's
    ``user_override`` is a ``ContextVar`` in 2.13 and 2.14, the value itself before.
    """
    module = sys.modules.get(name)
    if module is None:
        return {}
    unset = symbol("torch.utils._config_module", "_UNSET_SENTINEL")
    values = {}
    for key, entry in module._config.items():
        override = entry.user_override
        value = override.get() if isinstance(override, ContextVar) else override
        if value is not unset and entry.alias is None:
            values[key] = copy.deepcopy(value) if isinstance(value, (list, set, dict)) else value
    return values


def config_default(name: str, key: str) -> Any:
    """Return what a setting is where nobody has set it."""
    entry = sys.modules[name]._config[key]
    unset = symbol("torch.utils._config_module", "_UNSET_SENTINEL")
    return copy.deepcopy(entry.default if entry.env_value_default is unset else entry.env_value_default)


def set_config(name: str, key: str, value: Any) -> None:
    """Write one setting back; used by isolation to restore what a test left changed."""
    module = config_module(name)
    if key not in module._config:
        raise KeyError(f"{name}.{key}")
    setattr(module, key, value)


@contextlib.contextmanager
def patched_config(name: str, values: Mapping[str, Any]) -> Iterator[None]:
    """Hold ``values`` in configuration module ``name`` while the context lasts.

    Raises:
        KeyError: a name that is no setting of that module.
    """
    module = config_module(name)
    for key in values:
        if key not in module._config:
            raise KeyError(key)
    with module.patch(dict(values)):
        yield


def inductor_config_names() -> frozenset[str]:
    """Return the names of Inductor's settings, dotted where nested (``triton.cudagraphs``)."""
    return frozenset(config_module("torch._inductor.config")._config)


def inductor_config_is_switch(name: str) -> bool:
    """Return whether Inductor's setting ``name`` is declared as ``bool`` and nothing else (2.11 to 2.15)."""
    return config_module("torch._inductor.config")._config[name].value_type is bool


class LocaleEncodingError(RegionalError, ImportError):
    """PyTorch does not work with the locale of this process."""


@functools.cache
def import_compilers() -> None:
    """Import Dynamo, AOTAutograd and Inductor without their warnings about torch's own code.

    Under ``-W error`` these would fail the test that is the first to compile (``torch.jit.script_method``, 2.13 and
    2.15).

    Raises:
        LocaleEncodingError: Python takes ASCII for the encoding of text files, with which PyTorch cannot read its own
            (``torch._inductor.utils.load_template``, 2.13).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            private_module("torch._inductor.compile_fx")
        except UnicodeDecodeError as error:
            raise LocaleEncodingError(
                f"PyTorch's Inductor cannot be imported: it reads its own files, which are UTF-8, as "
                f"{error.encoding}, this locale's encoding. Set PYTHONUTF8=1, or a UTF-8 locale (LC_ALL=C.UTF-8)"
            ) from error


def reset_dynamo() -> None:
    """Forget everything Dynamo compiled (``torch._dynamo.reset``: 0.4 ms, 2.11 to 2.15)."""
    symbol("torch._dynamo", "reset")()


def compiler_stance() -> Any:
    """Return what ``torch.compiler.set_stance`` set (``torch._dynamo.eval_frame``, 2.11 to 2.15)."""
    return symbol("torch._dynamo.eval_frame", "_stance")


def set_compiler_stance(stance: Any) -> None:
    """Put back a stance that :func:`compiler_stance` returned."""
    symbol("torch._dynamo.eval_frame", "_set_stance")(stance)


def clear_inductor_caches() -> None:
    """Forget loaded code and every in-memory cache that Inductor registers for a fresh cache (2.11 to 2.15)."""
    symbol("torch._inductor.utils", "clear_caches")()


def clear_compile_counters() -> None:
    """Clear ``torch._dynamo.utils.counters`` and Inductor's metrics, which other tests' helpers read (2.11 to 2.15)."""
    symbol("torch._dynamo.utils", "counters").clear()
    symbol("torch._inductor.metrics", "reset")()


def tracing_is_active() -> bool:
    """Say whether a Dynamo or AOTAutograd compile is in progress on this thread."""
    return symbol("torch._guards", "TracingContext").try_get() is not None


def mark_unbacked(tensor: Any, dimension: int) -> None:
    """``torch._dynamo.decorators.mark_unbacked``: compile for any size of ``dimension`` (2.11 to 2.15)."""
    symbol("torch._dynamo.decorators", "mark_unbacked")(tensor, dimension)
