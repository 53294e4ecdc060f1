"""Inductor: imports, passes, regions and whole graphs compiled, output code, interpreted regions, recorded launches."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._torch import calling, fetching, private_module, symbol, torch_version
from pytest_regional._torch.config import inductor_config
from pytest_regional._torch.patching import COMPILE_STAGES, Maker, PatchPoint, patched, patched_stages, wrapped
from pytest_regional._torch.tracing import python_dispatcher, without_autocast

_COMPILE_FX = "torch._inductor.compile_fx"

#: Looked up at each call so that a test's patch is seen (2.11 to 2.15).
standalone_compile = fetching("torch._inductor", "standalone_compile")
#: What it returns with ``aot=True`` (2.11 to 2.15).
aot_compiled_artifact: Callable[[], type] = fetching("torch._inductor.standalone_compile", "AOTCompiledArtifact")
#: Wraps a graph module into something that caches can save (2.11 to 2.15).
regional_output_code = calling("torch._inductor.output_code", "RegionalOutputCode")
#: The base of passes that take a ``GraphModule`` (2.11 to 2.15).
graph_module_pass_base = fetching("torch._inductor.custom_graph_pass", "CustomGraphModulePass")
#: The base of passes that take a graph, whose ``uuid()`` is part of cache keys (2.11 to 2.15).
custom_graph_pass_base = fetching("torch._inductor.custom_graph_pass", "CustomGraphPass")
#: The class of passes that apply patterns to a graph (2.11 to 2.15).
pattern_matcher_pass = fetching("torch._inductor.pattern_matcher", "PatternMatcherPass")
#: Inductor's result for a whole graph (2.11 to 2.15).
compiled_fx_graph = fetching("torch._inductor.output_code", "CompiledFxGraph")
#: The class that AOTAutograd's cache entries hold (2.11 to 2.15).
output_code = fetching("torch._inductor.output_code", "OutputCode")
#: Returns Inductor's table, which depends on settings (2.11 to 2.15).
inductor_decompositions = calling("torch._inductor.decomposition", "select_decomp_table")
#: Looked up at each call so that a test's patch is seen (2.11 to 2.15).
_inner_compile = fetching(_COMPILE_FX, "compile_fx_inner")
#: Inductor's current state (2.11 to 2.15).
virtualized = fetching("torch._inductor.virtualized", "V")


def is_region_artifact(target: Any) -> bool:
    """Return whether ``target``, of a node, is a function around a result of ``standalone_compile`` (2.11 to 2.15)."""
    return isinstance(getattr(target, "__wrapped__", None), aot_compiled_artifact())


@functools.cache
def import_compilers() -> None:
    """Import Dynamo, AOTAutograd and Inductor without their warnings about torch's own code.

    With ``-W error`` they would fail the first test that compiles (``torch.jit.script_method``, 2.13 and 2.15).

    Raises:
        RegionalRuntimeError: Python's default encoding is ASCII, with which PyTorch cannot read its own files
            (``torch._inductor.utils.load_template``, 2.13).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            private_module("torch._inductor.compile_fx")
        except UnicodeDecodeError as error:
            raise RegionalRuntimeError(
                f"PyTorch's Inductor cannot be imported: it reads its own files, which are UTF-8, as "
                f"{error.encoding}, this locale's encoding. Set PYTHONUTF8=1, or a UTF-8 locale (LC_ALL=C.UTF-8)"
            ) from error


def donation_arguments(compile_function: Callable[..., Any]) -> dict[str, bool]:
    """Return ``donate_graph_module=True`` if PyTorch's function accepts it.

    2.11 has no such parameter; 2.13 and 2.15 have it. For a patched function that takes ``**kwargs``, its original is
    checked.
    """
    original = COMPILE_STAGES["standalone_compile"].current()
    parameters = [inspect.signature(function).parameters for function in (compile_function, original)]
    accepts_anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters[0].values())
    accepts = "donate_graph_module" in parameters[0] or accepts_anything
    return {"donate_graph_module": True} if accepts and "donate_graph_module" in parameters[1] else {}


