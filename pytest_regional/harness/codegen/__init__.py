"""Read the code that Inductor generated, and assert what it does.

* ``events``: what the wrapper does, as plain records; which launches on different GPU streams wait for each other.
* ``kernels``: names of operators in a wrapper, what a kernel loads from and stores to, and its lines, for editors.
* ``reader``: from text to events in execution order, with the ATen operators that each launch computes.
* ``memory``: lifetimes of storage.
* ``assertions``: the code of one graph, the events that match a pattern such as ``"aten.add"``, assertions for tests,
  and their messages.
"""

from __future__ import annotations

from pytest_regional.harness.codegen.assertions import CodeAssertions
from pytest_regional.harness.codegen.events import (
    CodeAssertionError,
    CodeEvent,
    CodeLookupError,
    Events,
    KernelLaunch,
    LaunchOrigin,
    Op,
    UnknownSizeError,
    UnreadableCodeError,
)
from pytest_regional.harness.codegen.reader import events_of, origins_kept, origins_of
from pytest_regional.harness.ops import OpError, OpPattern

__all__ = [
    "CodeAssertionError",
    "CodeAssertions",
    "CodeEvent",
    "CodeLookupError",
    "Events",
    "KernelLaunch",
    "LaunchOrigin",
    "Op",
    "OpError",
    "OpPattern",
    "UnknownSizeError",
    "UnreadableCodeError",
    "events_of",
    "origins_kept",
    "origins_of",
]
