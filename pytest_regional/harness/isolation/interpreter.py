"""The state of Python, numpy and the process, warnings and logging included: one row per setting."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import copyreg
import decimal
import faulthandler
import functools
import gc
import io
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from collections.abc import Iterator, Mapping, Sequence
from operator import is_
from typing import Any

import numpy
import torch

from pytest_regional._torch.config import GENERATED_MODULES
from pytest_regional.harness.isolation import watched
from pytest_regional.harness.isolation.watched import MISSING, Leak, Settings, State, Watched


def _set_warning_filters(wanted: list[Any]) -> None:
    warnings.filters[:] = wanted  # type: ignore[index]
    with warnings.catch_warnings():
        pass  # leaving it is the public way to make Python read the filters again


def _loggers() -> dict[str, Any]:
    """Return the loggers that differ from new ones: level, whether disabled, whether propagating, handlers."""
    found: dict[str, Any] = {_MODULES: watched.imported_modules()}
    for name, logger in [("root", logging.root), *logging.root.manager.loggerDict.items()]:
        if isinstance(logger, logging.Logger):
            state = (logger.level, logger.disabled, logger.propagate, tuple(logger.handlers))
            found |= {name: state} if state != _AS_MADE else {}
    return found


#: The key of the imported modules: packages set levels and handlers when they are imported.
_MODULES = "(modules)"
_AS_MADE = (logging.NOTSET, False, True, ())


class _Loggers(Settings):
    """Loggers; a change during an import is the module's, unless the logger had been changed before."""

    def differences(self, before: Mapping[str, Any]) -> Iterator[Leak]:
        imported = watched.imported_modules() is not before[_MODULES]
        for leak in super().differences(before):
            if leak.before is not MISSING or not imported:
                yield leak


def _same_logger(before: Any, now: Any) -> bool:
    if isinstance(before, watched.ImportedModules):
        return True
    was, is_now = (_AS_MADE if each is MISSING else each for each in (before, now))
    if was[:3] != is_now[:3]:
        return False
    return bool(was[3] == is_now[3] or _own_handlers(was[3]) == _own_handlers(is_now[3]))


def _own_handlers(handlers: Sequence[Any]) -> list[Any]:
    """Return the handlers that are not pytest's, which are added and removed with each phase."""
    return [handler for handler in handlers if not type(handler).__module__.startswith("_pytest")]


def _set_logger(name: str, wanted: Any) -> None:
    logger = logging.root if name == "root" else logging.getLogger(name)
    level, logger.disabled, logger.propagate, handlers = _AS_MADE if wanted is MISSING else wanted
    logger.setLevel(level)
    running = [handler for handler in logger.handlers if handler not in _own_handlers(logger.handlers)]
    logger.handlers[:] = [*_own_handlers(handlers), *running]


_UNTRACKED_ENVIRONMENT = (
    *("PYTEST_CURRENT_TEST", "PYTEST_VERSION"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),  # cache directories
    "TRITON_PTXAS_PATH",  # set once in each process, when Inductor first builds a Triton kernel: torch's assembler
)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # deleted meanwhile
        return "(deleted)"


ENVIRONMENT = Settings(
    watched.VARIABLE,
    lambda: dict(os.environ),
    lambda name, value: watched.set_entry(os.environ, name, value),
    # PyTorch uses variables with this prefix for its own child processes and generated code.
    lambda name: name in _UNTRACKED_ENVIRONMENT or name.startswith("_TORCH"),
)
WORKING_DIRECTORY = State("working directory", _working_directory, os.chdir)

#: Restored first, since they would affect each call and import that follows.
FIRST: tuple[Watched, ...] = (
    State("trace function", sys.gettrace, sys.settrace, watched.same_object),
    State("profile function", sys.getprofile, sys.setprofile, watched.same_object),
)


def _umask() -> int:
    mask = os.umask(0o077)  # the only way to read it; files made meanwhile are private
    os.umask(mask)
    return mask


_SIGNALS = tuple(signal.valid_signals())


def _is_time_limit(handler: Any) -> bool:
    """Say whether a signal handler is the time limit of a test phase, which is set and removed with the phase."""
    return getattr(handler, "__module__", "") == "pytest_regional._base.limits"


def _signal_handlers() -> dict[str, Any]:
    handlers = {str(number): signal.getsignal(number) for number in _SIGNALS}
    return {number: handler for number, handler in handlers.items() if not _is_time_limit(handler)}


