"""Every run of a C++ compiler that Inductor makes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from pytest_regional._torch import symbol
from pytest_regional._torch.seams import Seam, wrapping

#: Runs one command line in a folder, and returns when what it makes is there. It raises what the compiler says.
Run = Callable[[str, str], None]

_SEAMS = {
    # Called with the command line and the folder to run it in, by `run_compile_cmd`, through which all compiles of
    # kernels, wrappers and headers go (2.11 to 2.15). What times a compile, in that function, stays in effect.
    "run": Seam("torch._inductor.cpp_builder", "_run_compile_cmd"),
}


def compiling_with(run: Callable[[Run, str, str], None]) -> contextlib.AbstractContextManager[None]:
    """Have ``run(original, command, folder)`` called for each run of the compiler, in this process."""
    return wrapping(_SEAMS, {"run": lambda original, *args, **kwargs: run(original, *args, **kwargs)})


def headers() -> Path:
    """Return the folder of PyTorch's own headers, which generated code includes."""
    return Path(os.path.dirname(symbol("torch", "__file__")), "include")


__all__ = ["Run", "compiling_with", "headers"]
