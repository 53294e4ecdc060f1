"""Dynamo's stopwatch on the guards of each new frame."""

from __future__ import annotations

import contextlib

from pytest_regional._torch.seams import Seam, wrapping

_SEAMS = {
    # Called once for each compiled frame, behind the check of its guards; the answer, in microseconds, goes into
    # Dynamo's log and metrics and nowhere else (2.11 to 2.15). It writes over the processor's whole cache beforehand.
    "stopwatch": Seam("torch._dynamo.guards", "profile_guard_manager"),
}


def guards_untimed() -> contextlib.AbstractContextManager[None]:
    """Leave out what Dynamo does to time the guards of a new frame; its metric ``guard_latency_us`` says 0 then.

    The stopwatch empties the processor's cache first, which takes 30 ms and slows down what runs next, also in other
    processes: a seventh of the time of the conformance suites. It can go when Dynamo has a setting for it.
    """
    return wrapping(_SEAMS, {"stopwatch": lambda _original, *_args, **_kwargs: 0.0})


__all__ = ["guards_untimed"]
