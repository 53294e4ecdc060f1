"""The error that carries a violated oracle, and what makes two such errors the same defect."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from pytest_regional._errors import RegionalError
from pytest_regional._torch.config import GENERATED_MODULES
from pytest_regional._torch.process_state import DISPATCHERS, REPORTERS
from pytest_regional.fuzz.findings.provenance import without_numbers
from pytest_regional.fuzz.modes import COMPILED
from pytest_regional.harness.devices.emulated import causes
from pytest_regional.harness.parity.report import Mismatch

if TYPE_CHECKING:
    from pytest_regional.fuzz.oracles.example_run import ExampleRun


#: Packages in which a backend lives; harness and fuzzer only watch.
_COMPILERS = ("torch", "pytest_regional.reference", "triton")


#: What Dynamo and the C++ core write in front of a stack (2.11 to 2.15).
_STACKS = ("\n\nfrom user code:", "\n\nSet TORCHDYNAMO_VERBOSE", "\nException raised from ")


class OracleViolationError(RegionalError, AssertionError):
    """A program violates an oracle on a backend.

    Attributes:
        oracle: name of the oracle, a key of ``ORACLES``.
        stage: ``"compile"``, ``"run"``, ``"backward"`` or ``"restart"``.
        detail: what was seen, in sentences.
        region: the region to blame, where one is known.
        origin: what makes two failures the same defect; neither numbers nor addresses are in it.
        program: source of the program.
        without_backend: whether the same goes wrong with AOTAutograd alone (``aot_eager``), which compiles nothing:
            then it is a defect of capture, and no backend can help it. Told for ``compiles`` and ``parity``.
    """

    without_backend = False

    def __init__(
        self, oracle: str, stage: str, detail: str, *, origin: str, region: str | None = None, program: str = ""
    ) -> None:
        self.oracle, self.stage, self.detail, self.origin = oracle, stage, detail, origin
        self.region, self.program = region, program
        super().__init__(oracle, stage, detail)

    def __str__(self) -> str:
        blame = f"\nregion to blame: {self.region}" if self.region else ""
        if self.without_backend:
            blame += "\nAOTAutograd alone fails alike (aot_eager): the backend is not to blame"
        shown = f"\n\n{self.program}" if self.program else ""
        return f"oracle {self.oracle!r} is violated ({self.stage}): {self.detail}{blame}{shown}"


def root_of(error: BaseException) -> BaseException:
    """Return the first cause of ``error``: what compilers wrapped on its way out."""
    known = {id(error)}
    while True:
        inner = getattr(error, "inner_exception", None) or error.__cause__
        if inner is None or id(inner) in known:
            return error
        known.add(id(inner))
        error = inner


def message_of(error: BaseException, limit: int = 600) -> str:
    """Return what ``error`` says, without the stacks that are added to it: they name places of this machine only."""
    text = str(error)
    for stack in _STACKS:
        text = text.partition(stack)[0]
    text = text.strip()
    return text if len(text) <= limit else f"{text[:limit]} ..."


def origin_of(error: BaseException, home: str = "") -> str:
    """Return the type of an exception's root and the innermost frame of a compiler that it passed.

    Where that frame raises all sorts of errors, what the message complains of as well.

    Args:
        error: what was raised.
        home: the module of the backend under test, where that is none of the known ones.
    """
    root = root_of(error)
    frames = [frame for frame, _ in traceback.walk_tb(root.__traceback__)]
    named = [_name_of(frame) for frame in frames]
    compilers = (*_COMPILERS, home) if home else _COMPILERS
    inside = [name for name in named if _is_in(name, compilers) and not name.startswith(DISPATCHERS)]
    where = inside[-1] if inside else _EAGER if any(_is_in(name, ("torch",)) for name in named) else _USER
    origin = f"{type(root).__name__} at {where}"
    # These places raise what was found elsewhere: only the message tells what.
    return f"{origin}: {_complaint(str(root))}" if where.startswith(_SAYING_NOTHING) else origin


_EAGER, _USER = "eager operators", "user code"
_SAYING_NOTHING = (_EAGER, _USER, *REPORTERS)

#: What Dynamo reports of an error that it met: type and message (2.11 to 2.15).
_MET = re.compile(r": got (\w+)\((['\"])(.+?)(\\n|\2\))", re.DOTALL)


def _complaint(message: str) -> str:
    """Return what a message complains of, without numbers: the error that it reports, or its first line."""
    met = _MET.search(message)
    if met:
        return without_numbers(f"{met[1]}: {met[3]}")
    return without_numbers(message.partition("Got graph break/error:")[2] or message)


def _name_of(frame: FrameType) -> str:
    module = frame.f_globals.get("__name__", "")
    # Below it each module is named by what it holds.
    module = GENERATED_MODULES.rstrip(".") if module.startswith(GENERATED_MODULES) else module
    return f"{module}:{frame.f_code.co_name}"


def _is_in(name: str, packages: Iterable[str]) -> bool:
    module = name.partition(":")[0]
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def frames_of(error: BaseException) -> Iterator[str]:
    """Yield ``module:function`` of every frame that ``error`` and its causes passed."""
    for cause in causes(error):
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            yield _name_of(frame)


def kinds_of(mismatches: Iterable[Mismatch]) -> str:
    """Return what differs, and of what, without saying which or by how much: ``"stride of grad, value of output"``."""
    found = {f"{mismatch.kind} of {_subject(mismatch.where)}" for mismatch in mismatches}
    return ", ".join(sorted(found))


_SUBJECTS = ("grad", "output", "input", "buffer", "backward", "forward", "random state")


def _subject(where: str) -> str:
    second = "second call" if where.startswith("second call") else ""
    plain = where.partition(": ")[2] if second else where
    subject = next(
        (
            word
            for word in ("grad", "output", "input", "buffer", "backward", "forward", "random state")
            if plain.startswith(word)
        ),
        "rest",
    )
    return f"{subject} ({second})" if second else subject


@dataclass(frozen=True)
class Oracle:
    """Something that holds for every program on every backend that declares what it needs.

    Attributes:
        name: what errors, findings and tables call it.
        summary: one sentence.
        check: raises :class:`OracleViolationError` where an example run violates it, and :class:`NoClaim` where it says
            nothing about the example.
        modes: in which modes it can be checked.
        requires: capabilities of a backend without which it is not demanded.
        every: where oracles are not chosen by name, one program in so many is checked against it; more than 1 for
            oracles that compile once more, and 0 for those that are checked by name alone.
    """

    name: str
    summary: str
    check: Callable[[ExampleRun], None] = field(repr=False)
    modes: tuple[str, ...] = COMPILED
    requires: tuple[str, ...] = ()
    every: int = 1


class NoClaim(RegionalError):
    """An oracle says nothing about this program on this backend; the message is the reason."""


@dataclass(frozen=True)
class CheckResult:
    """What :func:`check` found where no oracle is violated.

    Attributes:
        oracles: names of the oracles that were checked and hold.
        skipped: names of the others, with reasons.
        seconds: how long all took.
        spent: the seconds of each oracle; ``"compile"`` is what they share.
        known: violated oracles that the caller knew of.
    """

    oracles: tuple[str, ...]
    skipped: Mapping[str, str]
    seconds: float
    spent: Mapping[str, float] = field(default_factory=dict, compare=False)
    known: tuple[OracleViolationError, ...] = ()
