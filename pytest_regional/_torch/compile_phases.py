"""How long each phase of a compile takes, from the events that PyTorch logs.

Every ``dynamo_timed`` of Dynamo, AOTAutograd and Inductor calls two methods of ``ChromiumEventLogger``, whether a trace
is kept or not (2.11 to 2.15). While the clock runs they are wrapped, and so are the lookups in caches, which log
nothing. Phases exclude each other: time belongs to the innermost step that is known.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import unknown_name
from pytest_regional._torch import MissingTorchSymbolError, calling, private_module
from pytest_regional._torch.patching import COMPILE_STAGES, PatchPoint, missing, wrapped

#: In the order of a compile. ``passes`` are the pre-grad, joint and post-grad passes, ``inductor`` its lowering,
#: scheduling and code generation, ``compiler`` the C++ or Triton compiler, ``cache`` lookups, loads and saves, and
#: ``other`` what is left: mostly the backend's own code.
PHASES = ("dynamo", "aot_autograd", "passes", "inductor", "compiler", "cache", "other")

#: All phases together.
TOTAL = "total"

#: ``wall`` is the time that passes, ``cpu`` what a compile takes of processors, which other load changes less.
CLOCK_NAMES = ("wall", "cpu")


def checked_phase(name: str | None) -> str:
    """Return the name of a phase, :data:`TOTAL` for ``None``."""
    if name is None or name == TOTAL:
        return TOTAL
    if name not in PHASES:
        raise RegionalValueError(unknown_name("phase of a compile", name, (*PHASES, TOTAL)))
    return name


class _Event(NamedTuple):
    """A step that PyTorch logs: its phase, the module that logs it, and whether the phase is unknown without it."""

    phase: str
    module: str
    needed: bool = True


_INDUCTOR, _CPP = "torch._inductor.compile_fx", "torch._inductor.cpp_builder"
_ASYNC, _BUNDLER = "torch._inductor.async_compile", "torch._inductor.triton_bundler"
_AUTOTUNER, _REMOTE = "torch._inductor.runtime.triton_heuristics", "torch._inductor.remote_cache"

#: By the name that is logged. A step that is not here belongs to the phase of the one around it.
_EVENTS = {
    "dynamo": _Event("dynamo", "torch._dynamo.convert_frame"),
    "entire_frame_compile": _Event("dynamo", "torch._dynamo.convert_frame", False),
    "backend_compile": _Event("other", "torch._dynamo.output_graph"),
    "create_aot_dispatcher_function": _Event("aot_autograd", "torch._functorch.aot_autograd"),
    "aot_trace_joint_graph": _Event("aot_autograd", "torch._functorch._aot_autograd.graph_compile"),
    "entire_backward_compile": _Event("aot_autograd", "torch._functorch._aot_autograd.runtime_wrappers"),
    "min_cut_rematerialization_partition": _Event("aot_autograd", "torch._functorch.partitioners", False),
    "_recursive_pre_grad_passes": _Event("passes", _INDUCTOR),
    "_recursive_joint_graph_passes": _Event("passes", _INDUCTOR),
    "_recursive_post_grad_passes": _Event("passes", _INDUCTOR),
    "compile_fx.<locals>.fw_compiler_base": _Event("inductor", _INDUCTOR, False),
    "compile_fx.<locals>.bw_compiler": _Event("inductor", _INDUCTOR, False),
    "inductor_compile": _Event("inductor", _INDUCTOR),
    "compile_file": _Event("compiler", _CPP),
    "async_compile.wait": _Event("compiler", _ASYNC),
    "async_compile.precompile": _Event("compiler", _AUTOTUNER, False),
    "reload_kernel_in_parent": _Event("compiler", _ASYNC, False),
    "CachingAutotuner.benchmark_all_configs": _Event("compiler", _AUTOTUNER, False),
    "CachingAutotuner.coordinate_descent_tuning": _Event("compiler", _AUTOTUNER, False),
    "inductor_codecache_torch_key": _Event("cache", "torch._inductor.codecache", False),
    "CacheBase.get_system.triton_key": _Event("cache", "torch._inductor.codecache", False),
    "AOTAutogradCache.inductor_load": _Event("cache", "torch._functorch._aot_autograd.aot_autograd_result", False),
    "TritonBundler.collect": _Event("cache", _BUNDLER, False),
    "remote_fx_graph_cache_get": _Event("cache", _REMOTE, False),
    "remote_fx_graph_cache_put": _Event("cache", _REMOTE, False),
}

#: What a backend's own steps are logged as, so that they count as PyTorch's of the same kind do: see :func:`logged`.
_OWN = {"regional.cache": "cache", "regional.passes": "passes"}

#: A step that Inductor also takes in threads that it waits for: alone it is no part of the time that passes.
_HELPERS = frozenset({"compile_file"})

_LOGGER = "torch._dynamo.utils:ChromiumEventLogger"
_LOGGED = {
    "begin": PatchPoint(_LOGGER, "log_event_start"),
    "end": PatchPoint(_LOGGER, "log_event_end"),
}

#: What logs nothing, or not around all that it does.
_CALLS = {
    **{name: COMPILE_STAGES[name] for name in ("aot_lookup", "aot_save", "fx_key", "fx_lookup", "code_loaded")},
    # One save of Inductor's result for a graph (2.11 to 2.15).
    "fx_save": PatchPoint("torch._inductor.codecache:FxGraphCache", "_save_graph", static=True),
    # AOTAutograd traces a graph (2.11 to 2.15); then it partitions it and calls the compilers.
    "aot_capture": PatchPoint("torch._functorch.aot_autograd", "aot_stage1_graph_capture"),
    "aot_compile": COMPILE_STAGES["aot_compile"],
}
_PHASE_OF_CALL = {name: "aot_autograd" if name in ("aot_capture", "aot_compile") else "cache" for name in _CALLS}


def _calls_here() -> dict[str, PatchPoint]:
    """Return the :data:`_CALLS` that the installed torch has."""
    return {name: point for name, point in _CALLS.items() if not missing({name: point})}


@dataclass
class _Step:
    """A step that runs, and what it compiles; without a phase its time is not counted."""

    name: str
    phase: str
    what: str


@dataclass
class PhaseClock:
    """Adds up, by phase and by what is compiled, the time of compiles while it runs.

    Attributes:
        now: reads the clock, in seconds.
        counts: says whether time counts now.
        seconds: by phase (one of :data:`PHASES`) and what is compiled, such as ``"the forward graph"``; empty for what
            comes before a graph.
    """

    now: Callable[[], float] = time.perf_counter
    counts: Callable[[], bool] = lambda: True
    seconds: Counter[tuple[str, str]] = field(default_factory=Counter)
    _local: threading.local = field(default_factory=threading.local, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what compiles in this process while the context lasts; nothing where this torch logs no steps."""
        if missing(_LOGGED):
            yield
            return
        points = _calls_here()
        calls = {name: self._wrapper(name) for name in points}
        with wrapped({**_LOGGED, **points}, {"begin": self._begin, "end": self._end, **calls}):
            yield

    @contextlib.contextmanager
    def inside(self, phase: str, what: str) -> Iterator[None]:
        """Count the time inside as ``phase`` of ``what``, except for the steps in it that are known."""
        step = self._enter(what, phase, what)
        try:
            yield
        finally:
            self._leave(step)

    def _wrapper(self, name: str) -> Callable[..., Any]:
        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            stack, phase = self._stack, _PHASE_OF_CALL[name]
            if not stack and phase == "cache":  # a lookup that no compile makes, such as an assertion about a key
                return original(*args, **kwargs)
            with self.inside(phase, stack[-1].what if stack else ""):
                return original(*args, **kwargs)

        return call

    def _begin(self, original: Callable[..., Any], logger: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        result = original(logger, name, *args, **kwargs)
        stack = self._stack
        phase, what = (stack[-1].phase, stack[-1].what) if stack else ("", "")
        if stack or name not in _HELPERS:
            phase = _EVENTS[name].phase if name in _EVENTS else _OWN.get(name, phase)
        self._enter(name, phase, what)
        return result

    def _end(self, original: Callable[..., Any], logger: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        begun = next((step for step in reversed(self._stack) if step.name == name), None)
        if begun is not None:  # else the clock was started inside of it
            self._leave(begun)
        return original(logger, name, *args, **kwargs)

    @property
    def _stack(self) -> list[_Step]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        return self._local.stack

    def _enter(self, name: str, phase: str, what: str) -> _Step:
        self._count()
        step = _Step(name, phase, what)
        self._stack.append(step)
        return step

    def _leave(self, step: _Step) -> None:
        self._count()
        stack = self._stack
        while stack and stack.pop() is not step:
            pass

    def _count(self) -> None:
        """Give the time since the last change to the step that ran."""
        now = self.now()
        stack = self._stack
        if stack and stack[-1].phase and self.counts():
            with self._lock:
                self.seconds[stack[-1].phase, stack[-1].what] += now - self._local.since
        self._local.since = now


def unmeasured() -> frozenset[str]:
    """Return the phases that the installed torch does not log whole, so that their time is counted as another's."""
    if missing(_LOGGED):
        return frozenset(PHASES)
    here = _calls_here()
    lost = {_PHASE_OF_CALL[name] for name in _CALLS if name not in here}
    for name, event in _EVENTS.items():
        if event.needed:
            try:
                is_logged = f'"{name}"' in inspect.getsource(private_module(event.module))
            except (MissingTorchSymbolError, OSError):
                is_logged = False
            lost |= set() if is_logged else {event.phase}
    return frozenset(lost)


#: Logs a step of a backend, ``regional.cache`` or ``regional.passes``, in PyTorch's traces, as it logs its own.
logged = calling("torch._dynamo.utils", "dynamo_timed")
