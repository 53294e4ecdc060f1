"""Tracebacks without the frames of this package, in which a user finds nothing."""

from __future__ import annotations

import dis
import sys
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from pytest_regional._torch.process_state import DYNAMO_WRAPPER

_PACKAGE = Path(__file__).parent
#: The conformance suites, which a wheel has in the package: frames of tests.
_SUITES = _PACKAGE / "suites"
#: Code that compiles: where it is between the frames of others, it says how they came to be called.
_COMPILERS = tuple(_PACKAGE / name for name in ("backends", "emulation", "reference"))
_RAISES = dis.opmap["RAISE_VARARGS"]


def hide_own_frames(error: BaseException) -> None:
    """Cut the harness's frames out of the tracebacks of an error, of its cause, and of what it was raised in place of.

    The frames in which Dynamo calls a compiled function go too. An error that the package raised ends at the last frame
    of other code than PyTorch's. One that it did not raise on purpose, such as a missing attribute, is a defect of the
    package and keeps all frames.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        _cut(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _cut(error: BaseException) -> None:
    frames: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        frames.append(entry)
        entry = entry.tb_next
    if frames and _is_hidden(frames[-1]):
        if not _was_raised(frames[-1]):
            return
        while frames and (_is_hidden(frames[-1]) or _is_library(frames[-1])):
            frames.pop()
    kept = [one for one in frames if not _is_hidden(one) or any(map(_file(one).is_relative_to, _COMPILERS))]
    for one, following in pairwise(kept):
        one.tb_next = following
    if kept:
        kept[-1].tb_next = None
    error.__traceback__ = kept[0] if kept else None


def _is_library(entry: TracebackType) -> bool:
    """Say whether a frame is in PyTorch's own files, which generated code is not, or in contextlib."""
    torch = getattr(sys.modules.get("torch"), "__file__", None) or _PACKAGE
    return _file(entry).name == "contextlib.py" or _file(entry).is_relative_to(Path(torch).parent)


def _file(entry: TracebackType) -> Path:
    return Path(entry.tb_frame.f_code.co_filename)


def _is_hidden(entry: TracebackType) -> bool:
    ours = _file(entry).is_relative_to(_PACKAGE) and not _file(entry).is_relative_to(_SUITES)
    return ours or entry.tb_frame.f_globals.get("__name__") == DYNAMO_WRAPPER


def _was_raised(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_code[entry.tb_lasti] == _RAISES
