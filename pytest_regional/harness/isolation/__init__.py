"""Run one test with PyTorch in a fresh state: fresh caches, cleared counters, a seed, and everything restored.

Changes that a test leaves are restored and reported, and caches, threads and processes that it leaks are reported.
Nothing here deletes a directory; each belongs to its creator.

* ``interpreter``: the watched state of Python, one row per setting; ``watched``: the types of rows.
* ``snapshot``: the rows of PyTorch, and all rows before and after a test.

"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pytest_regional._base.processes import children, is_of_inductors_pool, is_server, runs
from pytest_regional._torch import caches, config, dynamo
from pytest_regional._torch.caches import clear_portable
from pytest_regional.harness.devices.device import gpu_isolated
from pytest_regional.harness.isolation.interpreter import (
    CACHE_VARIABLES,
    random_state_kept,
    set_environment,
    streams_kept_open,
)
from pytest_regional.harness.isolation.snapshot import Snapshot
from pytest_regional.harness.isolation.watched import MISSING, Leak


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators (all devices)."""
    import numpy

    from pytest_regional.harness.inputs import seed_torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    seed_torch(seed)


def clear_caches(*, counters: bool = True) -> None:
    """Clear everything compiled in this process; files on disk stay."""
    dynamo.reset_dynamo()
    caches.clear_inductor_caches()
    clear_portable()
    if counters:
        dynamo.clear_compile_counters()


@dataclass
class Isolation:
    """The isolation of one test; ``leaks`` is filled when it ends."""

    folder: Path
    seed: int
    leaks: tuple[Leak, ...] = ()


@contextlib.contextmanager
def isolated(folder: Path, seed: int, *, shared_cache: bool = False) -> Iterator[Isolation]:
    """Isolate the body: see the module's docstring.

    Args:
        folder: the directory of this test's compiler caches; created if missing, never deleted.
        seed: for Python's, NumPy's and torch's generators.
        shared_cache: whether cache servers named in the environment may be used.
    """
    isolation = Isolation(folder, seed)
    with gpu_isolated(), cache_folder(folder), contextlib.nullcontext() if shared_cache else no_shared_cache():
        clear_caches()
        snapshot, running, children = Snapshot.take(), threads(), processes()
        with random_state_kept(), streams_kept_open() as closed:
            seed_everything(seed)
            try:
                with snapshot.without_imports():
                    yield isolation
            finally:
                changed = snapshot.restore()
                left = [f"thread {name}" for name in leaked_threads(running)]
                left += [f"process {name}" for name in leaked_processes(children)]
                isolation.leaks = (*changed, *(Leak(name, "not there", "running", restored=False) for name in left))
                clear_caches()
        isolation.leaks += tuple(closed)


#: Environment variables that name a cache server, which other tests and machines write to.
SHARED_CACHE_VARIABLES = ("TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_REDIS_URL")

_SHARED_CACHE_SETTINGS = {
    config.INDUCTOR: "fx_graph_remote_cache",
    config.FUNCTORCH: "enable_remote_autograd_cache",
}


def cache_variables(folder: Path | str) -> dict[str, str]:
    """Return the variables that put every compiler cache into ``folder``."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(Path(folder, "triton"))}


def moved_caches(folder: Path) -> dict[str, str]:
    """Return the variables by which a test moved its caches out of ``folder``; Triton's follows Inductor's."""
    isolated = cache_variables(folder)
    moved = {name: os.environ[name] for name in isolated if os.environ.get(name, isolated[name]) != isolated[name]}
    inductor = moved.get("TORCHINDUCTOR_CACHE_DIR")
    return {**cache_variables(inductor), **moved} if inductor else moved


@contextlib.contextmanager
def cache_folder(folder: Path) -> Iterator[Path]:
    """Set every compiler cache to ``folder`` while the context lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    values = cache_variables(folder)
    saved = {name: os.environ.get(name, MISSING) for name in values}
    os.environ.update(values)
    try:
        yield folder
    finally:
        for name, value in saved.items():
            set_environment(name, value)


