"""Read the code that Inductor generated, and assert what it does.

* ``events``: what happens in a wrapper, as plain records.
* ``wrapper``, ``kernels``, ``comments``, ``names``: the parts of its text.
* ``reader``: from text to events in execution order.
* ``origins``: which ATen operators each launch computes.
* ``patterns``: from ``"aten.add"`` to the events it names.
* ``pointers``: what a kernel loads from and stores to.
* ``streams``: which launches on different GPU streams wait for each other.
* ``memory``: which storage lives when.
* ``assertions``: what a test says, and what it prints when the code is otherwise.
"""

from __future__ import annotations

from pytest_regional.harness.codegen.assertions import CodeAssertions
from pytest_regional.harness.codegen.events import (
    Alias,
    Allocate,
    AmbiguousCodeError,
    Assert,
    CodeAssertionError,
    CodeEvent,
    CollectiveStart,
    Copy,
    Events,
    ExternCall,
    Free,
    KernelLaunch,
    LaunchOrigin,
    NoGeneratedCodeError,
    NoSuchOpError,
    Op,
    Return,
    Reuse,
    Step,
    StreamSync,
    UnknownOriginError,
    UnknownSizeError,
    UnreadableCodeError,
    Wait,
)
from pytest_regional.harness.codegen.origins import events_of, origins_kept, origins_of
from pytest_regional.harness.codegen.patterns import OpPattern

__all__ = [
    "Alias",
    "Allocate",
    "AmbiguousCodeError",
    "Assert",
    "CodeAssertionError",
    "CodeAssertions",
    "CodeEvent",
    "CollectiveStart",
    "Copy",
    "Events",
    "ExternCall",
    "Free",
    "KernelLaunch",
    "LaunchOrigin",
    "NoGeneratedCodeError",
    "NoSuchOpError",
    "Op",
    "OpPattern",
    "Return",
    "Reuse",
    "Step",
    "StreamSync",
    "UnknownOriginError",
    "UnknownSizeError",
    "UnreadableCodeError",
    "Wait",
    "events_of",
    "origins_kept",
    "origins_of",
]
