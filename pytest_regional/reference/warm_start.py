"""Warm starts without a trace: what Dynamo made of a frame is stored, with its guards, and used in the next process.

A stored trace is used where everything that it depends on is in this process what it was in the trace: the code of the
frame and of all functions in it, the classes, the files they come from, settings and state of the process, and the
value of every guard. Each is compared by content. Whatever cannot be compared so keeps the trace from being stored.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.autograd_cache import bypasses_are_errors, caches_are_on, count_frame
from pytest_regional._torch.config import settings_of_a_trace
from pytest_regional._torch.frames import (
    FrameCompile,
    Settings,
    StoredCode,
    Trace,
    TraceRecord,
    answering_frames,
    backend_behind_all,
    compiled_frame,
    global_state,
    is_compiled,
    prepare_globals,
    stored_code,
    trace_state,
    why_no_frames,
)
from pytest_regional._torch.guards import (
    OtherValueError,
    StoredGuards,
    Texts,
    UnstorableTraceError,
    check_facts,
    guard_manager,
)
from pytest_regional._torch.tracing import new_fake_mode, tracing
from pytest_regional.reference.caching.container import PICKLING_ERRORS, warn_once
from pytest_regional.reference.caching.facts import (
    UnstableValueError,
    class_text,
    code_digest,
    codes_in,
    file_digests,
    identity_text,
    value_text,
)
from pytest_regional.reference.caching.key import digest
from pytest_regional.reference.caching.outer import UNUSABLE, EntryName
from pytest_regional.reference.caching.store import open_store, record
from pytest_regional.reference.caching.target import TargetFingerprint, this_machine
from pytest_regional.reference.dynamo_backend import regional
from pytest_regional.reference.options import BackendOptionError, BackendOptions
from pytest_regional.reference.pre_grad import PreGradPassError, plan_pre_grad

#: Increased whenever the format of stored traces or of their keys changes.
FORMAT = 1

_TEXTS = Texts(identity_text, value_text, class_text, UnstableValueError)


@contextlib.contextmanager
def warm_starts() -> Iterator[None]:
    """Store the traces of programs that compile inside with backend ``regional``, and start from stored ones.

    Where PyTorch's version has no support for it, one warning says so, and programs compile as ever.
    """
    why_not = why_no_frames()
    if why_not:
        warn_once(f"No traces are stored: {why_not}")
        yield
        return
    with answering_frames(_answer):
        yield


@dataclass(frozen=True)
class FrameKey:
    """What a frame is looked up by; all fields count.

    Attributes:
        format: of stored traces.
        code: digest of the frame's code.
        module: the module of its globals.
        fullgraph: whether a graph break is an error.
        options: of the backend.
        passes: uuids of the late pre-grad passes.
        settings: of Dynamo, AOTAutograd and Inductor.
        state: what Dynamo's guard on global state holds, and what no guard of it does.
        environment: variables that PyTorch or a compiler may read.
        machine: as in the outer cache's key.
    """

    format: int
    code: str
    module: str
    fullgraph: bool
    options: BackendOptions
    passes: tuple[Any, ...]
    settings: Mapping[str, Any]
    state: tuple[str, Mapping[str, Any]]
    environment: Mapping[str, str]
    machine: TargetFingerprint


@dataclass(frozen=True)
class StoredTrace:
    """What a trace made, and what it depends on.

    Attributes:
        guards: its guards.
        facts: the text of what each guards.
        functions: module, qualified name and digest of the code of each traced function.
        files: digest of the source of each module with traced code.
        code: its bytecode.
        results: the entries of its graphs in the outer cache, by the name that the bytecode has for them.
    """

    guards: StoredGuards
    facts: tuple[str, ...]
    functions: tuple[tuple[str, str, str], ...]
    files: Mapping[str, str]
    code: StoredCode
    results: Mapping[str, EntryName]


def _answer(frame: FrameCompile, trace: Trace) -> Any:
    """Answer for a frame from what is stored, or trace it and store what that made."""
    ours = _ours(frame.backend)
    if ours is None or not (ours.options.outer_cache and caches_are_on()):
        return trace(None)
    with ours.scope():
        key = _key_of(frame, ours.options)
        found = _find(key, frame) if key else None
    if found is not None:
        count_frame("hit")
        return found
    if key is None:
        return trace(None)
    made = TraceRecord(_TEXTS)
    answer = trace(made)
    if is_compiled(answer):
        _save(key, frame, made)
    else:
        _bypass(UnstorableTraceError("Dynamo leaves the frame as it is"))
    return answer


def _key_of(frame: FrameCompile, options: BackendOptions) -> str | None:
    """Return the key of a frame; None, and a bypass, if it has none."""
    try:
        return digest(_key(frame, options))
    except (UnstableValueError, UnstorableTraceError) as error:
        _bypass(error)
        return None
    except PreGradPassError:
        return None  # the backend raises it when it is called


@dataclass(frozen=True)
class _Ours:
    options: BackendOptions
    scope: Settings


def _ours(backend: Any) -> _Ours | None:
    """Return the options of a frame's backend; None if it is not this one, or is hidden in another function."""
    function, keywords, scope = backend_behind_all(backend)
    if function is not regional or keywords.get("mode") is not None:
        return None
    try:
        return _Ours(BackendOptions.merged(keywords.get("options"), **_without(keywords, "mode", "options")), scope)
    except BackendOptionError:
        return None  # the backend raises it when it is called


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


