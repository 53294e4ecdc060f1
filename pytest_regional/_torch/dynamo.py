"""Dynamo: backends, compiled callables, compiles ahead of time, errors, counters, resets."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from pytest_regional._torch import calling, fetching, symbol
from pytest_regional._torch.aot_autograd import bundled_callable, partition_function, serializable_compiler_class
from pytest_regional._torch.config import dynamo_config
from pytest_regional._torch.fx_graphs import preserve_node_meta
from pytest_regional._torch.patching import COMPILE_STAGES, PatchPoint, patched, wrapped
from pytest_regional._torch.tracing import ambient_context, fake_mode_of, new_fake_mode, tracing

#: Dynamo's live counters, a dictionary of dictionaries (2.11 to 2.15).
counters = fetching("torch._dynamo.utils", "counters")
#: Clears everything that Dynamo compiled, in 0.4 ms (2.11 to 2.15).
reset_dynamo = calling("torch._dynamo", "reset")
#: Restores a stance from :func:`compiler_stance` (2.11 to 2.15).
set_compiler_stance = calling("torch._dynamo.eval_frame", "_set_stance")
#: The symbols of floats that the next trace makes constant (2.11 to 2.15).
_constant_floats = fetching("torch._dynamo.symbolic_convert", "TensorifyState")
#: Raised where AOTAutograd cannot compile with a float as an input (2.11 to 2.15).
float_restart = fetching("torch._dynamo.exc", "TensorifyScalarRestartAnalysis")
#: Makes a Dynamo backend from compilers and a partitioner (2.11 to 2.15).
aot_autograd = calling("torch._dynamo.backends.common", "aot_autograd")
#: What ``lookup_backend`` raises for an unknown name (2.11 to 2.15).
invalid_backend_error = fetching("torch._dynamo.exc", "InvalidBackend")
#: PyTorch's compiler of regions, ``regional_inductor(gm, *inputs)`` (2.11 to 2.15).
regional_inductor = fetching("torch.fx.passes.regional_inductor", "regional_inductor")


def aot_counters() -> Mapping[str, int]:
    """Return Dynamo's live ``aot_autograd`` counters (2.11 to 2.15)."""
    return counters()["aot_autograd"]


def cache_reasons(outcome: str) -> Mapping[str, int]:
    """Return why backends' own caches were bypassed (``bypass``), or missed (``miss``), from Dynamo's counters."""
    return counters()[f"regional_cache_{outcome}"]


def regional_fallbacks() -> int:
    """Return how many regions backends report as run eagerly; PyTorch's own never falls back (2.11 to 2.15)."""
    return int(counters()["regional"]["fallbacks"])


_STANCE = {
    "callback": COMPILE_STAGES["stance"],
    "stance": PatchPoint("torch._dynamo.eval_frame", "_stance"),
}


def compiler_stance() -> Any:
    """Return the stance set by ``torch.compiler.set_stance`` (``torch._dynamo.eval_frame``, 2.11 to 2.15)."""
    return _STANCE["stance"].current()


def clear_compile_counters() -> None:
    """Clear ``torch._dynamo.utils.counters`` and Inductor's metrics, which other tests' helpers read (2.11 to 2.15)."""
    counters().clear()
    symbol("torch._inductor.metrics", "reset")()


def at_dynamo_reset(action: Callable[[], None]) -> None:
    """Call ``action`` at the next ``torch._dynamo.reset()``.

    ``torch._dynamo.eval_frame.cached_backends`` (2.11 to 2.15) holds the backends seen since the last reset, by
    identity. A reset calls their ``reset`` attributes and then clears them all.
    """
    symbol("torch._dynamo.eval_frame", "cached_backends").setdefault(id(action), types.SimpleNamespace(reset=action))


def restart_exceptions() -> tuple[type[Exception], ...]:
    """Return Dynamo's exceptions that restart or skip a frame, which must not be caught (2.11 to 2.15)."""
    return (symbol("torch._dynamo.exc", "RestartAnalysis"), symbol("torch._dynamo.exc", "SkipFrame"))


def float_inputs(gm: Any) -> dict[int, str]:
    """Return, by position, the symbols of inputs of Dynamo's graph that stand for float arguments (2.11 to 2.15)."""
    found = {}
    for position, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        number = getattr(node.meta.get("example_value"), "item_memo", None)
        name = getattr(getattr(getattr(number, "node", None), "_expr", None), "name", None)
        if name is not None:
            found[position] = str(name)
    return found


