"""Headers that Inductor has the C++ compiler translate once: 150 MB each, read by every compile of a kernel."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pytest_regional._torch import symbol
from pytest_regional._torch.seams import Seam, wrapping

_MODULE = "torch._inductor.codecache"
# Returns the path of a header beside which its translation is, made if it is missing; remembers that for its arguments
# as long as the process lives (2.11 to 2.15).
_SEAMS = {"header": Seam(_MODULE, "_precompile_header")}

_ENDINGS = (".gch", ".pch")  # GCC's, Clang's


def default_folder() -> Path:
    """Return PyTorch's cache folder for a user who names none, where it keeps these headers (2.11 to 2.15).

    It is in the system's folder for temporary files and has the user's name, so anybody can have made it first.
    """
    return Path(symbol(_MODULE, "_HEADER_DIR")).parent


def default_folder_of_others() -> Path:
    """Return that of a process without :func:`headers_kept_in`, whatever this one has (2.11 to 2.15)."""
    return Path(symbol("torch._inductor.runtime.runtime_utils", "default_cache_dir")())


#: Has a process of torch's compile without precompiled headers (2.11 to 2.15).
NO_HEADERS = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


@contextlib.contextmanager
def headers_kept_in(folder: Path) -> Iterator[None]:
    """Have Inductor keep its precompiled headers in ``folder``, and take them from there."""
    paths = _paths(folder)

    def header(original: Callable[..., str], *args: Any, **kwargs: Any) -> str:
        asked = (args, tuple(sorted(kwargs.items())))
        if asked not in paths or not _translations(paths[asked]):
            # Without what it remembers, which may be of another folder.
            paths[asked] = getattr(original, "__wrapped__", original)(*args, **kwargs)
            for path in _translations(paths[asked]):
                os.utime(path)  # which ones are used decides which ones are kept
        return paths[asked]

    with _folders(folder), wrapping(_SEAMS, {"header": header}):
        yield


@contextlib.contextmanager
def no_headers() -> Iterator[None]:
    """Have Inductor compile without precompiled headers, which takes three times as long; no cache key changes."""
    with wrapping(_SEAMS, {"header": lambda *_args, **_kwargs: None}):
        yield


@functools.cache
def _paths(folder: Path) -> dict[Any, str]:
    """Return the headers that this process has asked for, by what it asked: to ask takes a run of the preprocessor."""
    return {}


def _translations(header: str) -> list[str]:
    return [header + ending for ending in _ENDINGS if os.path.exists(header + ending)]


@contextlib.contextmanager
def _folders(folder: Path) -> Iterator[None]:
    """Replace the names of both folders, which are looked up at each call (2.11 to 2.15)."""
    import importlib

    codecache = importlib.import_module(_MODULE)
    before = symbol(_MODULE, "_HEADER_DIR"), symbol(_MODULE, "_HEADER_LOCK_DIR")
    codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(folder), str(folder / "locks")  # type: ignore[attr-defined]
    try:
        yield
    finally:
        codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = before  # type: ignore[attr-defined]


__all__ = ["NO_HEADERS", "default_folder", "default_folder_of_others", "headers_kept_in", "no_headers"]