def _set_signal_handler(number: str, handler: Any) -> None:
    if handler is None:
        raise RuntimeError(f"the handler of signal {number} was not Python's, so it cannot be restored")
    signal.signal(int(number), handler)


def _same_handler(one: Any, other: Any) -> bool:
    # A missing one is replaced by a time limit, which restores it.
    return one == other or watched.same_object(one, other) or MISSING in (one, other)


def _stream(name: str) -> State:
    """Return the stream ``sys.name``: pytest's while it captures, otherwise the interpreter's.

    An interrupted run tears down its fixtures after capturing has ended: restoring pytest's stream would restore a
    closed one.
    """

    def same(before: Any, now: Any) -> bool:
        is_pytests = type(before).__module__.startswith("_pytest.")
        return watched.same_object(before, now) or (now is getattr(sys, f"__{name}__") and is_pytests)

    return State(f"sys.{name}", lambda: getattr(sys, name), lambda stream: setattr(sys, name, stream), same)


@contextlib.contextmanager
def streams_kept_open() -> Iterator[Mapping[str, Leak]]:
    """Keep standard output and error open; yield those that the body tries to close, by name.

    pytest captures with one file for the whole run, and could not start another test once it is closed.
    """
    closed: dict[str, Leak] = {}

    def close(name: str, result: Any = None) -> Any:
        closed[name] = Leak(f"sys.{name}", "open", "closed")
        return result

    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            buffer = getattr(stream, "buffer", None)
            if not isinstance(stream, io.TextIOWrapper) or not hasattr(buffer, "__dict__"):
                continue
            # Closing the stream closes its buffer.
            for thing, method, instead in (
                (buffer, "close", functools.partial(close, name)),
                (stream, "detach", functools.partial(close, name, buffer)),
            ):
                if method not in vars(thing):
                    vars(thing)[method] = instead
                    stack.callback(vars(thing).pop, method, None)
        yield closed


