"""The run's own directory, and the environment that torch freezes at its first use.

Set before any conftest can import torch, for this process (the controller, or one xdist worker), and restored when the
run ends. The controller owns the run's directory and is the only process that deletes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_regional.plugin import options, workers

#: What the name of a run's folder begins with.
PREFIX = "pytest-regional-"


def remove_folders() -> None:
    """Remove the directories of this user's runs that died."""
    with contextlib.suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):  # another run removes it as well, or it cannot be removed
                found = folder.lstat()
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                    number = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW)
                    try:
                        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder)
                    finally:
                        os.close(number)


#: How xdist workers find the controller's folder; they inherit the environment.
FOLDER_VARIABLE = "PYTEST_REGIONAL_FOLDER"


FOLDER: pytest.StashKey[Path] = pytest.StashKey()


def prepare(config: pytest.Config) -> None:
    """Make this process's directory and set, until the end, the environment that compilers read once."""
    inherited = os.environ.get(FOLDER_VARIABLE)
    # A run that a test of an unrelated worker starts inherits that worker's name, and is none of a run of ours.
    worker = os.environ.get("PYTEST_XDIST_WORKER") if inherited else None
    if worker and inherited:
        root = Path(inherited)
    else:
        remove_folders()
        root = Path(tempfile.mkdtemp(prefix=PREFIX)).absolute()
        # Locked under another name, since another run must not find the lock free.
        beside = root / f"lock-{os.getpid()}"
        number = os.open(beside, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        fcntl.flock(number, fcntl.LOCK_EX)
        beside.rename(root / "lock")
        config.add_cleanup(lambda: os.close(number))
        config.add_cleanup(lambda: remove(root))
    folder = config.stash[FOLDER] = root / (worker or "main")
    folder.mkdir(exist_ok=True)
    # A pool of compile processes costs seconds to start and fights the other workers for cores; say otherwise by
    # setting the variable yourself. Precompiled headers stay on: Inductor keeps them outside of all cache folders, once
    # for each compiler and set of flags, and without them a kernel takes three times as long (3.9 s, not 1.3).
    # A thread that waits for others turns round for a while, and keeps a core from another worker, whose threads then
    # wait for it: two processes on two cores took up to thirteen times as long (60 s, not 4.5). OpenMP reads this when
    # it is loaded, with torch. The number of threads stays, since Inductor generates code for it.
    environment = pytest.MonkeyPatch()
    config.add_cleanup(environment.undo)
    for name, value in (("TORCHINDUCTOR_COMPILE_THREADS", "1"), ("OMP_WAIT_POLICY", "PASSIVE")):
        environment.setenv(name, os.environ.get(name, value))
    # A run that a test of a worker starts takes itself for a worker as well: its folder is in that worker's.
    environment.setenv(FOLDER_VARIABLE, str(folder if worker else root))
    environment.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "session"))
    environment.setenv("TRITON_CACHE_DIR", str(folder / "session" / "triton"))
    gpu = None if options.text_of(config, "gpus") == "all" else workers.for_worker(os.environ)
    if gpu is not None:
        environment.setenv(workers.VARIABLE, gpu)
    store = options.text_of(config, "kernel_store")
    if store:
        from pytest_regional.harness.kernel_store.files import VARIABLE  # imports no torch

        environment.setenv(VARIABLE, store if store == "off" else str(config.rootpath / store))


def remove(root: Path) -> None:
    """Remove the run's folder; where that fails the run is over all the same, and its result stands."""
    try:
        shutil.rmtree(root)
    except OSError as error:
        if root.exists():  # else a test was faster
            print(f"pytest-regional: {root} could not be removed, remove it by hand: {error}", file=sys.stderr)