def compiled_output_strides(compiled: Any, outputs: int) -> list[tuple[str, ...] | None]:
    """Strides of a compiled region's ``outputs``, as text, chosen by Inductor; empty if not reported.

    ``CompiledFxGraph.output_strides``, which AOTAutograd's wrappers pass on as an attribute (2.11, 2.13, 2.15). A graph
    that returns more, such as mutated inputs, has them in another order. A region that is interpreted has them itself.
    """
    inner = getattr(compiled, "inner_fn", None)
    function = getattr(inner, "compiled_fn", inner)
    strides = getattr(function, "output_strides", None) or []
    return list(strides) if len(strides) == outputs else []


def inductor_callable(compiled: Any) -> Callable[[list[Any]], Sequence[Any]] | None:
    """Return Inductor's code for a region, which takes a list and clears it; None if not reported (2.11 to 2.15)."""
    return getattr(getattr(getattr(compiled, "inner_fn", None), "compiled_fn", None), "current_callable", None)


def inference_aware_pass_base() -> Any:
    """Return ``CustomInferenceAwareGraphPass``, called with ``is_inference`` (2.12 to 2.15), ``None`` on 2.11."""
    return getattr(private_module("torch._inductor.custom_graph_pass"), "CustomInferenceAwareGraphPass", None)


def other_custom_pass_bases() -> tuple[type, ...]:
    """Return the bases of passes that take a module, or a second argument (2.11 to 2.15)."""
    return tuple(base for base in (graph_module_pass_base(), inference_aware_pass_base()) if base is not None)


@contextlib.contextmanager
def appended_passes(**passes: Any) -> Iterator[None]:
    """Run a pass after the configured ones: ``joint_custom_pre_pass=...``, ``post_grad_custom_post_pass=...``.

    2.11 takes one pass or none; 2.13 and 2.15 take a list as well.
    """
    config = inductor_config()
    patches: dict[str, Any] = {}
    for name, custom in passes.items():
        configured = getattr(config, name)
        if configured is None:
            patches[name] = custom
        elif torch_version() < (2, 13):
            patches[name] = _both(configured, custom)
        else:
            patches[name] = [*(configured if isinstance(configured, list | tuple) else [configured]), custom]
    with config.patch(patches):
        yield


def _both(first: Any, second: Any) -> Any:
    """Combine two passes; if the first has no uuid, the result has none, which keeps results out of caches."""

    class Both(custom_graph_pass_base()):  # type: ignore[misc]
        def __call__(self, graph: Any) -> None:
            first(graph)
            second(graph)

        def uuid(self) -> Any:
            known = getattr(first, "uuid", lambda: None)()
            return None if known is None else (known, second.uuid())

    return Both()


@contextlib.contextmanager
def kernels_not_built() -> Iterator[None]:
    """Generate code to read, without running a C++ compiler on its kernels.

    ``torch._inductor.async_compile.AsyncCompile.cpp_pybinding`` (2.11 to 2.15) builds each kernel when the wrapper is
    loaded. Code generated meanwhile must not be called, so caches are off too.
    """
    builds = {"cpp": PatchPoint("torch._inductor.async_compile:AsyncCompile", "cpp_pybinding")}
    not_built = wrapped(builds, {"cpp": lambda *_, **__: None})
    with not_built, inductor_config().patch(force_disable_caches=True):
        yield


def is_boxed(function: Any) -> bool:
    """Return whether a compiled function takes one list and clears it: ``_boxed_call`` (2.11 to 2.15)."""
    return bool(getattr(function, "_boxed_call", False))


def new_shared_state(gm: Any) -> Any:
    """``create_compiler_config_extra``: CUDA graphs' state, shared by forward and backward (2.11 to 2.15).

    2.11 takes the configuration; later versions take Dynamo's graph and read one annotation from it.
    """
    create = symbol(_COMPILE_FX, "create_compiler_config_extra")
    return create(inductor_config() if torch_version() < (2, 13) else gm)