def _alarm_is_set() -> bool:
    """Say whether an alarm is set that is not the time limit of this test."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0 and not _is_time_limit(signal.getsignal(signal.SIGALRM))


def _stop_alarm(wanted: bool) -> None:
    if wanted:
        raise RuntimeError("the test removed an alarm that was set before it")
    signal.setitimer(signal.ITIMER_REAL, 0)


def _set_collector(wanted: tuple[Any, ...]) -> None:
    enabled, thresholds, debug, callbacks = wanted
    (gc.enable if enabled else gc.disable)()
    gc.set_threshold(*thresholds)
    gc.set_debug(debug)
    gc.callbacks[:] = _with_those_of_packages(callbacks, gc.callbacks)


def _same_collector(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return one[:3] == other[:3] and _with_those_of_packages(one[3], other[3]) == other[3]


def _with_those_of_packages(callbacks: list[Any], now: list[Any]) -> list[Any]:
    # Hypothesis, for one, adds its callback once in a process, at the first property test.
    added = [each for each in now if each not in callbacks and hasattr(each, "__code__")]
    return [*callbacks, *(each for each in added if not watched.is_a_tests(None, each, watched.imported_modules()))]


_fault_file = 2


def write_faults_to(descriptor: int) -> None:
    """Set the file for stack traces of crashes, if a test has disabled the handler: pytest captures standard error."""
    global _fault_file
    _fault_file = descriptor


def _list(name: str) -> State:
    """Return the list ``sys.name``, restored in place."""

    def write(wanted: list[Any]) -> None:
        getattr(sys, name)[:] = wanted

    return State(f"sys.{name}", lambda: list(getattr(sys, name)), write)


def _decimal() -> tuple[Any, ...]:
    now = decimal.getcontext()
    traps = tuple(trap for trap, is_set in now.traps.items() if is_set)
    return now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, traps


def _set_decimal(wanted: tuple[Any, ...]) -> None:
    prec, rounding, e_min, e_max, capitals, clamp, traps = wanted
    decimal.setcontext(decimal.Context(prec, rounding, e_min, e_max, capitals, clamp, [], list(traps)))


def _limits() -> dict[str, tuple[int, int]]:
    names = [name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_DATA"]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _set_event_loop_policy(policy: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # removed in Python 3.16, with policies
        asyncio.set_event_loop_policy(policy)


def _same_policy(before: Any, now: Any) -> bool:
    """Python creates the default policy at first use."""
    return before is now or (before is None and type(now).__name__.lstrip("_") == "UnixDefaultEventLoopPolicy")


_PATCHED = (builtins, os, os.path, random, subprocess, tempfile, threading, time, numpy, numpy.random)


@functools.lru_cache(maxsize=1)
def _torchs(imported: frozenset[str]) -> tuple[str, ...]:
    of_packages = (name for name in imported if name.partition(".")[0] in ("torch", "numpy", "triton"))
    return tuple(name for name in of_packages if not name.startswith(GENERATED_MODULES))


class _TorchModules:
    """Modules of PyTorch, numpy and triton that were replaced or removed; added ones are no leak."""

    def read(self) -> dict[str, Any]:
        names = _torchs(watched.imported_modules())
        return dict(zip(names, map(sys.modules.get, names), strict=True))

    def differences(self, before: dict[str, Any]) -> Iterator[Leak]:
        if all(map(is_, map(sys.modules.get, before), before.values())):
            return
        for name, was in before.items():
            now = sys.modules.get(name, MISSING)
            if now is not was and was is not None:
                yield Leak(f"sys.modules[{name}]", was, now)

    def restore(self, before: dict[str, Any]) -> None:
        sys.modules.update((name, module) for name, module in before.items() if module is not None)


#: Without Python's random numbers, which are seeded for each test; see ``seed_everything``.
INTERPRETER: tuple[Watched, ...] = (
    _TorchModules(),
    watched.Contents(
        lambda: {module.__name__: module for module in _PATCHED},
        watched.is_a_tests,
        watched.set_attribute,
        watched.is_patched,
    ),
    watched.Contents(lambda: {"copyreg.dispatch_table": copyreg.dispatch_table}, watched.is_a_tests, watched.set_entry),
    ENVIRONMENT,
    WORKING_DIRECTORY,
    State("umask", _umask, os.umask),
    Settings("signal handler ", _signal_handlers, _set_signal_handler, same=_same_handler),
    State("alarm", _alarm_is_set, _stop_alarm, lambda before, now: before or not now),
    State(
        "garbage collector",
        lambda: (gc.isenabled(), gc.get_threshold(), gc.get_debug(), list(gc.callbacks)),
        _set_collector,
        _same_collector,
    ),
    State(
        "fault handler",
        faulthandler.is_enabled,
        lambda enabled: faulthandler.enable(_fault_file) if enabled else faulthandler.disable(),
    ),
    _list("path"),
    _list("argv"),
    _list("meta_path"),
    watched.set_by_imports("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    State("switch interval", sys.getswitchinterval, sys.setswitchinterval),
    *(watched.attribute(sys, name) for name in ("excepthook", "unraisablehook", "displayhook", "breakpointhook")),
    *(_stream(name) for name in ("stdin", "stdout", "stderr")),
    watched.attribute(threading, "excepthook"),
    watched.attribute(warnings, "showwarning"),
    watched.set_by_imports("warning filters", lambda: list(warnings.filters), _set_warning_filters),
    State("logging disabled", lambda: logging.root.manager.disable, logging.disable),
    _Loggers("logger ", _loggers, _set_logger, same=_same_logger),
    State("locale", lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)),
    State("decimal context", _decimal, _set_decimal),
    State("time zone", lambda: (time.tzname, time.timezone, time.altzone), lambda value: time.tzset()),
    Settings("limit ", _limits, lambda name, limits: resource.setrlimit(getattr(resource, name), limits)),
    State(
        "processor affinity",
        lambda: os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        lambda value: os.sched_setaffinity(0, value),
    ),
    State("temporary directory", tempfile.gettempdir, lambda value: setattr(tempfile, "tempdir", value)),
    State(
        "start method of processes",
        lambda: multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        lambda method: multiprocessing.set_start_method(method, force=True),
    ),
    State(
        "event loop policy",
        lambda: getattr(asyncio.events, "_event_loop_policy", None),
        _set_event_loop_policy,
        _same_policy,
    ),
    State("socket timeout", socket.getdefaulttimeout, socket.setdefaulttimeout),
    State("tracemalloc", tracemalloc.is_tracing, lambda traces: (tracemalloc.start if traces else tracemalloc.stop)()),
    State("numpy's handling of errors", numpy.geterr, lambda value: numpy.seterr(**value)),
    State(
        "numpy's print options",
        lambda: {name: value for name, value in numpy.get_printoptions().items() if name != "override_repr"},
        lambda value: numpy.set_printoptions(**value),
    ),
)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the generators of Python, numpy and torch."""
    saved = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(saved[0])
        numpy.random.set_state(saved[1])
        torch.set_rng_state(saved[2])