def constant_floats(floats: Mapping[int, str]) -> tuple[int, ...]:
    """Return the positions in :func:`float_inputs` that Dynamo's next trace makes constant."""
    return tuple(position for position, name in floats.items() if _constant_floats().should_specialize(name))


def restart_with_constant(names: Iterable[str]) -> NoReturn:
    """Make Dynamo trace the frame again, with these symbols of :func:`float_inputs` as constants."""
    for name in names:
        _constant_floats().specialize(name)
    raise float_restart()


def count_fallback() -> None:
    """Count a region that runs eagerly, in ``torch._dynamo.utils.counters["regional"]["fallbacks"]`` (2.11 to 2.15)."""
    counters()["regional"]["fallbacks"] += 1


def guards_untimed() -> contextlib.AbstractContextManager[None]:
    """Disable Dynamo's timing of a new frame's guards; its metric ``guard_latency_us`` is 0 then.

    ``profile_guard_manager`` (2.11 to 2.15) is called once per compiled frame. It first empties the CPU's cache, which
    takes 30 ms and slows down other processes, too: a seventh of the conformance suites' time. Remove this when Dynamo
    has a setting for it.
    """
    point = PatchPoint("torch._dynamo.guards", "profile_guard_manager")
    return wrapped({"stopwatch": point}, {"stopwatch": lambda _original, *_args, **_kwargs: 0.0})


def regional_inductor_backend(partitioner: str = "default") -> Callable[..., Any]:
    """Return ``regional_inductor`` as forward, backward and inference compiler of ``aot_autograd`` (2.11 to 2.15).

    It preserves node metadata, which carries the annotations. ``partitioner`` is ``default`` or ``min_cut``,
    AOTAutograd's names.
    """
    compiler = regional_inductor()
    partition = partition_function(partitioner)
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)

    def torch_regional_inductor(gm: Any, example_inputs: Any) -> Any:
        with preserve_node_meta():
            return backend(gm, example_inputs)

    return torch_regional_inductor


def aot_eager_backend(partitioner: str) -> Callable[..., Any]:
    """Return AOTAutograd alone with its ``default`` or ``min_cut`` partitioner, as registered (2.11 to 2.15)."""
    return registered_backend({"default": "aot_eager_default_partitioner", "min_cut": "aot_eager"}[partitioner])


def aot_eager_within(
    partitioner: str, around: Callable[[], contextlib.AbstractContextManager[Any]]
) -> Callable[..., Any]:
    """Return AOTAutograd alone with a partitioner, each graph called in a context of ``around`` (2.11 to 2.15)."""

    def compiler(gm: Any, inputs: Any) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with around():
                return gm(*arguments)

        return symbol("functorch.compile", "make_boxed_func")(call)

    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition_function(partitioner))


def same_as_reference(expected: Any, found: Any, reference: Any) -> bool:
    """Return what PyTorch's own rule says of a compiled result, ``torch._dynamo.utils.same`` (2.11 to 2.15).

    Args:
        expected: eager's.
        found: the compiled program's.
        reference: eager's in float64.
    """
    rule = symbol("torch._dynamo.utils", "same")
    return bool(rule(expected, found, fp64_ref=reference, equal_nan=True, log_error=lambda *said: None))


def registered_backend(name: str) -> Callable[..., Any]:
    """Return the Dynamo backend registered as ``name`` (``torch._dynamo.backends.registry``, 2.11 to 2.15)."""
    return COMPILE_STAGES["backend_name"].current()(name)


def registered_names(wanted: str = "") -> tuple[str, ...]:
    """Return the names that ``torch.compile`` takes; of those for debugging only ``wanted`` (2.11 to 2.15)."""
    list_backends = symbol("torch._dynamo.backends.registry", "list_backends")
    every = list_backends(exclude_tags=())
    return (*list_backends(), *(name for name in every if name == wanted and name not in list_backends()))


def regional_inductor_pass() -> Callable[..., Any]:
    """Return PyTorch's ``regional_inductor`` as a pass of one graph and its inputs (2.11 to 2.15)."""
    compiler = regional_inductor()

    def torch_regional_inductor(gm: Any, example_inputs: Any) -> Any:
        # Where make_fx traced the graph, no context is left.
        own = None if ambient_context() else tracing(fake_mode_of(example_inputs) or new_fake_mode())
        with own or contextlib.nullcontext():
            return compiler(gm, *example_inputs)

    return torch_regional_inductor


