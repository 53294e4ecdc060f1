"""Frames of Dynamo: what a trace of one made, as plain data, and how it is put in place again without a trace.

Dynamo calls ``torch._dynamo.convert_frame._compile`` for each frame that none of its compiled codes fits. Its answer is
new bytecode with guards. Here that answer is taken apart and made again: the bytecode, the functions it resumes in
after a graph break, and the names it imports; :mod:`pytest_regional._torch.guards` does its guards. Read in 2.13 and
2.15.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_regional._torch import private_module, symbol, torch_version
from pytest_regional._torch.config import state_guard
from pytest_regional._torch.guards import (
    FrameScope,
    OtherValueError,
    StoredGuards,
    Texts,
    UnstorableTraceError,
    default_device,
    name_of,
    taken_apart,
)
from pytest_regional._torch.patching import PatchPoint, Wrapper, patched_stages, wrapped
from pytest_regional._torch.thread_state import forward_level, saved_tensor_hooks

_CONVERT = "torch._dynamo.convert_frame"


def why_no_frames() -> str:
    """Return why traces cannot be stored with the installed torch; empty where they can."""
    if torch_version() < (2, 13):
        return "torch before 2.13 has other guards, and no values of their sources"
    return ""


@dataclass(frozen=True)
class FrameCompile(FrameScope):
    """A frame that Dynamo is about to trace.

    Attributes:
        backend: what Dynamo hands graphs to.
        fullgraph: whether a graph break is an error.
        compile_id: Dynamo's number of the compile.
    """

    backend: Any
    fullgraph: bool
    compile_id: Any


Trace = Callable[["TraceRecord | None"], Any]
"""Traces the frame, and notes on the record what the trace made; returns Dynamo's answer."""


