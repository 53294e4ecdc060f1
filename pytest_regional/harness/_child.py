"""The fresh interpreter of ``in_new_process``: ``python -m pytest_regional.harness._child REQUEST ANSWER ASKER``."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import inspect
import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_regional._base import processes
from pytest_regional._base.files import write_whole
from pytest_regional._base.processes import write_when_asked
from pytest_regional.harness.devices.emulated import skipping_unsupported
from pytest_regional.harness.fork_server.server import wait_and_clean_up
from pytest_regional.harness.process import Job
from pytest_regional.harness.regional import harness
from pytest_regional.harness.vacuity import check_backend_leaks, check_fallbacks, compiled_something


@contextlib.contextmanager
def ends_with(asker: int) -> Iterator[None]:
    """Have this process end when the process ``asker`` has, while the block runs."""
    if not hasattr(os, "pidfd_open"):
        yield
        return
    this = os.getpid()
    guard = os.fork()
    if guard == 0:
        try:
            _guard(this, asker)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        if os.getpid() == this:  # a fork of this process leaves the block too
            _end(guard)


def _end(guard: int) -> None:
    # Where code of the user waited for any child, the number may be another process's by now.
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(guard, os.WNOHANG) == (0, 0):
            os.kill(guard, signal.SIGKILL)
            os.waitpid(guard, 0)


def _guard(guarded: int, asker: int) -> None:
    faulthandler.disable()  # a request for the stacks of all processes leaves this one out
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    processes.call_this_a_guard()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a pipe that it kept open would never be at its end
        os.dup2(nothing, stream)
    own = os.pidfd_open(guarded)
    try:
        ended, _, _ = select.select([own, os.pidfd_open(asker)], [], [])
    except ProcessLookupError:
        ended = []  # the asking process died before this line
    if own not in ended:
        processes.end([number for number in processes.with_all_below(guarded) if number != os.getpid()])


def _module(job: Job) -> Any:
    """Import the function's module by name, else from its file under that same name."""
    sys.path.extend(p for p in job.search_path if p not in sys.path)
    if job.file is None:
        return importlib.import_module(job.module)
    found = importlib.util.find_spec(job.module) if "." not in job.module or _parent_exists(job.module) else None
    if found and found.origin and Path(found.origin).samefile(job.file):
        return importlib.import_module(job.module)
    spec = importlib.util.spec_from_file_location(job.module, job.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {job.file}")
    module = sys.modules[job.module] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _parent_exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.rpartition(".")[0]) is not None
    except ModuleNotFoundError:
        return False


def _call(job: Job) -> dict[str, Any]:
    function: Any = _module(job)
    for part in job.qualname.split("."):
        function = getattr(function, part)
    arguments = pickle.loads(job.arguments)
    with harness(**job.harness) as regional:
        os.environ.update(job.moved_caches)
        # What was imported lives as long as the process: never looked at again, it costs no collection any time.
        gc.freeze()
        gc.enable()
        wants_harness = next(iter(inspect.signature(function).parameters), None) == "regional"
        with skipping_unsupported(regional, pytest.skip):
            value = function(regional, *arguments) if wants_harness else function(*arguments)
        compiled = compiled_something(regional)
        answer = {"kind": "value", "value": value, "counters": dict(regional.counters), "compiled": compiled}
        check_fallbacks(regional)
        check_backend_leaks(regional)
    return answer


def _answer(request: Path) -> dict[str, Any]:
    try:
        return _call(pickle.loads(request.read_bytes()))
    except pytest.skip.Exception as skipped:
        return {"kind": "skip", "text": str(skipped)}
    except BaseException:  # noqa: BLE001 - whatever happened here is reported to the parent, SystemExit too
        return {"kind": "error", "text": traceback.format_exc()}


def main() -> None:
    """Read the request, make the call, write the answer in one step so that the parent never reads half of it."""
    write_when_asked()
    request, answer = map(Path, sys.argv[1:3])
    gc.disable()  # until all is imported, a tenth of whose time collections are
    try:
        payload = pickle.dumps(_answer(request))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        payload = pickle.dumps({"kind": "error", "text": f"the returned value cannot be pickled: {error}"})
    write_whole(answer, payload)


if __name__ == "__main__":
    with ends_with(int(sys.argv[3])):
        main()
        # No interpreter teardown, which takes 1.7 of ten seconds once torch and its compilers are loaded.
        wait_and_clean_up()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)
