"""What the reference backend needs: ``standalone_compile``, AOTAutograd, tracing context, op properties."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pytest_regional._torch import private_module, symbol


def standalone_compile() -> Callable[..., Any]:
    """``torch._inductor.standalone_compile``, looked up now so that a test's patch is seen (2.11 to 2.15)."""
    function: Callable[..., Any] = symbol("torch._inductor", "standalone_compile")
    return function


def donation_arguments(compile_function: Callable[..., Any]) -> dict[str, bool]:
    """Return ``donate_graph_module=True`` where PyTorch's function takes it.

    2.11 has no such parameter; 2.13 and 2.15 have it. A patched function that takes ``**kwargs`` is judged by the
    original it stands in for.
    """
    original = symbol("torch._inductor.standalone_compile", "standalone_compile")
    parameters = [inspect.signature(function).parameters for function in (compile_function, original)]
    accepts_anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters[0].values())
    accepts = "donate_graph_module" in parameters[0] or accepts_anything
    return {"donate_graph_module": True} if accepts and "donate_graph_module" in parameters[1] else {}


def aot_compiled_artifact() -> type:
    """``torch._inductor.standalone_compile.AOTCompiledArtifact``: what ``aot=True`` returns (2.11 to 2.15)."""
    cls: type = symbol("torch._inductor.standalone_compile", "AOTCompiledArtifact")
    return cls


def is_serializable(artifact: Any) -> bool:
    """Return whether an ``AOTCompiledArtifact`` can be stored (2.11 to 2.15).

    AOTAutograd makes a cache entry of what it compiled only where its own lookup had a key. Without one the function
    ``serialize``, which ``AOTCompiledArtifact.serialize`` calls, is None.
    """
    return artifact.inner_fn.compiled_fn.serialize is not None


