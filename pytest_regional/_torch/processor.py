"""What Inductor asks of the compiler before it generates C++ code: which vector instructions there are."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pytest_regional._torch.seams import Seam, wrapping

_SEAMS = {
    # Builds a library with vector instructions, unless it is there, and loads it in another process.
    "check": Seam("torch._inductor.cpu_vec_isa:VecISA", "check_build"),
    # Both are imported by the check each time it runs.
    "write": Seam("torch._inductor.codecache", "write"),
    "locks": Seam("torch._inductor.codecache", "get_lock_dir"),
}


@contextlib.contextmanager
def processor_checked_in(folder: Path) -> Iterator[None]:
    """Have Inductor keep in ``folder`` what it builds to check the processor, and load it from there.

    It keeps it in the cache folder (2.11 to 2.15), so every process that begins with an empty one builds it again: as
    long as four kernels take. Its name holds a digest of compiler, flags and version of torch. What is generated
    later, and all that caches look up, stays where it was.
    """
    checking = threading.local()

    def check(original: Callable[..., bool], *args: Any) -> bool:
        checking.folder = str(folder)
        try:
            return original(*args)
        finally:
            checking.folder = None

    def write(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        chosen = getattr(checking, "folder", None)
        return original(*args, **kwargs) if chosen is None else original(*args, **{"specified_dir": chosen, **kwargs})

    def locks(original: Callable[[], str]) -> str:
        chosen = getattr(checking, "folder", None)
        if chosen is None:
            return original()
        os.makedirs(os.path.join(chosen, "locks"), mode=0o700, exist_ok=True)
        return os.path.join(chosen, "locks")

    with wrapping(_SEAMS, {"check": check, "write": write, "locks": locks}):
        yield


__all__ = ["processor_checked_in"]