def clear_folder(folder: Path, *, keep_code: bool = False) -> None:
    """Empty a directory that this harness owns (the directory itself stays).

    Args:
        folder: the directory.
        keep_code: keep files of generated code and compiled kernels. Their names are hashes of their contents: no
            lookup finds them, but the same code need not be built again.
    """
    folder.mkdir(parents=True, exist_ok=True)  # the test may have removed it
    for entry in folder.iterdir():
        if keep_code and (len(entry.name) == 2 or entry.name in _CODE_FOLDERS):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


#: Next to directories of two letters, the prefix of a hash; Inductor's names (2.11 to 2.15).
_CODE_FOLDERS = ("precompiled_headers", "triton", "locks")


@contextlib.contextmanager
def no_shared_cache() -> Iterator[None]:
    """Disable cache servers while the context lasts; settings made inside take effect."""
    saved = {name: os.environ.pop(name, MISSING) for name in SHARED_CACHE_VARIABLES}
    try:
        with contextlib.ExitStack() as stack:
            for module, setting in _SHARED_CACHE_SETTINGS.items():
                if config.config_values(module)[setting]:
                    stack.enter_context(config.patched_config(module, {setting: False}))
            yield
    finally:
        for name, value in saved.items():
            set_environment(name, value)


#: Seconds that new threads and processes get to end.
_GRACE_SECONDS = 0.2

#: Packages whose threads serve the whole process once they are needed: worker pools, queues to children.
_SERVICE_PACKAGES = ("torch", "concurrent", "multiprocessing", "tqdm", "execnet", "xdist")


def threads() -> frozenset[int]:
    """Return the running threads."""
    return frozenset(thread.ident for thread in threading.enumerate() if thread.ident is not None)


def leaked_threads(before: frozenset[int]) -> tuple[str, ...]:
    """Return the names of running threads that are not in ``before``, except for those of torch and of pools."""
    # Threads that Python did not start, such as autograd's on a GPU, cannot be joined, and are torch's to end.
    new = [
        thread
        for thread in threading.enumerate()
        if thread.ident not in before and not isinstance(thread, threading._DummyThread)
    ]
    deadline = time.monotonic() + _GRACE_SECONDS
    for thread in new:
        thread.join(max(0.0, deadline - time.monotonic()))
    frames = sys._current_frames()
    return tuple(
        thread.name
        for thread in new
        if thread.is_alive() and thread.ident in frames and not _is_service(frames[thread.ident])
    )


def _is_service(frame: FrameType | None) -> bool:
    """Say whether the first frame above ``threading`` is in one of :data:`_SERVICE_PACKAGES`."""
    modules = []
    while frame is not None:
        modules.append(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.f_back
    beginning = next((module for module in reversed(modules) if module != "threading"), "")
    return beginning in _SERVICE_PACKAGES


def processes() -> frozenset[int]:
    """Return the running child processes. Linux only; empty elsewhere."""
    return frozenset(children(os.getpid()))


def leaked_processes(before: frozenset[int]) -> tuple[str, ...]:
    """Return the names of running processes that are not in ``before``, except for those of Inductor and of pools."""
    new = processes() - before
    deadline = time.monotonic() + _GRACE_SECONDS
    while any(map(runs, new)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return tuple(_name(number) for number in sorted(new) if runs(number) and not _is_of_a_pool(number))


def _name(number: int) -> str:
    with contextlib.suppress(OSError):
        return f"{Path(f'/proc/{number}/comm').read_text(encoding='utf-8', errors='replace').strip()} ({number})"
    return str(number)


def _is_of_a_pool(number: int) -> bool:
    """Say whether a process is a worker of a pool, or was forked from this one as such workers are."""
    try:
        command = Path(f"/proc/{number}/cmdline").read_bytes()
        forked = command == Path("/proc/self/cmdline").read_bytes()
    except OSError:
        return True  # it has ended
    return forked or b"multiprocessing" in command or is_of_inductors_pool(number) or is_server(number)


__all__ = [
    "CACHE_VARIABLES",
    "MISSING",
    "SHARED_CACHE_VARIABLES",
    "Isolation",
    "Leak",
    "Snapshot",
    "cache_folder",
    "clear_caches",
    "clear_folder",
    "isolated",
    "moved_caches",
    "no_shared_cache",
    "random_state_kept",
    "seed_everything",
]
