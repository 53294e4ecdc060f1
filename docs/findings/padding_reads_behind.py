"""`pad` of a tensor by Inductor on CPU: a whole vector is loaded where fewer elements are left, behind the tensor.

Where a load has a mask, as that of padding, ``CppVecKernel._get_vec_load_line`` asks for a whole vector at the end of
an axis. What was loaded is thrown away, but the memory may not be there: the input lies at the end of a page, and the
page behind it may not be touched. Eager PyTorch runs, the compiled program is stopped by a segmentation fault. Needs
vectors (AVX2).
"""

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch

COUNT = 50
NO_ACCESS = 0  # PROT_NONE of <sys/mman.h>


def padded(x):
    return torch.nn.functional.pad(x, (3, 0)) * 2


def before_a_closed_page():
    """Return COUNT floats, behind the last of which nothing may be read."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), NO_ACCESS):
        raise OSError(ctypes.get_errno(), "mprotect")
    found = torch.frombuffer(memory, dtype=torch.float32, count=COUNT, offset=page - 4 * COUNT)
    return found.copy_(torch.arange(COUNT, dtype=torch.float32))


def child():
    x = before_a_closed_page()
    expected = padded(x)
    compiled = torch.compile(padded, dynamic=False)
    assert torch.equal(compiled(x.clone()), expected)
    print("right in memory with room behind it", flush=True)
    assert torch.equal(compiled(x), expected)


if sys.argv[1:] == ["child"]:
    child()
    sys.exit()
ran = subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True, check=False)
if "room behind it" not in ran.stdout or ran.returncode not in (0, -signal.SIGSEGV):
    raise RuntimeError(ran.stderr)
if ran.returncode:
    print(f"torch {torch.__version__}: still fails: a segmentation fault")
    sys.exit(1)
print(f"torch {torch.__version__}: fixed")