def run_joint_graph_passes(gm: Any, example_inputs: Sequence[Any]) -> Any:
    """``_recursive_joint_graph_passes``: Inductor's patterns, constant folding and its random numbers (2.11 to 2.15).

    Output strides are recorded before (``_recursive_record_original_output_strides``): padding changes them.
    """
    devices = symbol("torch._dynamo.utils", "get_inputs_devices")(example_inputs, gm)
    symbol(_COMPILE_FX, "_recursive_record_original_output_strides")(gm)
    return symbol(_COMPILE_FX, "_recursive_joint_graph_passes")(gm, input_device=next(iter(devices), None))


def compile_forward(gm: Any, example_inputs: Sequence[Any], state: Any, *, outputs: int, is_inference: bool) -> Any:
    """``compile_fx_forward``: user-visible layouts, fixed inputs, CUDA graphs, then the compiler (2.11 to 2.15).

    For inference it runs the joint graph passes first.
    """
    return symbol(_COMPILE_FX, "compile_fx_forward")(
        gm,
        example_inputs,
        num_orig_model_outputs=outputs,
        num_example_inputs=len(example_inputs),
        compiler_config_extra=state,
        inner_compile=_inner_compile(),
        is_inference=is_inference,
    )


def compile_backward(gm: Any, example_inputs: Sequence[Any], state: Any) -> Any:
    """``compile_fx_backward``, the same for a backward graph (2.11 to 2.15)."""
    return symbol(_COMPILE_FX, "compile_fx_backward")(
        gm, example_inputs, compiler_config_extra=state, inner_compile=_inner_compile()
    )


@contextlib.contextmanager
def inductor_compile(fake_mode: Any) -> Iterator[None]:
    """Enter the contexts that ``compile_fx`` puts around its compilers (2.11 to 2.15)."""
    import torch

    lazily = symbol("torch.fx._lazy_graph_module", "_use_lazy_graph_module")(True)
    handlers = virtualized()
    with lazily, handlers.set_fake_mode(fake_mode), python_dispatcher(), torch.no_grad(), without_autocast():
        yield


@functools.cache
def nodes_are_lowered_by() -> str:
    """Name of the method of ``GraphLowering`` that lowers one node, its argument ``n`` (2.11 to 2.15)."""
    return str(symbol("torch._inductor.graph", "GraphLowering").run_node.__name__)


def artifact_behind(target: Any) -> Any:
    """Return the ``AOTCompiledArtifact`` that a node's ``target`` calls; None for others (2.11 to 2.15)."""
    artifact = aot_compiled_artifact()
    while target is not None and not isinstance(target, artifact):
        target = getattr(target, "__wrapped__", None)
    return target


# Regions that are interpreted
class InterpretedRegion:
    """Replaces the result of ``compile_fx`` for a region: runs its graph, and can be stored like the real one.

    ``AOTCompiledArtifact`` and its loader only use ``serialize`` and the class below (2.11 to 2.15).

    Attributes:
        output_strides: strides of its outputs as they were traced, as text: eager operators have them.
    """

    def __init__(self, gm: Any) -> None:
        self._gm = gm
        (returned,) = gm.graph.find_nodes(op="output")[0].args
        self.output_strides = [_strides_of(node) for node in returned] if isinstance(returned, tuple | list) else []

    def __call__(self, *inputs: Any) -> Any:
        """Return the region's outputs, as a tuple."""
        import torch

        with torch.no_grad():
            return self._gm(*inputs)

    def serialize(self) -> Any:
        """Return the entry for AOTAutograd's cache."""
        return StoredRegion(self._gm)


def _strides_of(node: Any) -> tuple[str, ...] | None:
    import torch

    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return tuple(map(str, value.stride()))


_stored: dict[int, Any] = {}
"""Graphs in caches, by number, while :func:`interpreting_regions` lasts."""


class StoredRegion:
    """The number of a graph of this process, with what the loader of bundled results reads (2.11 to 2.15).

    FX pickles a graph as Python code and retraces it, which would run ops without inputs such as RNG ops.
    """

    compiled_fw = compiled_bw = sanitized_aot_config = guards_expr = None

    def __init__(self, gm: Any) -> None:
        self._number = id(gm)
        _stored[self._number] = gm

    def wrap_post_compile(self, inputs: Any, aot_config: Any, settings: Any) -> Callable[[list[Any]], Any]:
        """Return the region as a function of one list."""
        region = InterpretedRegion(_stored[self._number])
        return lambda given: region(*given)


