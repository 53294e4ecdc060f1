"""Files of generated code, put where Inductor looks for them before what needs them is loaded."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_regional._torch.kernels import CodeFile, libraries_at_hand
from pytest_regional._torch.machine import inductor_cache_dir
from pytest_regional.reference.caching.files import write_atomically


@contextlib.contextmanager
def code_in_place(files: Iterable[CodeFile]) -> Iterator[None]:
    """Have what is loaded inside find ``files``: sources as they were, libraries without the C++ compiler."""
    with libraries_at_hand({str(_in_place(file)): file for file in files}):
        yield


def _in_place(file: CodeFile) -> Path:
    """Write ``file`` below Inductor's cache folder, unless it is there with the same content."""
    path = inductor_cache_dir() / file.path
    if not path.is_file() or _digest(path.read_bytes()) != _digest(file.content):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file.content)
    return path


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