#: Variables that PyTorch, Triton or the C++ compiler may read; paths, logs and numbers of workers decide over no code.
_PREFIXES = ("TORCH", "PYTORCH", "TRITON", "CUDA", "OMP_", "MKL_", "CXX", "CPP", "CC", "CFLAGS", "LD_PRELOAD")
_NOT_IN_KEY = ("CACHE_DIR", "LOG", "TRACE", "REDIS", "WORKER", "COMPILE_THREADS", "DEBUG_DIR")


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_PREFIXES) and not any(word in name for word in _NOT_IN_KEY)
    }


def _key(frame: FrameCompile, options: BackendOptions) -> FrameKey:
    plan = plan_pre_grad(options.pre_grad_pass_timing)
    if plan.early:
        raise UnstorableTraceError("a pre-grad pass runs early: on every graph that Dynamo traces")
    return FrameKey(
        FORMAT,
        code_digest(frame.code),
        str(frame.f_globals.get("__name__")),
        frame.fullgraph,
        options,
        tuple(plan.uuids),
        settings_of_a_trace(),
        (global_state(), trace_state()),
        _environment(),
        this_machine(),
    )


# Looking up


def _find(key: str, frame: FrameCompile) -> Any:
    """Return Dynamo's answer from a stored trace that holds here, or None."""
    store = open_store()
    for payload in store.candidates(key):
        try:
            # Some guards, of functorch and of operators with bodies, can only be read and made inside a trace.
            with tracing(new_fake_mode()):
                stored: StoredTrace = pickle.loads(payload)
                answer = _put_in_place(stored, frame, store)
        except MissingTorchSymbolError:
            raise
        except (OtherValueError, UnstableValueError, AssertionError, ValueError, *UNUSABLE) as error:
            # Dynamo asserts what it expects of values that it makes guards for.
            count_frame("miss", str(error))
            continue
        if answer is not None:
            record(key, payload)
            return answer
    return None


def _put_in_place(stored: StoredTrace, frame: FrameCompile, store: Any) -> Any:
    if stored.functions != _functions(stored.functions) or stored.files != file_digests(stored.files):
        raise OtherValueError("a traced function, or the file that it is in, is another")
    prepare_globals(stored.code, stored.guards, frame)
    check_facts(stored.guards, stored.facts, frame, _TEXTS)
    manager = guard_manager(stored.guards, frame)
    results = {name: entry.load(store) for name, entry in stored.results.items()}
    loaded = {name: result for name, result in results.items() if result is not None}
    if len(loaded) < len(results):
        return None
    return compiled_frame(stored.code, loaded, manager, frame)