@contextlib.contextmanager
def refused_keys() -> Iterator[list[str]]:
    """Collect why AOTAutograd made no key for what is compiled inside: ``autograd_cache_key`` (2.11 to 2.15)."""
    module: Any = private_module("torch._functorch._aot_autograd.autograd_cache")
    original = module.autograd_cache_key
    reasons: list[str] = []

    def key(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            reasons.append(str(error))
            raise

    with compile_lock():
        module.autograd_cache_key = key
        try:
            yield reasons
        finally:
            module.autograd_cache_key = original


def note_refused_keys(artifact: Any, reasons: Sequence[str]) -> None:
    """Keep ``reasons`` on an artifact, for :func:`why_unserializable`."""
    artifact.regional_refusals = tuple(reasons)


def why_unserializable(artifact: Any) -> str:
    """Return why PyTorch made no key for what an artifact was compiled from; empty where that is not known."""
    return "; ".join(dict.fromkeys(getattr(artifact, "regional_refusals", ())))


def inductor_config() -> Any:
    """``torch._inductor.config``, the configuration module (2.11 to 2.15)."""
    return private_module("torch._inductor.config")


def functorch_config() -> Any:
    """``torch._functorch.config``, AOTAutograd's configuration module (2.11 to 2.15)."""
    return private_module("torch._functorch.config")


def inductor_config_names() -> list[str]:
    """Names of Inductor's settings, from ``config._config`` (2.11 to 2.15)."""
    return list(inductor_config()._config)


def inductor_config_type(name: str) -> Any:
    """Return the declared type of a setting, ``config.get_type`` (2.11 to 2.15)."""
    return inductor_config().get_type(name)


@contextlib.contextmanager
def region_compile_settings(configs: Mapping[str, Any], name: str) -> Iterator[None]:
    """Patch Inductor's and functorch's configuration around the compilation of one region.

    ``remat_using_tags_for_fwd_loss_bwd_graph`` is absent in 2.11, and so is
    ``torch.fx.traceback._set_regional_inductor_subgraph_name``, which names the region in structured logs; the outer
    graph was partitioned already, so rematerialisation must not run once more.
    """
    functorch = functorch_config()
    with contextlib.ExitStack() as stack:
        stack.enter_context(inductor_config().patch(dict(configs)))
        if hasattr(functorch, "remat_using_tags_for_fwd_loss_bwd_graph"):
            stack.enter_context(functorch.patch(remat_using_tags_for_fwd_loss_bwd_graph=False))
        stack.enter_context(_named_in_logs(name))
        yield


def _named_in_logs(name: str) -> AbstractContextManager[Any]:
    import torch.fx.traceback

    setter = getattr(torch.fx.traceback, "_set_regional_inductor_subgraph_name", None)
    return contextlib.nullcontext() if setter is None else setter(name)


def compile_lock() -> AbstractContextManager[Any]:
    """``torch._dynamo.convert_frame.compile_lock``, reentrant, under which forwards are compiled (2.11 to 2.15).

    A backward compiles when it first runs, outside of Dynamo: without the lock its tracing and that of a forward in
    another thread undo each other's patches of global state (``torch.fx._symbolic_trace.CURRENT_PATCHER``).
    """
    lock: AbstractContextManager[Any] = symbol("torch._dynamo.convert_frame", "compile_lock")
    return lock


def current_fake_mode() -> Any:
    """Fake mode of the ambient ``torch._guards.TracingContext``, or None without one (2.11 to 2.15)."""
    context = symbol("torch._guards", "TracingContext").try_get()
    return None if context is None else context.fake_mode


def detect_fake_mode(values: Any) -> Any:
    """``torch._guards.detect_fake_mode``: the fake mode that ``values`` belong to, or None (2.11 to 2.15)."""
    return symbol("torch._guards", "detect_fake_mode")(values)


def new_fake_mode() -> Any:
    """Return a fresh ``FakeTensorMode`` with a ``ShapeEnv`` (2.11 to 2.15)."""
    shape_env = symbol("torch.fx.experimental.symbolic_shapes", "ShapeEnv")()
    return symbol("torch._subclasses", "FakeTensorMode")(shape_env=shape_env, allow_non_fake_inputs=True)


def without_dispatch_modes() -> AbstractContextManager[Any]:
    """``torch.utils._python_dispatch._disable_current_modes()`` (2.11 to 2.15)."""
    manager: AbstractContextManager[Any] = symbol("torch.utils._python_dispatch", "_disable_current_modes")()
    return manager


def tracing(fake_mode: Any) -> AbstractContextManager[Any]:
    """Enter ``torch._guards.tracing`` with a new context for ``fake_mode`` (2.11 to 2.15)."""
    context = symbol("torch._guards", "TracingContext")(fake_mode)
    manager: AbstractContextManager[Any] = symbol("torch._guards", "tracing")(context)
    return manager


def propagate_fake_values(gm: Any, fake_inputs: Sequence[Any], fake_mode: Any) -> None:
    """Give every node ``meta["val"]``, through ``FakeTensorProp`` (2.11 to 2.15)."""
    interpreter = symbol("torch.fx.passes.fake_tensor_prop", "FakeTensorProp")(gm, mode=fake_mode)
    interpreter.propagate_dont_convert_inputs(*fake_inputs)


def use_boxed_codegen(gm: Any) -> None:
    """Make ``gm`` take one list of inputs and empty it, through ``torch.fx.graph._BoxedCodeGen`` (2.11 to 2.15)."""
    gm.graph.set_codegen(symbol("torch.fx.graph", "_BoxedCodeGen")())
    gm.recompile()


def lazy_graph_module(attributes: Mapping[str, Any], graph: Any, class_name: str) -> Any:
    """Build a GraphModule whose Python code is made when first needed.

    ``torch.fx._lazy_graph_module._LazyGraphModule`` (2.11 to 2.15); most partitions are handed to Inductor and never
    called as Python, and ten thousand of them would otherwise cost ten seconds.
    """
    return symbol("torch.fx._lazy_graph_module", "_LazyGraphModule")(dict(attributes), graph, class_name)


def replace_graph(gm: Any, graph: Any) -> None:
    """Give ``gm`` another graph, and leave its Python code for a later ``recompile()`` (``_graph``, 2.11 to 2.15).

    The public setter writes the code at once, which costs as much as all else where the graph is changed again.
    """
    gm._graph = graph
    graph.owning_module = gm


def compile_state() -> dict[str, Any]:
    """Return every setting that a compile may depend on, by name.

    All of ``torch._inductor.config`` and ``torch._functorch.config``, and what Dynamo guards of the global state
    (grad mode, autocast, default dtype, threads, determinism, precision: ``GlobalStateGuard``, 2.11 to 2.15).
    """
    guard = symbol("torch._C._dynamo.guards", "GlobalStateGuard")()
    functorch = functorch_config()
    return {
        "inductor": inductor_config().get_config_copy(),
        "functorch": functorch.get_config_copy(),
        "global": guard.__getstate__(),
    }


def at_dynamo_reset(action: Callable[[], None]) -> None:
    """Call ``action`` at the next ``torch._dynamo.reset()``.

    ``torch._dynamo.eval_frame.cached_backends`` (2.11 to 2.15) holds the backends seen since the last reset, by
    identity; those with a ``reset`` attribute are told of the next one, and then all are forgotten.
    """
    symbol("torch._dynamo.eval_frame", "cached_backends").setdefault(id(action), _ToldAtReset(action))


class _ToldAtReset:
    """Stands among Dynamo's backends."""

    def __init__(self, reset: Callable[[], None]) -> None:
        self.reset = reset


def force_autograd_cache() -> bool:
    """``torch._functorch.config.force_autograd_cache`` (2.11 to 2.15)."""
    return bool(functorch_config().force_autograd_cache)


def regional_output_code(gm: Any) -> Any:
    """Wrap ``gm`` into ``torch._inductor.output_code.RegionalOutputCode``, which caches can save (2.11 to 2.15)."""
    return symbol("torch._inductor.output_code", "RegionalOutputCode")(gm)


def restart_exceptions() -> tuple[type[Exception], ...]:
    """Return what Dynamo raises to trace a frame anew or not at all, which nobody may catch (2.11 to 2.15)."""
    return (symbol("torch._dynamo.exc", "RestartAnalysis"), symbol("torch._dynamo.exc", "SkipFrame"))


def count_fallback() -> None:
    """Count a region that runs eagerly, in ``torch._dynamo.utils.counters["regional"]["fallbacks"]`` (2.11 to 2.15)."""
    symbol("torch._dynamo.utils", "counters")["regional"]["fallbacks"] += 1


def aot_autograd(**options: Any) -> Callable[..., Any]:
    """``torch._dynamo.backends.common.aot_autograd`` (2.11 to 2.15)."""
    backend: Callable[..., Any] = symbol("torch._dynamo.backends.common", "aot_autograd")(**options)
    return backend


def python_dispatcher() -> AbstractContextManager[Any]:
    """``torch._dispatch.python.enable_python_dispatcher``: decompositions on symbolic sizes (2.11 to 2.15)."""
    context: AbstractContextManager[Any] = symbol("torch._dispatch.python", "enable_python_dispatcher")()
    return context


def partition_function(name: str) -> Callable[..., Any]:
    """Return AOTAutograd's ``default`` or ``min_cut`` partitioner (``functorch.compile``, 2.11 to 2.15)."""
    functions = {"default": "default_partition", "min_cut": "min_cut_rematerialization_partition"}
    function: Callable[..., Any] = symbol("functorch.compile", functions[name])
    return function


def without_cse() -> AbstractContextManager[Any]:
    """Switch ``torch._functorch.config.cse`` off, which the min-cut partitioner reads (2.11 to 2.15)."""
    manager: AbstractContextManager[Any] = functorch_config().patch(cse=False)
    return manager


@functools.cache
def _class(module: str, *names: str) -> tuple[type, ...]:
    """Look classes up once: they are asked for once a node."""
    return tuple(symbol(module, name) for name in names)


def is_graph_module(value: Any) -> bool:
    """Return whether ``value`` is a ``torch.fx.GraphModule``."""
    return isinstance(value, _class("torch.fx", "GraphModule"))


def is_op_overload(target: Any) -> bool:
    """Return whether ``target`` is a ``torch._ops.OpOverload`` (2.11 to 2.15)."""
    return isinstance(target, _class("torch._ops", "OpOverload"))


def is_higher_order_op(target: Any) -> bool:
    """Return whether ``target`` is a ``torch._ops.HigherOrderOperator`` (2.11 to 2.15)."""
    return isinstance(target, _class("torch._ops", "HigherOrderOperator"))


def is_symbolic(value: Any) -> bool:
    """Return whether ``value`` is a number of symbolic size (``torch.SymInt`` and its kin)."""
    return isinstance(value, _class("torch", "SymInt", "SymFloat", "SymBool"))


def is_integer(value: Any) -> bool:
    """Return whether ``value`` is an integer, plain or symbolic, and no truth value."""
    return type(value) in (int, *_class("torch", "SymInt"))


def free_symbols(value: Any) -> set[Any]:
    """Return symbols in a number, or in sizes, strides and offset of a tensor (``free_symbols``, 2.11 to 2.15)."""
    found: set[Any] = symbol("torch.fx.experimental.symbolic_shapes", "free_symbols")(value)
    return found


def plain_symbol(value: Any) -> str | None:
    """Name of the symbol that a ``torch.SymInt`` is, or None where it is a number or a longer expression."""
    if not isinstance(value, symbol("torch", "SymInt")):
        return None
    expression = value.node.expr
    return str(expression) if expression.is_Symbol else None


def size_hint(value: Any) -> int:
    """Return a number, or the example value of a symbolic one (``SymNode.hint``; unbacked symbols count as 2)."""
    if not is_symbolic(value):
        return int(value)
    hint = value.node.hint if value.node.has_hint() else None
    return 2 if hint is None else int(hint)


def compiled_output_strides(compiled: Any, outputs: int) -> list[tuple[str, ...] | None]:
    """Strides that Inductor gave the ``outputs`` of a compiled region, as text; empty where that is not told.

    ``CompiledFxGraph.output_strides``, which AOTAutograd's wrappers pass on as an attribute (2.11, 2.13, 2.15). A graph
    that returns more, such as inputs it wrote to, has them in another order.
    """
    function = getattr(getattr(compiled, "inner_fn", None), "compiled_fn", None)
    strides = getattr(function, "output_strides", None) or []
    return list(strides) if len(strides) == outputs else []


def inductor_callable(compiled: Any) -> Callable[[list[Any]], Sequence[Any]] | None:
    """Return what Inductor generated for a region, which takes a list and empties it; None where that is not told.

    ``CompiledFxGraph.current_callable``, which AOTAutograd's wrappers pass on as an attribute (2.11, 2.13, 2.15).
    """
    return getattr(getattr(getattr(compiled, "inner_fn", None), "compiled_fn", None), "current_callable", None)


def autograd_profiler() -> Any:
    """``torch.autograd.profiler``, whose ``_is_profiler_enabled`` is read at every region call (2.11 to 2.15)."""
    return symbol("torch.autograd", "profiler")


def random_numbers_are_functional() -> bool:
    """``torch._functorch.config.functionalize_rng_ops``: seeds are then passed as arguments (2.11 to 2.15)."""
    return bool(functorch_config().functionalize_rng_ops)


def is_fake_tensor(value: Any) -> bool:
    """Return whether ``value`` is a ``FakeTensor`` and no subclass around one (2.11 to 2.15)."""
    return type(value) in _class("torch._subclasses", "FakeTensor")


def storage_key(value: Any) -> int | None:
    """Identity of the storage behind a (fake) tensor, or None where it has none (``untyped_storage()._cdata``)."""
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    try:
        return int(value.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse and other subclasses have no storage to speak of
        return None


def torch_region_count(gm: Any) -> int:
    """Count the partitions PyTorch's own regional_inductor makes of ``gm``, which it rewrites (2.13, 2.15).

    2.11 has the same function, but knows no region ids.
    """
    extracted = symbol("torch.fx.passes.regional_inductor", "_create_inductor_marked_regions")(gm)
    extracted.graph.lint()
    return sum(node.op == "call_module" for node in extracted.graph.nodes)


def portable_settings() -> dict[str, Any]:
    """Return the settings of Inductor and AOTAutograd that decide a result, as PyTorch's caches choose them.

    ``save_config_portable`` of both configuration modules leaves out paths, traces and numbers of workers (2.11 to
    2.15).
    """
    modules = {"inductor": inductor_config(), "functorch": functorch_config()}
    return {name: module.save_config_portable(ignore_private_configs=False) for name, module in modules.items()}
