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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import torch

from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._base.processes import children, is_of_inductors_pool, is_server, runs
from pytest_regional._torch import caches, config, dynamo
from pytest_regional.harness.isolation.interpreter import random_state_kept, streams_kept_open
from pytest_regional.harness.isolation.snapshot import Snapshot
from pytest_regional.harness.isolation.watched import MISSING, Leak, set_entry

__all__ = ["MISSING", "Leak", "Snapshot", "isolated", "random_state_kept"]


def seed_torch(seed: int) -> None:
    """Seed the default generators of the CPU and of all devices, as ``torch.manual_seed`` does.

    Where no accelerator is available, ``torch.manual_seed`` (2.11 to 2.15) notes for CUDA, XPU and MTIA that they are
    to be seeded once they are used, each note with the stack as text: a millisecond, for devices that never come.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators (all devices)."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    seed_torch(seed)


def clear_caches() -> None:
    """Clear everything compiled in this process; files on disk stay."""
    dynamo.reset_dynamo()
    caches.clear_inductor_caches()
    caches.clear_portable()
    dynamo.clear_compile_counters()


@dataclass
class Isolation:
    """The isolation of one test; ``leaks`` is filled when it ends."""

    leaks: tuple[Leak, ...] = ()


@contextlib.contextmanager
def isolated(folder: Path, seed: int, *, shared_cache: bool = False) -> Iterator[Isolation]:
    """Isolate the body: see the module's docstring.

    ``folder`` is for the test's compiler caches; it is created if missing, and never deleted. With ``shared_cache``,
    cache servers named in the environment may be used.
    """
    isolation = Isolation()
    with gpu_isolated(), cache_folder(folder), contextlib.nullcontext() if shared_cache else _no_shared_cache():
        clear_caches()
        # A thread of a subclass may compare equal; they are kept, so that no ``id`` recurs.
        threads = {id(thread): thread for thread in threading.enumerate()}
        snapshot, processes = Snapshot.take(), set(children(os.getpid()))
        with random_state_kept(), streams_kept_open() as closed:
            seed_everything(seed)
            try:
                with snapshot.without_imports():
                    yield isolation
            finally:
                changed = snapshot.restore()
                left = [f"thread {name}" for name in _leaked_threads(threads)]
                left += [f"process {name}" for name in _leaked_processes(processes)]
                isolation.leaks = (*changed, *(Leak(name, "not there", "running", restored=False) for name in left))
                clear_caches()
        isolation.leaks += tuple(closed.values())


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
def _environment(values: Mapping[str, Any]) -> Iterator[None]:
    """Set variables, or remove them for :data:`MISSING`, while the context lasts."""
    saved = {name: os.environ.get(name, MISSING) for name in values}
    for name, value in values.items():
        set_entry(os.environ, name, value)
    try:
        yield
    finally:
        for name, value in saved.items():
            set_entry(os.environ, name, value)


@contextlib.contextmanager
def cache_folder(folder: Path) -> Iterator[None]:
    """Set every compiler cache to ``folder`` while the context lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    with _environment(cache_variables(folder)):
        yield


