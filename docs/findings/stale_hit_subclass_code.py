"""Whole-graph Inductor's cache gives back what was compiled for another ``__torch_dispatch__`` of a tensor subclass.

AOTAutograd traces what the subclass computes; its key has the name of the class, and not its code.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked

import torch


class Scaling(torch.Tensor):
    """Holds a tensor, and makes each product ``factor`` times as large."""

    factor = 1

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, metadata, size, stride):
        return Scaling(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = [value.inner if isinstance(value, Scaling) else value for value in args]
        result = function(*plain, **(kwargs or {}))
        return Scaling(result * cls.factor) if function is torch.ops.aten.mul.Tensor else result


def program(x):
    return x * 1


def compiled_with(n):
    Scaling.factor = n
    torch._dynamo.reset()  # as a new process would
    return float(torch.compile(program, fullgraph=True)(Scaling(torch.ones(3))).inner[0])


found = [compiled_with(n) for n in (2, 3)]
still_fails = found != [2, 3]
print(f"the subclass multiplies by 2, then by 3: the compiled program multiplies by {found}")
print(f"torch {torch.__version__}: {'still fails' if still_fails else 'fixed'}")
sys.exit(still_fails)
