"""Show that a vector end of a C++ kernel reads memory behind its input: ``python -m tests.verify.reads_behind``.

The input lies at the end of a page, and the page behind it may not be touched. Eager PyTorch runs; the compiled program
is stopped by a segmentation fault (torch 2.13.0 and 2.15.0, AVX2): where a load has a mask, as that of padding,
``CppVecKernel._get_vec_load_line`` asks for a whole vector although fewer elements are left.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch

COUNT = 50
_NOTHING = 0  # PROT_NONE of <sys/mman.h>


def padded(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (3, 0)) * 2


def before_a_closed_page() -> torch.Tensor:
    """Return COUNT floats, behind the last of which nothing may be read."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), _NOTHING):
        raise OSError(ctypes.get_errno(), "mprotect")
    found = torch.frombuffer(memory, dtype=torch.float32, count=COUNT, offset=page - 4 * COUNT)
    return found.copy_(torch.arange(COUNT, dtype=torch.float32))


def main() -> int:
    x = before_a_closed_page()
    expected = padded(x)
    compiled = torch.compile(padded, dynamic=False)
    same = torch.equal(compiled(x.clone()), expected)
    print("in memory with room behind it:", same, flush=True)
    return 0 if same and torch.equal(compiled(x), expected) else 1


if __name__ == "__main__":
    sys.exit(main())
