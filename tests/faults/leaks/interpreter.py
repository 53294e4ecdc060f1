"""Settings of Python, numpy and the operating system."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import decimal
import faulthandler
import gc
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

import numpy

from tests.faults.leaks.kinds import KEPT, kind, of, other


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@kind("umask", look=umask)
def leave_umask():
    os.umask(0o777)


@kind("working directory", look=os.getcwd)
def leave_folder():
    os.chdir("/")


@kind("environment", look=lambda: os.environ.get("LEFT_BY_A_TEST"))
def leave_environment():
    os.environ["LEFT_BY_A_TEST"] = "1"


@kind("signal handler", look=lambda: signal.getsignal(signal.SIGUSR2))
def leave_signal_handler():
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


@kind("alarm", look=lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0)
def leave_alarm():
    signal.setitimer(signal.ITIMER_REAL, 1000)


@kind("stacks later", look=lambda: None)
def leave_stacks_later():
    """Leave what ends the process later: nothing shows it before."""
    faulthandler.dump_traceback_later(0.5, exit=True)


@kind("garbage collector off", look=gc.isenabled)
def leave_gc_off():
    gc.disable()


@kind("thresholds of the collector", look=gc.get_threshold)
def leave_gc_thresholds():
    gc.set_threshold(5, 6, 7)


@kind("callback of the collector", look=lambda: len(gc.callbacks))
def leave_gc_callback():
    gc.callbacks.append(lambda phase, info: None)


@kind("fault handler", look=faulthandler.is_enabled)
def leave_fault_handler():
    if faulthandler.is_enabled():
        faulthandler.disable()
    else:
        faulthandler.enable(2)


@kind("sys.path", look=lambda: list(sys.path))
def leave_path():
    sys.path.insert(0, "/left")


@kind("sys.path emptied", look=lambda: list(sys.path))
def leave_empty_path():
    sys.path.clear()


class Importer:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None


@kind("sys.meta_path", look=lambda: list(sys.meta_path))
def leave_importer():
    sys.meta_path.insert(0, Importer)


@kind("trace function", look=sys.gettrace)
def leave_trace():
    sys.settrace(lambda frame, event, argument: None)


@kind("profile function", look=sys.getprofile)
def leave_profile():
    sys.setprofile(lambda frame, event, argument: None)


@kind("sys.excepthook", look=of(sys, "excepthook"))
def leave_excepthook():
    sys.excepthook = other


@kind("threading.excepthook", look=of(threading, "excepthook"))
def leave_thread_hook():
    threading.excepthook = other


@kind("recursion limit", look=sys.getrecursionlimit)
def leave_recursion_limit():
    sys.setrecursionlimit(300)


@kind("sys.stdout", look=of(sys, "stdout"))
def leave_stdout():
    KEPT.append(sys.stdout)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


@kind("closed output", look=lambda: sys.stdout.closed)
def close_stdout():
    sys.stdout.close()


@kind("closed errors", look=lambda: sys.stderr.closed)
def close_stderr():
    sys.stderr.buffer.close()


@kind("detached output", look=lambda: sys.stdout.writable())
def detach_stdout():
    sys.stdout.detach()


@kind("sys.argv", look=lambda: list(sys.argv))
def leave_arguments():
    sys.argv[:] = ["left"]


@kind("warning filters", look=lambda: len(warnings.filters))
def leave_warnings():
    warnings.simplefilter("error")


@kind("warnings.showwarning", look=of(warnings, "showwarning"))
def leave_showwarning():
    warnings.showwarning = other


@kind("logging level", look=lambda: logging.getLogger().level)
def leave_logging_level():
    logging.getLogger().setLevel(logging.CRITICAL)


@kind("logging handler", look=lambda: len(logging.getLogger().handlers))
def leave_logging_handler():
    logging.getLogger().addHandler(logging.NullHandler())


@kind("logging disabled", look=lambda: logging.root.manager.disable)
def leave_logging_disabled():
    logging.disable(logging.CRITICAL)


@kind("locale", look=lambda: locale.setlocale(locale.LC_ALL))
def leave_locale():
    for name in ("C.UTF-8", "POSIX", "C", ""):
        with contextlib.suppress(locale.Error):
            if locale.setlocale(locale.LC_ALL) != locale.setlocale(locale.LC_ALL, name):
                return


@kind("decimal context", look=lambda: decimal.getcontext().prec)
def leave_decimal():
    decimal.getcontext().prec = 3


@kind("time zone", look=lambda: time.tzname)
def leave_time_zone():
    os.environ["TZ"] = "Pacific/Auckland"
    time.tzset()


@kind("limit on files", look=lambda: resource.getrlimit(resource.RLIMIT_NOFILE))
def leave_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 100), hard))


@kind("affinity", look=lambda: os.sched_getaffinity(0))
def leave_affinity():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@kind("temporary directory", look=lambda: tempfile.gettempdir())
def leave_temporary_folder():
    tempfile.tempdir = "/left"


@kind("start method of processes", look=lambda: multiprocessing.get_start_method())
def leave_start_method():
    multiprocessing.set_start_method("spawn", force=True)


@kind("event loop policy", look=lambda: type(asyncio.get_event_loop_policy()).__name__)
def leave_event_loop_policy():
    class Policy(asyncio.DefaultEventLoopPolicy):
        pass

    asyncio.set_event_loop_policy(Policy())


@kind("socket timeout", look=socket.getdefaulttimeout)
def leave_socket_timeout():
    socket.setdefaulttimeout(0.001)


@kind("tracemalloc", look=tracemalloc.is_tracing)
def leave_tracemalloc():
    tracemalloc.start()


@kind("switch interval", look=sys.getswitchinterval)
def leave_switch_interval():
    sys.setswitchinterval(1.0)


@kind("random numbers of Python", look=lambda: hash(random.getstate()))
def leave_random():
    random.seed(3)


@kind("random numbers of numpy", look=lambda: int(numpy.random.get_state()[1].sum()))
def leave_numpy_random():
    numpy.random.seed(3)


@kind("errors of numpy", look=numpy.geterr)
def leave_numpy_errors():
    numpy.seterr(all="raise")


@kind("print options of numpy", look=lambda: numpy.get_printoptions()["precision"])
def leave_numpy_print_options():
    numpy.set_printoptions(precision=2)


VARIABLE = contextvars.ContextVar("left", default=0)


@kind("context variable", look=VARIABLE.get)
def leave_context_variable():
    VARIABLE.set(1)


@kind("function at exit", look=atexit._ncallbacks)
def leave_function_at_exit():
    atexit.register(int)


@kind("thread", look=threading.active_count)
def leave_thread():
    threading.Thread(target=time.sleep, args=(60,), name="left", daemon=True).start()


@kind("process", look=lambda: [process.poll() for process in KEPT if isinstance(process, subprocess.Popen)])
def leave_process():
    KEPT.append(subprocess.Popen(["sleep", "60"]))