def clear_folder(folder: Path, *, keep_code: bool = False) -> None:
    """Empty a directory that this harness owns (the directory itself stays).

    With ``keep_code``, files of generated code and compiled kernels stay. Their names are hashes of their contents: no
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


#: Environment variables that name a cache server, which other tests and machines write to.
_SHARED_CACHE_VARIABLES = ("TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_REDIS_URL")
_SHARED_CACHE_SETTINGS = {config.INDUCTOR: "fx_graph_remote_cache", config.FUNCTORCH: "enable_remote_autograd_cache"}


@contextlib.contextmanager
def _no_shared_cache() -> Iterator[None]:
    """Disable cache servers while the context lasts; settings made inside take effect."""
    with _environment(dict.fromkeys(_SHARED_CACHE_VARIABLES, MISSING)), contextlib.ExitStack() as stack:
        for module, setting in _SHARED_CACHE_SETTINGS.items():
            if config.config_values(module)[setting]:
                stack.enter_context(config.patched_config(module, {setting: False}))
        yield


#: Seconds that new threads and processes get to end.
_GRACE_SECONDS = 0.2

#: Packages whose threads serve the whole process once they are needed: worker pools, queues to children.
_SERVICE_PACKAGES = ("torch", "concurrent", "multiprocessing", "tqdm", "execnet", "xdist")


def _leaked_threads(before: Mapping[int, threading.Thread]) -> list[str]:
    """Return the names of running threads that are not in ``before``, except for those of torch and of pools."""
    # Threads that Python did not start, such as autograd's on a GPU, cannot be joined, and are torch's to end.
    new = [
        thread
        for thread in threading.enumerate()
        if id(thread) not in before and not isinstance(thread, threading._DummyThread)
    ]
    deadline = time.monotonic() + _GRACE_SECONDS
    for thread in new:
        thread.join(max(0.0, deadline - time.monotonic()))
    frames = sys._current_frames()
    return [
        thread.name
        for thread in new
        if thread.is_alive() and thread.ident in frames and not _is_service(frames[thread.ident])
    ]


def _is_service(frame: FrameType | None) -> bool:
    """Say whether the first frame above ``threading`` is in one of :data:`_SERVICE_PACKAGES`."""
    modules = []
    while frame is not None:
        modules.append(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.f_back
    beginning = next((module for module in reversed(modules) if module != "threading"), "")
    return beginning in _SERVICE_PACKAGES


def _leaked_processes(before: set[int]) -> list[str]:
    """Return the names of running child processes not in ``before``, except for those of Inductor and of pools.

    Linux only; empty elsewhere.
    """
    new = set(children(os.getpid())) - before
    deadline = time.monotonic() + _GRACE_SECONDS
    while any(map(runs, new)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [_name(number) for number in sorted(new) if runs(number) and not _is_of_a_pool(number)]


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


_lost = ""


def lost() -> str:
    """Return why the GPU is lost to this process, or an empty string. A lost context never comes back."""
    return _lost


@contextlib.contextmanager
def gpu_isolated() -> Iterator[None]:
    """Give what runs inside the GPU as it is, and put back what it leaves: nothing where no GPU has been used.

    At the end all of its work is waited for: what goes wrong on the GPU goes wrong here and not in a later test.
    Inside, cuDNN computes float32 in float32 (:func:`_float32_in_cudnn`).

    Raises:
        RegionalRuntimeError: an error such as a failed ``device_assert`` ended the GPU context of this process.
    """
    was_used = torch.cuda.is_initialized()
    if was_used:
        device, generators = torch.cuda.current_device(), torch.cuda.get_rng_state_all()
        streams = [torch.cuda.current_stream(index) for index in range(torch.cuda.device_count())]
    try:
        with _float32_in_cudnn() if torch.cuda.is_available() else contextlib.nullcontext():
            yield
    finally:
        if torch.cuda.is_initialized():
            _wait_for_gpu()
            if was_used:
                for stream in streams:
                    torch.cuda.set_stream(stream)
                torch.cuda.set_device(device)
                torch.cuda.set_rng_state_all(generators)
            torch.cuda.empty_cache()


@contextlib.contextmanager
def _float32_in_cudnn() -> Iterator[None]:
    """Switch off ``torch.backends.cudnn.allow_tf32``, which is on by default, as PyTorch does for its tests.

    With it, cuDNN chooses between float32 and TF32 for each convolution, by its size and layout: eager may get one and
    the compiled program the other, a thousand times as far from the truth.
    """
    flags = torch.backends.cudnn
    try:
        before = flags.allow_tf32
    except RuntimeError:  # convolutions and recurrent layers differ: somebody chose
        yield
        return
    flags.allow_tf32 = False
    try:
        yield
    finally:
        flags.allow_tf32 = before


def _wait_for_gpu() -> None:
    global _lost
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        culprit = os.environ.get("PYTEST_CURRENT_TEST", "this process").partition(" (")[0]
        _lost = _lost or f"{culprit} left the GPU with an error: {first}"
        raise RegionalRuntimeError(
            f"{_lost}. The context does not recover: tests on the GPU fail in this process from here on. Run "
            f"the test alone, with CUDA_LAUNCH_BLOCKING=1 to see where"
        ) from error
