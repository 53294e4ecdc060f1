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
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_regional.plugin import options, workers

#: What the name of a run's folder begins with.
PREFIX = "pytest-regional-"

_LOCK = "lock"


def hold(folder: Path) -> Callable[[], None]:
    """Lock ``folder`` until the returned function is called; on Windows there is no lock.

    Raises:
        OSError: the file cannot be written.
    """
    if sys.platform == "win32":
        return lambda: None
    # Locked under another name, since another run must not find the lock free.
    beside = folder / f"{_LOCK}-{os.getpid()}"
    number = os.open(beside, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    fcntl.flock(number, fcntl.LOCK_EX)
    beside.rename(folder / _LOCK)
    return lambda: os.close(number)


def remove_folders() -> None:
    """Remove the directories of this user's runs that died."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):  # another run removes it as well, or it cannot be removed
                    _remove_if_dead(Path(entry.path))


def _remove_if_dead(folder: Path) -> None:
    if sys.platform == "win32":
        return
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    number = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(number)


#: How xdist workers find the controller's folder; they inherit the environment.
FOLDER_VARIABLE = "PYTEST_REGIONAL_FOLDER"

#: What names the store of compiled kernels to all processes of the run: `harness.kernel_store.files.VARIABLE`.
KERNEL_STORE_VARIABLE = "PYTEST_REGIONAL_KERNEL_STORE"

FOLDER: pytest.StashKey[Path] = pytest.StashKey()


def prepare(config: pytest.Config) -> None:
    """Make this process's directory and set the environment that compilers read once."""
    inherited = os.environ.get(FOLDER_VARIABLE)
    # A run that a test of an unrelated worker starts inherits that worker's name, and is none of a run of ours.
    worker = os.environ.get("PYTEST_XDIST_WORKER") if inherited else None
    root = Path(inherited) if worker and inherited else _new_folder(config)
    folder = root / (worker or "main")
    folder.mkdir(exist_ok=True)
    config.stash[FOLDER] = folder
    # A run that a test of a worker starts takes itself for a worker as well: its folder is in that worker's.
    _set_until_the_end(config, {**_values(folder if worker else root, folder), **_gpu(config), **_kernel_store(config)})


def _new_folder(config: pytest.Config) -> Path:
    remove_folders()
    root = Path(tempfile.mkdtemp(prefix=PREFIX)).absolute()
    let_go = hold(root)
    config.add_cleanup(let_go)
    config.add_cleanup(lambda: _remove(root))
    return root


def remove(config: pytest.Config) -> None:
    """Remove the run's folder now, for a process that ends without the end of the run."""
    _remove(config.stash[FOLDER].parent)


def _remove(root: Path) -> None:
    """Remove the run's folder; where that fails the run is over all the same, and its result stands."""
    try:
        shutil.rmtree(root)
    except OSError as error:
        if root.exists():  # else a test was faster
            print(f"pytest-regional: {root} could not be removed, remove it by hand: {error}", file=sys.stderr)


def _values(named: Path, folder: Path) -> dict[str, str]:
    caches = folder / "session"
    values = {
        FOLDER_VARIABLE: str(named),
        "TORCHINDUCTOR_CACHE_DIR": str(caches),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }
    # A pool of compile processes costs seconds to start and fights the other workers for cores; say otherwise by
    # setting the variable yourself. Precompiled headers stay on: Inductor keeps them outside of all cache folders, once
    # for each compiler and set of flags, and without them a kernel takes three times as long (3.9 s, not 1.3).
    # A thread that waits for others turns round for a while, and keeps a core from another worker, whose threads then
    # wait for it: two processes on two cores took up to thirteen times as long (60 s, not 4.5). OpenMP reads this when
    # it is loaded, with torch. The number of threads stays, since Inductor generates code for it.
    defaults = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return {**{k: v for k, v in defaults.items() if k not in os.environ}, **values}


def _gpu(config: pytest.Config) -> dict[str, str]:
    gpu = None if options.text_of(config, "gpus") == "all" else workers.for_worker(os.environ)
    return {} if gpu is None else {workers.VARIABLE: gpu}


def _kernel_store(config: pytest.Config) -> dict[str, str]:
    named = options.text_of(config, "kernel_store")
    if not named:
        return {}
    return {KERNEL_STORE_VARIABLE: named if named == "off" else str(config.rootpath / named)}


def _set_until_the_end(config: pytest.Config, values: dict[str, str]) -> None:
    saved = {name: os.environ.get(name) for name in values}

    def put_back() -> None:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    os.environ.update(values)
    config.add_cleanup(put_back)
