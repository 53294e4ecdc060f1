"""``caching_precompile`` loads what was traced with another value of a class attribute.

A loaded guard on the attribute takes the value that it expects from the process that loads, so it always holds; and of
the source files only the lines of traced functions are compared.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch
import torch._dynamo

torch._dynamo.config.caching_precompile = True


class Power:
    n = 2


def program(x):
    return torch.linalg.matrix_power(x, Power.n)


def called(n):
    """Return an element of the program's result in a new process where the attribute is ``n``."""
    reader, writer = os.pipe()
    if not os.fork():
        Power.n = n
        value = torch.compile(program, fullgraph=True)(torch.ones(2, 2))[0, 0]
        torch.compiler.save_cache_artifacts()
        os.write(writer, str(float(value)).encode())
        os._exit(0)
    os.close(writer)
    return float(os.read(reader, 100))


found = [called(n) for n in (2, 3)]
still_fails = found != [2, 4]
print(f"powers of a matrix of ones have elements of 2 and 4: those of the compiled program are {found}")
print(f"torch {torch.__version__}: {'still fails' if still_fails else 'fixed'}")
sys.exit(still_fails)