def answering_frames(answer: Callable[[FrameCompile, Trace], Any]) -> contextlib.AbstractContextManager[None]:
    """Call ``answer`` for each frame that Dynamo would trace; it returns Dynamo's answer, from a trace or not.

    Frames that are exported, packaged, filtered, over the limit of recompiles or seen by a hook for bytecode are
    traced as ever.
    """

    def compile_frame(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        code, f_globals, f_locals, _, _, backend, fullgraph, export, _, hooks = args[:10]
        sizes = next(value for value in args[10:] if hasattr(value, "num_cache_entries"))
        if export or kwargs.get("package") is not None or _has_hooks(hooks) or _over_limit(sizes, kwargs["compile_id"]):
            return original(*args, **kwargs)

        def trace(record: TraceRecord | None) -> Any:
            if record is None:
                return original(*args, **kwargs)
            with _recording(record, f_globals):
                return original(*args, **{**kwargs, "package": record})

        frame = FrameCompile(code, f_globals, f_locals, backend, bool(fullgraph), kwargs["compile_id"])
        return answer(frame, trace)

    return patched_stages({"frame": compile_frame})


def _has_hooks(hooks: Any) -> bool:
    """Return whether something else looks at guards (``Hooks``) or changes bytecode (``_bytecode_hooks``)."""
    given = (getattr(hooks, name, None) for name in ("guard_export_fn", "guard_fail_fn", "guard_filter_fn"))
    return any(hook is not None for hook in given) or bool(symbol(_CONVERT, "_bytecode_hooks"))


def _over_limit(sizes: Any, compile_id: Any) -> bool:
    """Return whether Dynamo would not compile the frame again: ``exceeds_recompile_limit``."""
    exceeded, _ = symbol("torch._dynamo.cache_size", "exceeds_recompile_limit")(sizes, compile_id)
    return bool(exceeded)


# The process


def trace_state() -> dict[str, Any]:
    """Return what decides over a trace and is no setting, value or code: modes, devices, ranks, levels.

    Raises:
        UnstorableTraceError: something of it has no meaning in another process.
    """
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise UnstorableTraceError("process groups are initialized: ranks and sizes are constants of a trace")
    if saved_tensor_hooks():
        raise UnstorableTraceError("hooks for saved tensors are set")
    if symbol("torch.overrides", "_len_torch_function_stack")():
        raise UnstorableTraceError("a torch function mode is active, such as that of a default device")
    if symbol("torch._C._functorch", "peek_interpreter_stack")() is not None:
        raise UnstorableTraceError("a functorch transform is active")
    return {
        "default device": repr(default_device()),
        "forward AD": forward_level(),
        "graph breaks are errors": bool(symbol("torch._dynamo.symbolic_convert", "_get_error_on_graph_break")()),
    }


# Recording


@dataclass
class TraceRecord:
    """What a trace of a frame makes: Dynamo fills it through the methods of its ``CompilePackage``.

    Attributes:
        texts: how values are described.
        reasons: why the trace cannot be stored, if so.
        guards: its guards, as plain data.
        facts: what each guard's value was.
        code: the new bytecode.
        traced: the code of all functions that were traced.
        imports: module by the name that it has among the globals.
        resumed: code of functions that go on after a graph break, by name among the globals.
        backends: compiled graphs, by name among the globals.
    """

    texts: Texts
    reasons: list[str] = field(default_factory=list)
    guards: StoredGuards | None = None
    facts: tuple[str, ...] = ()
    code: types.CodeType | None = None
    traced: list[types.CodeType] = field(default_factory=list)
    imports: dict[str, str] = field(default_factory=dict)
    resumed: dict[str, types.CodeType] = field(default_factory=dict)
    backends: dict[str, Any] = field(default_factory=dict)
    resume_modules: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def code_context(self, code: types.CodeType) -> Iterator[None]:
        """Enter the compile of one frame."""
        yield

    def add_guarded_code(self, guards_state: Any, dynamo_code: types.CodeType) -> None:
        """Note the answer; its guards are noted already."""
        self.code = dynamo_code

    def add_inlined_source(self, sources: Sequence[types.CodeType]) -> None:
        """Note what was traced."""
        self.traced.extend(sources)

    def update_device_type(self, graph: Any) -> None:
        """Nothing: a graph has its devices."""

    def bypass_current_entry(self) -> None:
        """Note that Dynamo refuses to store the graph."""
        self.reasons.append("Dynamo does not store such a graph: it holds parameters")

    def add_resume_function(self, python_code: types.CodeType, python_module: str, function_name: str) -> None:
        """Note a function that goes on after a graph break."""
        self.resumed[function_name] = python_code
        self.resume_modules.add(python_module)

    def add_import_source(self, alias: str, module_name: str) -> None:
        """Note a module under its name among the globals."""
        self.imports[alias] = module_name

    def add_backend_id(self, backend_id: str, backend: Any = None) -> None:
        """Note a compiled graph under its name among the globals."""
        self.backends[backend_id] = backend


_RECORDED = {
    "guards": PatchPoint("torch._dynamo.guards:CheckFunctionManager", "serialize_guards"),
    "built-ins": PatchPoint("torch._dynamo.output_graph:OutputGraph", "install_builtins_dict_in_fglobals"),
    # Two modules have the function, each under its own name.
    "constant": PatchPoint("torch._dynamo.variables.functions", "invoke_and_store_as_constant"),
    "constant of a module": PatchPoint("torch._dynamo.variables.nn_module", "invoke_and_store_as_constant"),
}


#: The name under which guards of stored traces find built-in functions among the globals. Dynamo's own name counts up,
#: so that a later trace would take that of a stored one.
_BUILT_INS = "__builtins_dict___regional"


@contextlib.contextmanager
def _recording(record: TraceRecord, f_globals: dict[str, Any]) -> Iterator[None]:
    def serialize(original: Any, manager: Any, builder: Any, guards: Sequence[Any], graph: Any) -> bytes:
        # Dynamo asks for bytes, and hands them back with the code.
        try:
            record.guards, record.facts = taken_apart(manager, builder, guards, graph, record.texts)
        except (UnstorableTraceError, record.texts.error) as error:
            record.reasons.append(str(error))
        return b""

    def constant(original: Any, *args: Any, **kwargs: Any) -> Any:
        record.reasons.append(
            "a function marked assume_constant_result ran in the trace, and nothing guards its result"
        )
        return original(*args, **kwargs)

    def built_ins(original: Any, graph: Any) -> str:
        found = _built_ins_of(graph.global_scope)
        free = graph.global_scope.setdefault(_BUILT_INS, found) is found
        return _BUILT_INS if free else str(original(graph))

    before = set(f_globals)
    wrappers: dict[str, Wrapper] = {
        "guards": serialize,
        "built-ins": built_ins,
        "constant": constant,
        "constant of a module": constant,
    }
    with wrapped(_RECORDED, wrappers):
        yield
    if record.code is None:
        return
    record.reasons.extend(_of_this_process(record, set(f_globals) - before))
    innermost = symbol("torch._dynamo.eval_frame", "innermost_fn")
    for name, backend in record.backends.items():
        if name in f_globals and innermost(f_globals[name]) is not innermost(backend):
            record.reasons.append("the compiled graph is wrapped, for a tensor subclass or for several sizes")


def _of_this_process(record: TraceRecord, added: set[str]) -> Iterator[str]:
    """Yield a reason for each object that the trace has put among the globals, and that cannot be made again."""
    assert record.code is not None, "the trace made code"
    used = _names_in(record.code)
    guarded = " ".join(name_of(source) for *_, source in record.guards.guards) if record.guards else ""
    for name in sorted(added - {*record.imports, *record.resumed, *record.backends, _BUILT_INS}):
        if name in used or f"G[{name!r}]" in guarded:
            yield f"the code or a guard uses an object of this process, {name}"


# Bytecode


@dataclass(frozen=True)
class StoredCode:
    """The code of a trace, with what it finds among the globals.

    Attributes:
        code: Dynamo's ``SerializedCode``.
        imports: module by name.
        resumed: ``SerializedCode`` by name.
        backends: names of compiled graphs.
    """

    code: Any
    imports: dict[str, str]
    resumed: dict[str, Any]
    backends: tuple[str, ...]


def stored_code(record: TraceRecord) -> StoredCode:
    """Return the code of a trace as plain data.

    Raises:
        UnstorableTraceError: a constant of it is no plain value, or a function of another module resumes it.
    """
    assert record.code is not None, "the trace made code"
    used = _names_in(record.code)
    for name, code in record.resumed.items():
        if _names_in(code) & {*record.resumed, *record.backends}:
            raise UnstorableTraceError("a graph break in a function that is called by the traced one")
        if name in used:
            _require_plain(code)
    _require_plain(record.code)
    serialized = _serialized_code().from_code_object
    return StoredCode(
        serialized(record.code),
        record.imports,
        {name: serialized(code) for name, code in record.resumed.items() if name in used},
        tuple(name for name in record.backends if name in used),
    )


def _serialized_code() -> Any:
    """``SerializedCode``: a code object as plain data (2.11 to 2.15)."""
    return symbol("torch._dynamo.package", "SerializedCode")


def _built_ins_of(f_globals: dict[str, Any]) -> Any:
    return symbol("torch._dynamo.output_graph", "get_builtins_dict")(f_globals)


def _names_in(code: types.CodeType) -> set[str]:
    nested = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*map(_names_in, nested))