@contextlib.contextmanager
def interpreting_regions() -> Iterator[None]:
    """Make Inductor interpret graphs given to ``standalone_compile``; whole graphs are compiled.

    ``torch._inductor.standalone_compile.standalone_compile`` looks ``compile_fx`` up at each call (2.11 to 2.15).
    Everything around it is real: settings, contexts, the artifact that the backend gets.
    """
    whole = {"compile": PatchPoint("torch._inductor.compile_fx", "compile_fx")}
    inside = threading.local()

    def compile_region(
        original: Callable[..., Any], gm: Any, inputs: Any, *args: Any, ignore_shape_env: bool = False, **kwargs: Any
    ) -> Any:
        if not getattr(inside, "standalone", False):
            return original(gm, inputs, *args, ignore_shape_env=ignore_shape_env, **kwargs)
        return InterpretedRegion(gm)

    def standalone(compile_standalone: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inside.standalone = True
        try:
            return compile_standalone(*args, **kwargs)
        finally:
            inside.standalone = False

    outer = dict(_stored)
    with patched_stages({"standalone_compile": standalone}), wrapped(whole, {"compile": compile_region}):
        try:
            yield
        finally:
            _stored.clear()
            _stored.update(outer)


def without_timing(choices: Sequence[Any]) -> list[Any]:
    """Return the kernel of an operator when none can be timed: the first generated one (2.11 to 2.15)."""
    template = symbol("torch._inductor.select_algorithm", "TritonTemplateCaller")
    return ([choice for choice in choices if isinstance(choice, template)] or list(choices))[:1]


def has_lowering(operator: Any) -> bool:
    """Return whether Inductor has a lowering for an operator (``torch._inductor.lowering.lowerings``, 2.11 to 2.15)."""
    return operator in symbol("torch._inductor.lowering", "lowerings")


@contextlib.contextmanager
def fallbacks_made() -> Iterator[Callable[[Any], None]]:
    """Give a function that has Inductor call an operator's own kernel, until the context ends (2.11 to 2.15).

    For operators that have a decomposition and no lowering.
    """
    lowerings, fallbacks, realized = (
        symbol("torch._inductor.lowering", name) for name in ("lowerings", "fallbacks", "needs_realized_inputs")
    )
    known: list[Any] = []

    def make(operator: Any) -> None:
        if operator not in lowerings:
            known.append(operator)
            symbol("torch._inductor.lowering", "make_fallback")(operator, warn=False, override_decomp=True)

    try:
        yield make
    finally:
        for operator in known:
            lowerings.pop(operator, None)
            fallbacks.discard(operator)
            realized.discard(operator)


# Both code generators import the function by name; the rest of Inductor looks it up in its module at each call.
_TOLD = {
    holder: PatchPoint(holder, "set_kernel_post_grad_provenance_tracing")
    for holder in ("torch._inductor.debug", "torch._inductor.codegen.cpp", "torch._inductor.codegen.triton")
}
_LOOPS = {"loops": PatchPoint("torch._inductor.codegen.cpp:KernelGroup", "finalize_kernel")}


@dataclass(frozen=True)
class RawLaunch:
    """One launch or extern call as Inductor wrote it.

    Attributes:
        kernel: its name in the wrapper.
        is_extern: whether Inductor generated no code for it.
        buffers: for each buffer it makes, the graph nodes behind it; an extern call has one entry without a name.
        node: the graph node of an extern call, if Inductor knows it.
        loops: for each buffer, the number of the loop that makes it; a C++ function may contain several.
        parts: for each buffer, the number of the scheduled part that makes it; a combined kernel has several, and each
            is given the parts of all.
    """

    kernel: str
    is_extern: bool
    buffers: tuple[tuple[str, tuple[Any, ...]], ...]
    node: Any = None
    loops: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()


_innermost: ContextVar[tuple[object, list[RawLaunch]] | None] = ContextVar("innermost recording", default=None)


@contextlib.contextmanager
def recording_launches(graph: object = None) -> Iterator[list[RawLaunch]]:
    """Record the launches that Inductor writes while the context lasts.

    Args:
        graph: what Inductor generates code for. Two observers of one code generation are given the same list; of two
            nested ones the inner list has the launches of the inner graph alone.

    Inductor reports every launch to ``torch._inductor.debug.set_kernel_post_grad_provenance_tracing``, which drops it
    unless ``config.trace.provenance_tracking_level`` is set. Wrapping the function, instead of setting the level, does
    not change the generated code and its cache keys (2.11, 2.13, 2.15).
    """
    innermost = _innermost.get()
    if graph is not None and innermost is not None and innermost[0] is graph:
        yield innermost[1]
        return
    launches: list[RawLaunch] = []
    loops: dict[Any, int] = {}
    makers: dict[str, Maker] = {name: lambda original: _listener(original, launches, loops) for name in _TOLD}
    makers["loops"] = lambda original: _loop_listener(original, loops)
    token = _innermost.set((graph, launches))
    try:
        with patched({**_TOLD, **_LOOPS}, makers):
            yield launches
    finally:
        _innermost.reset(token)


def _listener(original: Callable[..., Any], launches: list[RawLaunch], loops: Mapping[Any, int]) -> Callable[..., Any]:
    # With nested code generations only the inner listener is called.
    inductors = getattr(original, "__wrapped__", original)

    @functools.wraps(inductors)
    def listen(node_schedule: Any, kernel_name: str, is_extern: bool = False) -> Any:
        if is_extern:
            nodes = _nodes(node_schedule.origins)
            launches.append(RawLaunch(kernel_name, True, (("", nodes),), node_schedule.origin_node))
        else:
            launches.append(_fused(kernel_name, node_schedule, loops))
        return inductors(node_schedule, kernel_name, is_extern)

    return listen


def _loop_listener(original: Callable[..., Any], loops: dict[Any, int]) -> Callable[..., Any]:
    """Note which scheduler nodes share a loop: each call of ``KernelGroup.finalize_kernel`` ends one (2.11 to 2.15)."""
    inductors = getattr(original, "__wrapped__", original)
    numbers = itertools.count()

    @functools.wraps(inductors)
    def listen(group: Any, kernel: Any, nodes: Any) -> Any:
        loops.update(dict.fromkeys(nodes, next(numbers)))
        return inductors(group, kernel, nodes)

    return listen


def _fused(name: str, schedule: Any, loops: Mapping[Any, int]) -> RawLaunch:
    """Read the schedule of a fused kernel; markers between its nodes are classes without nodes."""
    buffers: list[tuple[str, tuple[Any, ...]]] = []
    numbers: list[int] = []
    parts: list[int] = []
    outer = _outer_graphs()
    for part, scheduled in enumerate(schedule):
        for inner in scheduled.get_nodes() if hasattr(scheduled, "get_nodes") else ():
            if inner.node is not None:
                nodes = tuple(node for node in _nodes(inner.node.origins) if node.graph not in outer)
                made = [(buffer, nodes) for buffer in inner.get_buffer_names()]
                buffers += made
                numbers += [loops.get(inner, 0)] * len(made)
                parts += [part] * len(made)
    return RawLaunch(name, False, tuple(buffers), loops=tuple(numbers), parts=tuple(parts))


def _nodes(origins: Any) -> tuple[Any, ...]:
    """Return the graph nodes among ``origins``, which Inductor declares as nodes of either kind."""
    return tuple(origin for origin in origins if isinstance(origin, symbol("torch.fx", "Node")))


def _outer_graphs() -> list[Any]:
    """Return the graphs around the subgraph being lowered, whose nodes compute nothing in it (2.11 to 2.15)."""
    lowering = virtualized().graph
    graphs = []
    while lowering := getattr(lowering, "parent", None):
        graphs.append(lowering.graph)
    return graphs
