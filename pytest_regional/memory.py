"""A limit on the memory that one phase of a test may take beyond what its process has."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_regional._plain_data import text_of

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

#: The least that a test takes beyond its process (the first compile of one region, torch 2.13.0: more than 32M), and
#: more than any machine has.
LEAST_BYTES, MOST_BYTES = 64 * 2**20, 1024 * 2**40

#: What torch says where an allocation fails; Python itself raises ``MemoryError``.
_TORCH_SAYS = "can't allocate memory"


def bytes_of(text: str) -> int:
    """Return the number of bytes that ``text`` names: ``4G``, ``500M``, ``1.5g``.

    Raises:
        ValueError: no such number, none above 0, or one that no address reaches.
    """
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if found is None:
        raise ValueError(text)
    number = float(found[1]) * _UNITS[found[2].upper()]
    if not 1 <= number < 2**63:
        raise ValueError(text)
    return int(number)


@dataclass
class MemoryLimit:
    """A limit on what the process takes, or none.

    Attributes:
        most: bytes beyond what the process has when it begins; ``None`` for no limit.
        before: soft and hard limit of the process that were there before.
    """

    most: int | None = None
    before: tuple[int, int] = (-1, -1)

    def begin(self) -> None:
        """Take effect, from what the process has now."""
        import resource

        self.before = _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = _taken() + (self.most or 0)
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))

    def end(self) -> None:
        """Put the limit back that was there before."""
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, self.before)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Count nothing that the block takes."""
        if self.most is None:
            yield
            return
        self.end()
        try:
            yield
        finally:
            self.begin()


@contextlib.contextmanager
def memory_limit(most: int | None) -> Iterator[MemoryLimit]:
    """Let allocations fail once the process has taken ``most`` more bytes than it has now; ``None`` for no limit.

    What is counted are the private writable pages of this process (``RLIMIT_DATA``, setrlimit(2)); processes that it
    starts have the same limit each, counted from nothing. Linux; elsewhere nothing is limited. A failure of torch or
    Python for want of memory gets a note that says whose limit it was.
    """
    if most is None or not _STATUS.exists():
        yield MemoryLimit()
        return
    limit = MemoryLimit(most)
    limit.begin()
    try:
        yield limit
    except Exception as error:
        if isinstance(error, MemoryError) or _TORCH_SAYS in text_of(error):
            _add_note(error, f"--regional-memory lets a test take {most / 2**30:.3g} GiB")
        raise
    finally:
        limit.end()


_STATUS = Path("/proc/self/status")


def _taken() -> int:
    found = re.search(r"^VmData:\s+(\d+) kB", _STATUS.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _add_note(error: BaseException, note: str) -> None:
    # Python 3.10 has no notes; its users read torch's own sentence.
    if hasattr(error, "add_note"):
        error.add_note(note)


__all__ = ["LEAST_BYTES", "MOST_BYTES", "MemoryLimit", "bytes_of", "memory_limit"]