def compilers_of(backend: Any) -> tuple[Any, ...]:
    """Return the compilers given to ``aot_autograd(...)``, or the one in AOTAutograd's wrapper (2.11 to 2.15)."""
    if isinstance(backend, symbol("torch._dynamo.backends.common", "AotAutograd")):
        names = ("fw_compiler", "bw_compiler", "inference_compiler")
        return tuple(backend.kwargs[name] for name in names if backend.kwargs.get(name) is not None)
    if isinstance(backend, serializable_compiler_class()):
        return (backend.compiler_fn,)
    return ()


def dynamo_backend_of(output_graph: Any) -> Any:
    """Return the backend, in Dynamo's wrappers, that Dynamo is about to call with a graph (2.11 to 2.15)."""
    return output_graph.compiler_fn


_thread = threading.local()
_lock = threading.Lock()
_entered = 0
_eager = contextlib.ExitStack()


def original_of(program: Any) -> Any:
    """Return the function or module that ``torch.compile`` wrapped; anything else unchanged (2.11 to 2.15).

    A module compiled in place (``module.compile()``) is itself; see :func:`to_compile`.
    """
    compiled_module = symbol("torch._dynamo.eval_frame", "OptimizedModule")
    while True:
        if isinstance(program, compiled_module):
            program = program._orig_mod
        elif not isinstance(program, type) and "_torchdynamo_orig_callable" in getattr(program, "__dict__", {}):
            program = program._torchdynamo_orig_callable
        else:
            return program


def to_compile(program: Any) -> Any:
    """Return what to pass to ``torch.compile`` to compile ``program`` itself, even if it is compiled already.

    A module compiled in place calls ``_compiled_call_impl`` before Dynamo sees its code (2.11 to 2.15). For such a
    module, return the method that was compiled.
    """
    program = original_of(program)
    return program if getattr(program, "_compiled_call_impl", None) is None else program._call_impl


@contextlib.contextmanager
def never_compiled(*, tracing: bool = True) -> Iterator[None]:
    """Run compiled programs on this thread as plain Python code while the context lasts.

    ``torch.compiler.set_stance("force_eager")`` does so for every thread, and also disables the ``eager`` backend for
    code that needs Dynamo to trace; so does this one without ``tracing``. Each call gets its backend from
    ``_callback_from_stance``, and from the stance whether ``fullgraph`` with nothing compiled is an error (2.13 and
    2.15).
    """
    global _entered
    with _lock:
        _entered += 1
        if _entered == 1:
            stance = compiler_stance()
            makers = {
                "callback": lambda original: functools.partial(_callback, original, stance),
                "stance": lambda _: symbol("torch._dynamo.eval_frame", "DynamoStance")("force_eager"),
            }
            _eager.enter_context(patched(_STANCE, makers))
    before = getattr(_thread, "traces", None)
    _thread.traces = tracing
    try:
        yield
    finally:
        _thread.traces = before
        with _lock:
            _entered -= 1
            if _entered == 0:
                _eager.close()


def _callback(original: Callable[[Any], Any], stance: Any, callback: Any) -> Any:
    traces: bool | None = getattr(_thread, "traces", None)
    if callback in (None, False):
        return callback
    if traces is None:
        # Another thread's: unchanged. Of the other stances, which tests do not use, it has none meanwhile.
        return callback if stance.stance == "default" else original(callback)
    # With the backend "eager" Dynamo traces and runs the graph unchanged; eager code uses it (flex_attention does).
    return callback if traces and getattr(backend_behind(callback), "compiler_name", None) == "eager" else None


def compile_disabled() -> bool:
    """Say whether ``torch._dynamo.config.disable`` (``TORCH_COMPILE_DISABLE=1``) makes everything run eagerly."""
    return bool(dynamo_config().disable)


def only_cached(callback: Any, note: Callable[[types.CodeType], None]) -> Any:
    """Return what converts frames as ``False`` does: runs what was compiled, and all else eagerly; that is noted.

    Like the callback of the stance ``fail_on_recompile`` (2.11 to 2.15). ``False`` itself reports nothing.
    """
    names = "ConvertFrameReturn", "FrameExecStrategy", "FrameAction"
    converted, strategy, action = (symbol("torch._dynamo.types", name) for name in names)
    skipped = symbol("torch._dynamo.trace_rules", "check")
    with_tensors = symbol("torch._dynamo.convert_frame", "has_tensor_in_frame")
    plainly = strategy(action.DEFAULT, action.DEFAULT)

    def run_eagerly(frame: Any, *args: Any, **kwargs: Any) -> Any:
        if not skipped(frame.f_code) and with_tensors(frame):
            note(frame.f_code)
        return converted(frame_exec_strategy=plainly, apply_to_code=False)

    # Dynamo looks up what was compiled by the backend behind the callback.
    run_eagerly._torchdynamo_orig_backend = callback  # type: ignore[attr-defined]
    return run_eagerly


