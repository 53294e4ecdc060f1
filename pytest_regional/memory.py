"""A limit on the memory that one test may take beyond what its process has."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_regional._plain_data import text_of

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

#: What torch says where an allocation fails; Python itself raises ``MemoryError``.
_TORCH_SAYS = "can't allocate memory"


def bytes_of(text: str) -> int:
    """Return the number of bytes that ``text`` names: ``4G``, ``500M``, ``1.5g``.

    Raises:
        ValueError: no such number, or none above 0.
    """
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(text)
    number = int(float(found[1]) * _UNITS[found[2].upper()])
    if number <= 0:
        raise ValueError(text)
    return number


@contextlib.contextmanager
def memory_limit(most: int | None) -> Iterator[None]:
    """Let allocations fail once the process has taken ``most`` more bytes than it has now; ``None`` for no limit.

    What is counted are the private writable pages of this process (``RLIMIT_DATA``, setrlimit(2)); processes that it
    starts have the same limit each, counted from nothing. Linux; elsewhere nothing is limited. A failure of torch or
    Python for want of memory gets a note that says whose limit it was.
    """
    if most is None or not _STATUS.exists():
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _taken() + most
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or _TORCH_SAYS in text_of(error):
            _add_note(error, f"--regional-memory lets a test take {most / 2**30:.3g} GiB")
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


_STATUS = Path("/proc/self/status")


def _taken() -> int:
    found = re.search(r"^VmData:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _add_note(error: BaseException, note: str) -> None:
    # Python 3.10 has no notes; its users read torch's own sentence.
    if hasattr(error, "add_note"):
        error.add_note(note)


__all__ = ["bytes_of", "memory_limit"]