_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))


def _require_plain(code: types.CodeType) -> None:
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            _require_plain(value)
        elif not _is_plain(value):
            raise UnstorableTraceError(f"a {type(value).__qualname__} is a constant of the code")


def _is_plain(value: Any) -> bool:
    import torch

    if type(value) in (tuple, frozenset):
        return all(map(_is_plain, value))
    return type(value) in (*_PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format)


def prepare_globals(stored: StoredCode, guards: StoredGuards, frame: FrameCompile) -> None:
    """Put modules and built-in functions among the globals under the names that guards and code use, as Dynamo does.

    Raises:
        OtherValueError: a module is not imported, or a name is taken.
    """
    builtins_dict = _built_ins_of(frame.f_globals)
    wanted: dict[str, Any] = {guards.builtins_name: builtins_dict} if guards.builtins_name else {}
    for name, module in stored.imports.items():
        if module not in sys.modules:
            raise OtherValueError(f"module {module} is not imported")
        wanted[name] = sys.modules[module]
    for name, value in wanted.items():
        if frame.f_globals.setdefault(name, value) is not value:
            raise OtherValueError(f"{name} is another object among the globals")


def compiled_frame(
    stored: StoredCode, backends: Mapping[str, Callable[..., Any]], manager: Any, frame: FrameCompile
) -> Any:
    """Return Dynamo's answer for the frame: the stored code, with guards and compiled graphs of this process.

    What the code finds among the globals gets fresh names, and goes when the code goes (``CleanupManager``).
    """
    to_code = _serialized_code().to_code_object
    fresh = {name: f"{name}_{uuid.uuid4().hex}" for name in (*stored.resumed, *stored.backends)}
    code = _renamed(to_code(stored.code), fresh)
    hook = symbol("torch._dynamo.utils", "CleanupHook").create
    cleanups = []
    for name, resumed in stored.resumed.items():
        cleanups.append(hook(frame.f_globals, fresh[name], _resuming(to_code(resumed), frame.f_globals, fresh[name])))
    disable = symbol("torch._dynamo", "disable")
    for name in stored.backends:
        compiled = disable(backends[name], reason="do not trace Dynamo-compiled graph")
        cleanups.append(hook(frame.f_globals, fresh[name], compiled))
    symbol("torch._dynamo.utils", "CleanupManager").instance[code] = cleanups
    symbol(_CONVERT, "output_codes").add(code)
    symbol(_CONVERT, "orig_code_map")[code] = frame.code
    types_module = private_module("torch._dynamo.types")
    guarded = types_module.GuardedCode(code, manager, frame.compile_id, f"Torch-Compiled Region: {frame.compile_id}")
    return types_module.wrap_guarded_code(guarded)


