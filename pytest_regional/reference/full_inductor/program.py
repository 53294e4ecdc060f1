"""What the forward and the backward graph of one program share while they are compiled, which may be far apart."""

from __future__ import annotations

import sys
import warnings
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.full_inductor import ambient_context, new_shared_state
from pytest_regional.reference.full_inductor.errors import NumericsWarning

_MESSAGE = (
    "full_inductor compiles whole graphs: fused kernels and Inductor's decompositions (and its random numbers, unless "
    "fallback_random is set) differ from eager in the last bits. Judge how much with assert_parity, before results "
    "of the two are compared."
)
_LIBRARIES = tuple(str(Path(file).parent) for file in (torch.__file__, sys.modules["pytest_regional"].__file__ or ""))


@dataclass
class Program:
    """The memory of one program.

    Attributes:
        state: What Inductor's compilers of forward and backward tell each other about CUDA graphs.
    """

    state: Any
    _has_warned: bool = field(default=False)

    def warn_of_numerics(self) -> None:
        """Warn once, at the line of the caller outside of this package and PyTorch."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(_MESSAGE, NumericsWarning, stacklevel=_level_of_user() + 1)


_programs: weakref.WeakKeyDictionary[Any, Program] = weakref.WeakKeyDictionary()


def current_program(gm: torch.fx.GraphModule) -> Program:
    """Return the program that the ambient tracing context belongs to; AOTAutograd keeps one for both graphs."""
    context = ambient_context()
    if context is None:
        return Program(new_shared_state(gm))
    program = _programs.get(context)
    if program is None:
        program = _programs[context] = Program(new_shared_state(gm))
    return program


def _level_of_user() -> int:
    """Count the frames from ``warn_of_numerics`` to the first that is the user's."""
    frame: FrameType | None = sys._getframe(1)
    level = 0
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return level
