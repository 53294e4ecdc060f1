"""Run one test with PyTorch in a fresh state: fresh caches, cleared counters, a seed, and everything restored.

Changes that a test leaves are restored and reported. Nothing here deletes a directory; each belongs to its creator.

* ``interpreter``: the watched state of Python, one row per setting; ``watched``: the types of rows.
* ``snapshot``: the rows of PyTorch, and all rows before and after a test.
* ``leaks``: caches on disk and on servers, leaked threads and processes. ``messages``: warnings and logging.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_regional._torch import caches, dynamo
from pytest_regional._torch.caches import clear_portable
from pytest_regional.harness.devices.device import gpu_isolated
from pytest_regional.harness.isolation.interpreter import CACHE_VARIABLES, random_state_kept, streams_kept_open
from pytest_regional.harness.isolation.leaks import (
    SHARED_CACHE_VARIABLES,
    cache_folder,
    clear_folder,
    leaked_processes,
    leaked_threads,
    moved_caches,
    no_shared_cache,
    processes,
    threads,
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
