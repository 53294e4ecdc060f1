"""Where the store is: a folder of the user's own, or none."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path

from pytest_regional._private_folders import NotPrivateError, make_folder, private_folder, private_tree

#: What names the store's folder to every process of a run: a path, or ``off``.
VARIABLE = "PYTEST_REGIONAL_KERNEL_STORE"
OFF = "off"

#: Folders in the store for what compilers and PyTorch themselves look for in a folder, named as Inductor names them.
HEADERS = "precompiled_headers"
PROCESSOR = "processor"


class StoreError(ValueError):
    """A folder that cannot hold the store; the message says why, and what to do."""


class KernelStoreWarning(UserWarning):
    """Something in the kernel store is not used, because somebody else can have written it; it is made again."""


def chosen_folder() -> Path | None:
    """Return the folder of the store that the environment names, or the user's own; ``None`` for no store."""
    named = os.environ.get(VARIABLE, "")
    if named == OFF:
        return None
    return _checked(named or str(default_folder()), explicit=bool(named))


def default_folder() -> Path:
    """Return the user's own (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    # https://specifications.freedesktop.org/basedir-spec: a relative path is to be ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else "~/.cache").expanduser() / "pytest-regional" / "kernels"


@functools.cache
def _checked(folder: str, explicit: bool) -> Path | None:
    try:
        return prepared(Path(folder))
    except StoreError:
        if explicit:
            raise
        # The user's own folder does not do (a home that cannot be written, as in some containers): compile everything.
        return None


def prepared(folder: Path) -> Path:
    """Make ``folder``, for its owner alone, and check that nobody else can write to it: what is there gets executed.

    That it is so now decides whether there is a store. Whoever reads or writes there looks again.

    Raises:
        StoreError: it cannot be made or written, or is not the user's alone.
    """
    try:
        make_folder(folder)
        private_folder(folder)
    except (OSError, RuntimeError) as error:
        raise StoreError(f"{folder} cannot be made: {error}") from error
    except NotPrivateError as error:
        raise StoreError(f"{error.fault}, and what is in it gets executed. {error.remedy}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"{folder} cannot be written to")
    return folder


def folder_for_compilers(name: str, *bases: Path) -> Path | None:
    """Return the folder ``name`` for files that compilers look for by themselves: in the first of ``bases`` that does.

    Nobody reads them through :class:`.files.KernelFiles`, so all that is there has to be this user's, and afterwards
    nobody else can reach it.

    Warns:
        KernelStoreWarning: somebody else can have written to each of them, and there is no such folder (``None``).
    """
    faults = []
    for base in bases:
        try:
            make_folder(base / name)
            folder = Path(private_tree(base / name))
            folder.chmod(0o700)  # PyTorch makes files there as the umask says
        except (NotPrivateError, OSError) as error:
            faults.append(str(error))
        else:
            return folder
    warn_once(f"compiles take longer, as there is no folder for {name.replace('_', ' ')}: {'; '.join(faults)}")
    return None


@functools.cache
def warn_once(message: str) -> None:
    """Say ``message`` once in this process."""
    warnings.warn(message, KernelStoreWarning, stacklevel=3)


__all__ = [
    "HEADERS",
    "OFF",
    "PROCESSOR",
    "VARIABLE",
    "KernelStoreWarning",
    "StoreError",
    "chosen_folder",
    "default_folder",
    "folder_for_compilers",
    "prepared",
    "warn_once",
]
