"""An emulated GPU around a test, and what becomes of a test that asked for something it cannot do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .regional import Regional


@contextlib.contextmanager
def emulating(regional: Regional) -> Iterator[None]:
    """Emulate the GPU under test while the context lasts; any other device needs nothing.

    Raises:
        EmulationError: this torch and triton cannot be emulated faithfully: the self-test failed.
        MissingTorchSymbolError: they lack something that emulation needs.
    """
    profile = regional.device_under_test.profile
    if profile is None:
        yield
        return
    from pytest_regional.emulation import emulated

    with emulated(profile) as emulation:
        regional.emulation = emulation
        yield


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


def unsupported_reason(regional: Regional, error: BaseException | None) -> str:
    """Return why a test is neither a pass nor a failure under emulation; empty where it is one of them.

    A test that failed counts as unsupported only when a refusal is among the causes of its failure, or is told in it;
    one that passed, as soon as anything was refused: it did not run what it says.
    """
    refused = regional.emulation.unsupported if regional.emulation is not None else []
    if error is None:
        return refused[0] if refused else ""
    told = "\n".join(str(cause) for cause in causes(error))
    reasons = {reason: reason for reason in refused} | _refused_by_front_end(regional)
    return next((reason for text, reason in reasons.items() if text in told), "")


def _refused_by_front_end(regional: Regional) -> dict[str, str]:
    if regional.emulation is None:
        return {}
    from pytest_regional.emulation.programs import REFUSED_BY_FRONT_END

    return REFUSED_BY_FRONT_END


@contextlib.contextmanager
def skipping_unsupported(regional: Regional, skip: Callable[[str], object]) -> Iterator[None]:
    """Call ``skip`` with the reason, named, when the test inside asked the emulated GPU for what it cannot do."""
    __tracebackhide__ = True
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        if not unsupported_reason(regional, error):
            raise
        failure = error
    reason = unsupported_reason(regional, failure)
    if reason:
        skip(f"{regional.device_under_test.name} cannot run it: {reason}")
