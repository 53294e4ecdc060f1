"""Read the code that Inductor generated, and assert what it does.

* ``events``: what the wrapper does, as plain records; which launches on different GPU streams wait for each other.
* ``operators``: which ATen operators each launch computes, and the events that match a pattern such as
  ``"aten.add"``.
* ``reader``: from text to events in execution order; ``kernels``: what a kernel loads from and stores to, and
  its lines, for editors.
* ``memory``: lifetimes of storage.
* ``assertions``: the code of one graph, assertions for tests, and their messages.
"""

from __future__ import annotations

from pytest_regional.harness.codegen.assertions import CodeAssertions
from pytest_regional.harness.codegen.events import (
    Alias,
    Allocate,
    Assert,
    CodeAssertionError,
    CodeEvent,
    CodeLookupError,
    CollectiveStart,
    Copy,
    Events,
    ExternCall,
    Free,
    KernelLaunch,
    LaunchOrigin,
    NestingLevel,
    Op,
    Return,
    Reuse,
    StreamSync,
    UnknownSizeError,
    UnreadableCodeError,
    Wait,
)
from pytest_regional.harness.codegen.reader import events_of, origins_kept, origins_of
from pytest_regional.harness.ops import OpError, OpPattern

__all__ = [
    "Alias",
    "Allocate",
    "Assert",
    "CodeAssertionError",
    "CodeAssertions",
    "CodeEvent",
    "CodeLookupError",
    "CollectiveStart",
    "Copy",
    "Events",
    "ExternCall",
    "Free",
    "KernelLaunch",
    "LaunchOrigin",
    "NestingLevel",
    "Op",
    "OpError",
    "OpPattern",
    "Return",
    "Reuse",
    "StreamSync",
    "UnknownSizeError",
    "UnreadableCodeError",
    "Wait",
    "events_of",
    "origins_kept",
    "origins_of",
]
