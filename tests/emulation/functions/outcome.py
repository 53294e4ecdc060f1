"""Run one case under emulation and say what came out: match, unsupported (with the reason), or wrong.

A fourth outcome, defect, is a wrong value that PyTorch's generated code would give on a GPU as well: strictly so, for
a defect that does not show is wrong too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pytest_regional._torch import torch_version
from pytest_regional.emulation import UnsupportedByEmulationError

from . import CASES
from .case import Case, Defect
from .judging import compile_with_inductor, verify

if TYPE_CHECKING:
    from pytest_regional.emulation import Emulation

MATCH, UNSUPPORTED, DEFECT, WRONG = "match", "unsupported", "defect", "wrong"


@dataclass(frozen=True)
class Run:
    """A case in one dtype, forward only or with its backward."""

    name: str
    dtype: str
    backward: bool = False

    def __str__(self) -> str:
        return f"{self.name}-{self.dtype}{'-backward' if self.backward else ''}"

    @classmethod
    def named(cls, text: str) -> Run:
        """Return the run that prints as ``text``."""
        name, dtype, *backward = text.split("-")
        return cls(name, dtype, bool(backward))


@dataclass(frozen=True)
class Outcome:
    """What came out of one run, and what it cost."""

    run: str
    status: str
    detail: str = ""
    error: float = 0.0
    kernels: int = 0
    launches: int = 0
    seconds: float = 0.0


def runs_of(case: Case) -> list[Run]:
    """Return the runs that ``case`` declares, forward ones first."""
    directions = (False, True) if case.backward else (False,)
    return [Run(case.name, dtype, backward) for backward in directions for dtype in case.dtypes]


def all_runs() -> list[Run]:
    """Return every run of the table."""
    return [run for case in CASES.values() for run in runs_of(case)]


def outcome_on_gpu(run: Run) -> Outcome:
    """Run it on the GPU of this machine, for comparison; nothing that a case raises gets out."""
    case = CASES[run.name]
    if case.raises is not None:
        return Outcome(str(run), UNSUPPORTED, "an assertion that fails in a kernel ends the GPU for its process")
    begin = time.perf_counter()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        status, detail, error = _status(case, run, "cuda")
    if case.defect is not None and _is_expected(case.defect, run):
        status, detail = _of_defect(case.defect, status, detail)
    return Outcome(str(run), status, detail, error, seconds=time.perf_counter() - begin)


def outcome_of(run: Run, emulation: Emulation) -> Outcome:
    """Run it under emulation; nothing that a case raises gets out."""
    case = CASES[run.name]
    kernels, launches = len(emulation.kernels), len(emulation.launches)
    begin = time.perf_counter()
    status, detail, error = _status(case, run, "cpu")
    if case.defect is not None and _is_expected(case.defect, run):
        status, detail = _of_defect(case.defect, status, detail)
    kernels, launches = len(emulation.kernels) - kernels, len(emulation.launches) - launches
    if status == MATCH and case.kernels and not (kernels and (launches or case.raises)):
        status, detail = WRONG, f"{kernels} kernels generated, {launches} launches: nothing was emulated"
    return Outcome(str(run), status, detail, error, kernels, launches, time.perf_counter() - begin)


def _is_expected(defect: Defect, run: Run) -> bool:
    return run.dtype in defect.dtypes and torch_version() < defect.mended and (defect.forward or run.backward)


def _of_defect(defect: Defect, status: str, detail: str) -> tuple[str, str]:
    if status == MATCH:
        return WRONG, f"docs/findings/{defect.finding}.py says that this is wrong, and it is not"
    is_its = detail.startswith(("MismatchError", "MemoryFaultError"))
    return (DEFECT, f"docs/findings/{defect.finding}.py") if is_its else (status, detail)


def _status(case: Case, run: Run, device: str) -> tuple[str, str, float]:
    if torch_version() < case.since:
        return UNSUPPORTED, f"torch {torch.__version__} {case.before}", 0.0
    try:
        return MATCH, "", verify(case, run.dtype, run.backward, compile_with_inductor, device)
    except Exception as error:  # noqa: BLE001
        # One case must not end the table; what it raised is its outcome.
        reason = unsupported_reason(error)
        if reason is not None:
            return UNSUPPORTED, reason, 0.0
        return WRONG, f"{type(error).__name__}: {error}", 0.0


def unsupported_reason(error: BaseException | None) -> str | None:
    """Return why emulation refused, where ``error``, or what it was raised from or wraps, is such a refusal."""
    while error is not None:
        if isinstance(error, UnsupportedByEmulationError):
            return str(error)
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return None
