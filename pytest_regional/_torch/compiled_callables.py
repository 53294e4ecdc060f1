"""What ``torch.compile`` returned, and how it is run as if it had never been compiled."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_regional._torch import symbol

#: Dynamo traces and runs the graph as it is: eager code asks for it (flex_attention does), and it changes nothing.
_RUNS_EAGER = "eager"

_thread = threading.local()
_lock = threading.Lock()
_entered = 0
_put_back: tuple[Any, Any] = (None, None)


def original_of(program: Any) -> Any:
    """Return the function or module inside what ``torch.compile`` made of it; anything else as it is.

    A module is in the ``_orig_mod`` of an ``OptimizedModule``, a function in ``_torchdynamo_orig_callable`` (2.11 to
    2.15). A module that was compiled in place (``module.compile()``) is itself; see :func:`to_compile`.
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
    """Return what to hand to ``torch.compile`` so that ``program`` itself is compiled, whatever compiled it before.

    A module that was compiled in place calls ``_compiled_call_impl`` before Dynamo sees any of its code (2.11 to 2.15):
    of such a one it is the method that was compiled there.
    """
    program = original_of(program)
    return program if getattr(program, "_compiled_call_impl", None) is None else program._call_impl


@contextlib.contextmanager
def never_compiled(*, tracing: bool = True) -> Iterator[None]:
    """Run on this thread, while the context lasts, whatever ``torch.compile`` made as the Python code that it is.

    ``torch.compiler.set_stance("force_eager")`` does so for every thread, and takes the ``eager`` backend from those
    who need Dynamo to trace; without ``tracing`` from them, too. Each call asks ``_callback_from_stance`` with which
    backend it is compiled, and the stance whether nothing compiled is an error with ``fullgraph`` (2.13 and 2.15).
    """
    with _forcing_eager():
        before = getattr(_thread, "eager", None)
        _thread.eager = _Eager(tracing)
        try:
            yield
        finally:
            _thread.eager = before


@dataclass(frozen=True)
class _Eager:
    """What a thread asked for: all eager, but for what needs tracing where it is allowed."""

    tracing: bool


@contextlib.contextmanager
def _forcing_eager() -> Iterator[None]:
    global _entered, _put_back
    module = symbol("torch._dynamo", "eval_frame")
    with _lock:
        _entered += 1
        if _entered == 1:
            original = symbol("torch._dynamo.eval_frame", "_callback_from_stance"), module._stance
            _put_back = original
            module._callback_from_stance = functools.partial(_callback, *original)
            module._stance = symbol("torch._dynamo.eval_frame", "DynamoStance")("force_eager")
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            if _entered == 0:
                module._callback_from_stance, module._stance = _put_back


def _callback(original: Callable[[Any], Any], stance: Any, callback: Any) -> Any:
    asked: _Eager | None = getattr(_thread, "eager", None)
    if callback in (None, False):
        return callback
    if asked is None:
        # Another thread's: as it was. Of the other stances, which tests do not use, it has none of for this time.
        return callback if stance.stance == "default" else original(callback)
    return (
        callback if asked.tracing and getattr(backend_behind(callback), "compiler_name", None) == _RUNS_EAGER else None
    )


def backend_behind(wrapped: Any) -> Any:
    """Return the backend that ``torch.compile`` was given, without Dynamo's own wrappers (2.11 to 2.15).

    Of a string it is an object with the name as ``compiler_name``, and the function as ``compiler_fn`` except for
    ``inductor``.
    """
    while hasattr(wrapped, "_torchdynamo_orig_backend"):
        wrapped = wrapped._torchdynamo_orig_backend
    return wrapped