def _functions(named: Sequence[tuple[str, str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Return what the functions of these names are in this process."""
    return tuple((module, name, _found_digest(module, name, expected)) for module, name, expected in named)


def _found_digest(module: str, name: str, expected: str) -> str:
    """Return ``expected`` if the function of that name has this code, or one nested in it or behind a decorator."""
    return expected if any(code_digest(code) == expected for code in _codes_named(module, name)) else ""


def _codes_named(module: str, name: str) -> Iterator[types.CodeType]:
    value: Any = sys.modules.get(module)
    for part in name.partition(".<locals>")[0].split("."):
        value = vars(value).get(part) if isinstance(value, (type, types.ModuleType)) else None
    yield from _codes_behind(value, 4)


def _codes_behind(value: Any, depth: int) -> Iterator[types.CodeType]:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, (property, types.DynamicClassAttribute)):
        for one in (value.fget, value.fset, value.fdel):
            yield from _codes_behind(one, depth)
    if not isinstance(value, types.FunctionType) or not depth:
        return
    yield from codes_in(value.__code__)
    for cell in value.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield from _codes_behind(cell.cell_contents, depth - 1)


# Storing


def _save(key: str, frame: FrameCompile, made: TraceRecord) -> None:
    try:
        payload = pickle.dumps(_stored(frame, made), protocol=pickle.HIGHEST_PROTOCOL)
    except (UnstableValueError, UnstorableTraceError) as error:
        _bypass(error)
        return
    except PICKLING_ERRORS as error:
        _bypass(UnstorableTraceError(f"a guard cannot be pickled: {type(error).__name__}: {error}"))
        return
    record(key, payload)
    if open_store().save(key, payload):
        count_frame("saved")


def _stored(frame: FrameCompile, made: TraceRecord) -> StoredTrace:
    if made.reasons or made.guards is None:
        raise UnstorableTraceError("; ".join(dict.fromkeys(made.reasons)) or "the trace has no guards")
    code = stored_code(made)
    results = {}
    for name in code.backends:
        entry = EntryName.behind(made.backends[name])
        if entry is None:
            raise UnstorableTraceError("the result of its graph is not in the outer cache")
        if entry.operators:
            raise UnstorableTraceError(f"nothing says what operator {entry.operators[0]} is in another process")
        results[name] = entry
    functions = _traced_functions(frame, made)
    modules = [module for module, _, _ in functions] + [str(frame.f_globals.get("__name__"))]
    return StoredTrace(made.guards, made.facts, functions, file_digests(modules), code, results)


def _traced_functions(frame: FrameCompile, made: TraceRecord) -> tuple[tuple[str, str, str], ...]:
    """Return module, name and digest of the traced functions that are compared by their names.

    The frame's own code is in its key, with the functions nested in it; others are in the facts of guards, where the
    name stands for a function of that code. The version of torch stands for its functions without a name.

    Raises:
        UnstorableTraceError: a function is not found in any of these ways.
    """
    facts = " ".join(made.facts)
    known = set(map(code_digest, codes_in(frame.code)))
    found = []
    for code in made.traced:
        if code_digest(code) in known:
            continue
        module, name = _module_of(code), getattr(code, "co_qualname", code.co_name)
        function = (module, name, code_digest(code))
        if function == _functions([function])[0]:
            found.append(function)
        elif code_digest(code) not in facts and not module.startswith("torch."):
            raise UnstorableTraceError(f"function {name} of {module or code.co_filename} is not found by its name")
        known.update(map(code_digest, codes_in(code)))
    return tuple(sorted(found))


def _module_of(code: types.CodeType) -> str:
    """Return the name of the module whose file has ``code``; empty if there is none."""
    return _modules_by_file().get(code.co_filename, "")


def _modules_by_file() -> dict[str, str]:
    files = ((getattr(module, "__file__", None), name) for name, module in list(sys.modules.items()))
    return {file: name for file, name in files if file}


def _bypass(reason: Exception) -> None:
    """Count a trace that cannot be looked up or stored; in PyTorch's strict mode, raise."""
    count_frame("bypass", str(reason))
    if bypasses_are_errors():
        raise reason
