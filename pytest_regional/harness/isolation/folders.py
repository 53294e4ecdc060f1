"""Where compilers' caches are: a test's own folder, and no server."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pytest_regional._torch import state
from pytest_regional.harness.isolation.interpreter import set_environment
from pytest_regional.harness.isolation.leak import MISSING

#: Environment variables that name a cache server, which other tests and machines write to.
SHARED_CACHE_VARIABLES = ("TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_REDIS_URL")

_SHARED_CACHE_SETTINGS = {
    "torch._inductor.config": "fx_graph_remote_cache",
    "torch._functorch.config": "enable_remote_autograd_cache",
}


@contextlib.contextmanager
def cache_folder(folder: Path) -> Iterator[Path]:
    """Point every compiler cache into ``folder`` while the context lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    saved = {name: os.environ.get(name, MISSING) for name in values}
    os.environ.update(values)
    try:
        yield folder
    finally:
        for name, value in saved.items():
            set_environment(name, value)


def clear_folder(folder: Path, *, keep_code: bool = False) -> None:
    """Empty a folder that this harness owns (the folder itself stays).

    Args:
        folder: the folder.
        keep_code: leave files of generated code and compiled kernels, whose names are hashes of their contents: no
            lookup finds them, but what generates the same code again need not build it.
    """
    folder.mkdir(parents=True, exist_ok=True)  # the test may have removed it
    for entry in folder.iterdir():
        if keep_code and (len(entry.name) == 2 or entry.name in _CODE_FOLDERS):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


#: Beside folders of two letters, which are the beginning of a hash, as Inductor calls them (2.11 to 2.15).
_CODE_FOLDERS = ("precompiled_headers", "triton", "locks")


@contextlib.contextmanager
def no_shared_cache() -> Iterator[None]:
    """Leave caches on servers alone while the context lasts; what is set inside counts."""
    saved = {name: os.environ.pop(name, MISSING) for name in SHARED_CACHE_VARIABLES}
    try:
        with contextlib.ExitStack() as stack:
            for module, setting in _SHARED_CACHE_SETTINGS.items():
                if state.config_values(module)[setting]:
                    stack.enter_context(state.patched_config(module, {setting: False}))
            yield
    finally:
        for name, value in saved.items():
            set_environment(name, value)


__all__ = ["SHARED_CACHE_VARIABLES", "cache_folder", "clear_folder", "no_shared_cache"]