def backend_behind(wrapped: Any) -> Any:
    """Return the backend given to ``torch.compile``, without Dynamo's own wrappers (2.11 to 2.15).

    For a string it is an object with the name as ``compiler_name``, and, except for ``inductor``, the function as
    ``compiler_fn``.
    """
    while hasattr(wrapped, "_torchdynamo_orig_backend"):
        wrapped = wrapped._torchdynamo_orig_backend
    return wrapped


def aot_compile(
    fn: Callable[..., Any], inputs: Sequence[Any], backend: Callable[..., Any], dynamic: bool | None
) -> Any:
    """Compile ``fn`` for ``inputs`` as one graph, without running it; the result has Dynamo's guards (2.11 to 2.15)."""

    def serializable(gm: Any, example_inputs: Any) -> Any:
        # 2.11 accepts nothing else from a backend that is not Inductor.
        return bundled_callable()(backend(gm, example_inputs))

    with dynamo_config().patch(enable_aot_compile=True):
        compiled = symbol("torch", "compile")(fn, backend=serializable, fullgraph=True, dynamic=dynamic)
        return compiled.aot_compile((tuple(inputs), {}))


def dump_function(compiled: Any) -> bytes:
    """``AOTCompiledFunction.serialize``, which returns bytes, or (2.13, 2.15) an object that holds them."""
    result = type(compiled).serialize(compiled)
    return bytes(getattr(result, "serialized_data", result))


def load_function(data: bytes) -> Any:
    """``AOTCompiledFunction.deserialize`` (2.11 to 2.15).

    Up to 2.13 some stored guards (of a ``torch.cond``) can only be read inside a trace.
    """
    with tracing(new_fake_mode()):
        return symbol("torch._dynamo.aot_compile", "AOTCompiledFunction").deserialize(data)


def guard_failure(compiled: Any, arguments: Sequence[Any]) -> str:
    """Return which guards of a compiled function do not hold for ``arguments``; empty where all do (2.11 to 2.15)."""
    if compiled.guard_check(*arguments):
        return ""
    info = compiled._artifacts.guard_manager.check_verbose(compiled.prepare_f_locals(*arguments))
    return "; ".join(str(part).strip() for part in info.verbose_code_parts) or "a guard does not hold"


def call_unguarded(compiled: Any, arguments: Sequence[Any]) -> Any:
    """Call a compiled function whose guards hold (``AOTCompiledFunction.fn``, 2.11 to 2.15)."""
    return compiled.fn(*arguments)


_USER_CODE = re.compile(r"from user code:\s+(.*?)(?:\n\n|\Z)", re.DOTALL)

# 2.11 shows the arguments as it represents them, later ones as Python does.
_REFUSED = re.compile(r"raised exception AnnotationError\((?:\(ConstantVariable\(str: )?(['\"])(.*)\1\)")

_SYMBOLIC = ("SymNodeVariable() is not a constant", "BUILD_STRING type error")
_MARKS = ("annotate(", "region(")


def annotation_mistake_in(error: BaseException) -> str | None:
    """Describe a mistake in an annotation that Dynamo failed on, with the user's line; None if there is none.

    An annotation holds a number that Dynamo made symbolic: an argument of the compiled function at its second value, a
    size, an item of a tensor (``InternalTorchDynamoError`` or ``Unsupported``). Or the traced code raised
    (``Unsupported`` around the exception). Only their text distinguishes them (2.11, 2.13, 2.15).
    """
    if not str(type(error).__module__).startswith("torch._dynamo"):
        return None
    text = str(error)
    user_code = _USER_CODE.search(text)
    where = user_code.group(1).rstrip() if user_code else ""
    refused = _REFUSED.search(text)
    if refused:
        return f"{refused.group(2)}; from {where}"
    if any(sign in text for sign in _SYMBOLIC) and any(mark in where for mark in _MARKS):
        return (
            "an annotation holds a number that Dynamo made symbolic, as it makes every integer argument at its second "
            "value, while regions and configs have to be known when the program compiles. Give the integer to "
            'pytest_regional.region(i), or fix it: operator.index(i), f"layer{operator.index(i)}". Numbers that only '
            f"data tell (tensor.item()) and floats cannot be fixed so: pass strings. From {where}"
        )
    return None
