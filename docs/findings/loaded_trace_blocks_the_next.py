"""A program that ``caching_precompile`` loaded cannot be traced again: another dtype of its argument is an error.

Guards that come from storage bind the name ``__builtins_dict___0`` among the globals of the program's module. The next
trace of a function of that module asserts that this name is free.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
import torch._dynamo

torch._dynamo.config.caching_precompile = True


def program(x):
    return x @ x if isinstance(x, torch.Tensor) else x


def fails(*dtypes):
    """Call the program in a new process, store what was traced, and return whether Dynamo failed."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (0, 1):
            raise RuntimeError(f"a process ended with {status}")
        return status == 1
    compiled = torch.compile(program, fullgraph=True)
    try:
        for dtype in dtypes:
            compiled(torch.ones(2, 2, dtype=dtype))
    except AssertionError as error:
        print(f"AssertionError: {error}", flush=True)
        os._exit(1)
    torch.compiler.save_cache_artifacts()
    os._exit(0)


if fails(torch.float32):
    raise RuntimeError("the first process fails")
still_fails = fails(torch.float32, torch.float64)
print(f"torch {torch.__version__}: {'still fails' if still_fails else 'fixed'}")
sys.exit(still_fails)
