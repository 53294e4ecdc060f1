"""What a compiler raised: its first cause, what that says, and where it comes from."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType

from pytest_regional._base.text import without_numbers
from pytest_regional._torch.config import GENERATED_MODULES
from pytest_regional._torch.process_state import DISPATCHERS, REPORTERS

#: Packages in which a backend lives; harness and fuzzer only watch.
_COMPILERS = ("torch", "pytest_regional.reference", "triton")

#: Packages whose frames name no line of the user's.
_NOT_THE_USERS = ("torch", "pytest_regional", "triton", "_pytest", "pluggy", "contextlib")

#: What Dynamo and the C++ core write in front of a stack (2.11 to 2.15).
_STACKS = ("\n\nfrom user code:", "\n\nSet TORCHDYNAMO_VERBOSE", "\nException raised from ")


def causes(error: BaseException) -> Iterator[BaseException]:
    """Return ``error`` and what it was raised for, as Python and as PyTorch's compilers remember it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [current.__cause__, current.__context__, getattr(current, "inner_exception", None)]


def wrapped_in(error: BaseException | None) -> Iterator[BaseException]:
    """Yield ``error`` and what it wraps, as compilers wrapped it on its way out; the first cause is the last."""
    known: set[int] = set()
    while error is not None and id(error) not in known:
        yield error
        known.add(id(error))
        error = getattr(error, "inner_exception", None) or error.__cause__


def root_of(error: BaseException) -> BaseException:
    """Return the first cause of ``error``."""
    return [*wrapped_in(error)][-1]


def class_of(error: BaseException) -> str:
    """Return the class of the first cause; where its message begins with the class that it wraps, that as well.

    A ``LoweringException`` says so which error it wraps, and then names of files, lines and buffers.
    """
    root = root_of(error)
    wrapped = re.match(r"\w+(Error|Exception)\b(?=:)", str(root))
    return f"{type(root).__name__}: {wrapped[0]}" if wrapped else type(root).__name__


def message_of(error: BaseException, limit: int = 600) -> str:
    """Return what ``error`` says, without the stacks that are added to it: they name places of this machine only."""
    text = str(error)
    for stack in _STACKS:
        text = text.partition(stack)[0]
    text = text.strip()
    return text if len(text) <= limit else f"{text[:limit]} ..."


def origin_of(error: BaseException, home: str = "") -> str:
    """Return the type of an exception's root and the innermost frame of a compiler that it passed.

    Where that frame raises all sorts of errors, what the message complains of as well. ``home`` is the module of the
    backend under test, where that is none of the known ones.
    """
    root = root_of(error)
    frames = [frame for frame, _ in traceback.walk_tb(root.__traceback__)]
    named = [_name_of(frame) for frame in frames]
    compilers = (*_COMPILERS, home) if home else _COMPILERS
    inside = [name for name in named if _is_in(name, compilers) and not name.startswith(DISPATCHERS)]
    where = inside[-1] if inside else _EAGER if any(_is_in(name, ("torch",)) for name in named) else _USER
    origin = f"{type(root).__name__} at {where}"
    if not where.startswith((_EAGER, _USER, *REPORTERS)):
        return origin
    # These places raise what was found elsewhere: only the message tells what, in the error that it reports.
    met = _MET.search(str(root))
    complaint = f"{met[1]}: {met[3]}" if met else str(root).partition("Got graph break/error:")[2] or str(root)
    return f"{origin}: {without_numbers(complaint)}"


_EAGER, _USER = "eager operators", "user code"

#: What Dynamo reports of an error that it met: type and message (2.11 to 2.15).
_MET = re.compile(r": got (\w+)\((['\"])(.+?)(\\n|\2\))", re.DOTALL)


def _name_of(frame: FrameType) -> str:
    module = frame.f_globals.get("__name__", "")
    # Below it each module is named by what it holds.
    module = GENERATED_MODULES.rstrip(".") if module.startswith(GENERATED_MODULES) else module
    return f"{module}:{frame.f_code.co_name}"


def asserted_at(error: BaseException) -> str:
    """Return file and line of the user's whose assertion failed, or that called one; empty for a compiler's own.

    Those that are called are the harness's and ``torch.testing``'s.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    innermost = _name_of(frames[-1][0]) if frames else ""
    of_compiler = _is_in(innermost, _COMPILERS) and not _is_in(innermost, ("torch.testing",))
    if of_compiler or not isinstance(error, AssertionError):
        return ""
    own = [(frame, line) for frame, line in frames if not _is_in(_name_of(frame), _NOT_THE_USERS)]
    return f"{own[-1][0].f_code.co_filename}:{own[-1][1]}" if own else ""


def _is_in(name: str, packages: Iterable[str]) -> bool:
    module = name.partition(":")[0]
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def frames_of(error: BaseException) -> Iterator[str]:
    """Yield ``module:function`` of every frame that ``error`` and its causes passed."""
    for cause in causes(error):
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            yield _name_of(frame)
