"""PyTorch's ``control_deps`` operator, and Inductor's stages that see a region's graph."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_regional._torch import symbol, torch_version


@functools.cache
def control_deps() -> Any:
    """Return ``torch._inductor.fx_passes.control_dependencies.control_deps``, which can be run (2.11 to 2.15).

    2.11 registers neither an eager nor an autograd kernel for it; they are registered here, once, with the meaning
    that they have from 2.13 on. Remove that when torch 2.11 is no longer supported.
    """
    operator = symbol("torch._inductor.fx_passes.control_dependencies", "control_deps")
    if torch_version() < (2, 13):
        keys = symbol("torch._C", "DispatchKey")
        for key in (keys.CompositeExplicitAutograd, keys.Autograd):
            operator.py_impl(key)(_run_body)
    return operator


def _run_body(_: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
    return body(*args, **kwargs)


def preserve_node_ordering(graph: Any, dependencies: Mapping[Any, Any]) -> None:
    """Wrap nodes into ``control_deps`` (``torch._inductor.fx_passes.control_dependencies``, 2.11 to 2.15)."""
    symbol("torch._inductor.fx_passes.control_dependencies", "preserve_node_ordering")(graph, dependencies)


def custom_graph_pass() -> type:
    """``torch._inductor.custom_graph_pass.CustomGraphPass``, the base of passes with a uuid (2.11 to 2.15)."""
    cls: type = symbol("torch._inductor.custom_graph_pass", "CustomGraphPass")
    return cls


def takes_is_inference(custom: Any) -> bool:
    """Return whether a pass is a ``CustomInferenceAwareGraphPass`` (2.13, 2.15; 2.11 has no such passes)."""
    if torch_version() < (2, 13):
        return False
    return isinstance(custom, symbol("torch._inductor.custom_graph_pass", "CustomInferenceAwareGraphPass"))


@contextmanager
def appended_passes(**passes: Any) -> Iterator[None]:
    """Run a pass after those that are configured: ``joint_custom_pre_pass=...``, ``post_grad_custom_post_pass=...``.

    2.11 takes one pass or none; 2.13 and 2.15 take a list as well.
    """
    config = symbol("torch._inductor", "config")
    patches = {name: _appended(getattr(config, name), custom) for name, custom in passes.items()}
    with config.patch(patches):
        yield


def _appended(configured: Any, custom: Any) -> Any:
    if configured is None:
        return custom
    if torch_version() >= (2, 13):
        return [*(configured if isinstance(configured, (list, tuple)) else [configured]), custom]
    return _both(configured, custom)


def _both(first: Any, second: Any) -> Any:
    """Make one pass of two; without a uuid of the first it has none, which keeps results out of caches."""

    class Both(custom_graph_pass()):  # type: ignore[misc]
        def __call__(self, graph: Any) -> None:
            first(graph)
            second(graph)

        def uuid(self) -> Any:
            known = getattr(first, "uuid", lambda: None)()
            return None if known is None else (known, second.uuid())

    return Both()


@contextmanager
def kernels_not_built() -> Iterator[None]:
    """Generate code without running a C++ compiler on its kernels, for those who only read it.

    ``torch._inductor.async_compile.AsyncCompile.cpp_pybinding`` (2.11 to 2.15) builds each kernel when the wrapper is
    loaded. What is generated meanwhile must not be called, so caches are off too.
    """
    holder = symbol("torch._inductor.async_compile", "AsyncCompile")
    original = holder.cpp_pybinding
    holder.cpp_pybinding = lambda *_, **__: None
    try:
        with symbol("torch._inductor", "config").patch(force_disable_caches=True):
            yield
    finally:
        holder.cpp_pybinding = original


def post_grad_pass(custom: Any) -> Any:
    """Set ``torch._inductor.config.post_grad_custom_post_pass`` for a while (2.11 to 2.15)."""
    return symbol("torch._inductor", "config").patch(post_grad_custom_post_pass=custom)