def _resuming(code: types.CodeType, f_globals: dict[str, Any], name: str) -> Callable[..., Any]:
    """Return what ``install_resume_function_global`` installs: the function, or what makes it of its closure."""
    if not code.co_freevars:
        return types.FunctionType(code, f_globals, name)
    return lambda closure: types.FunctionType(code, f_globals, name, None, closure)


def _renamed(code: types.CodeType, fresh: Mapping[str, str]) -> types.CodeType:
    """Return another code object with other names of globals: each put in place has its own cleanup."""
    consts = tuple(_renamed(one, fresh) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    return code.replace(co_names=tuple(fresh.get(name, name) for name in code.co_names), co_consts=consts)


def is_compiled(answer: Any) -> bool:
    """Return whether Dynamo's answer for a frame has code: else it runs as it is."""
    return getattr(answer, "guarded_code", None) is not None


def global_state() -> str:
    """Return the state that Dynamo guards: threads, precision, determinism, autocast, grad mode.

    ``GlobalStateGuard`` (2.11 to 2.15).
    """
    return str(state_guard().__getstate__())


_BEHIND = "regional_backend_behind"

Settings = Callable[[], contextlib.AbstractContextManager[Any]]
"""Returns a context that holds the settings under which a backend compiles."""


def note_backend_behind(function: Any, behind: Any, settings: Settings) -> None:
    """Note on a Dynamo backend that it calls ``behind`` with each graph, under ``settings``, and does nothing else."""
    setattr(function, _BEHIND, (behind, settings))


def backend_behind_all(backend: Any) -> tuple[Any, dict[str, Any], Settings]:
    """Return the function behind a backend given to Dynamo, the keywords it is called with, and the settings then."""
    keywords: dict[str, Any] = {}
    settings: Settings = contextlib.nullcontext
    while True:
        if isinstance(backend, functools.partial) and not backend.args:
            keywords = {**backend.keywords, **keywords}
            backend = backend.func
        elif hasattr(backend, _BEHIND):
            backend, settings = getattr(backend, _BEHIND)
        elif hasattr(backend, "compiler_fn") and hasattr(backend, "kwargs"):  # of torch.compile
            keywords = {**backend.kwargs, **keywords}
            backend = backend.compiler_fn
        elif hasattr(backend, "_torchdynamo_orig_backend"):  # of Dynamo
            backend = backend._torchdynamo_orig_backend
        else:
            return backend, keywords, settings
