"""A backend under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_regional._text import unknown_name

from .capabilities import Capabilities

COMPILE_OPTIONS = frozenset({"pre_grad_pass_timing"})

DynamoBackend = Callable[..., Any]
"""``backend(gm, example_inputs) -> callable``, as ``torch.compile(..., backend=...)`` takes it."""


@dataclass(frozen=True)
class BackendSpec:
    """Everything the harness needs to know of a backend.

    Attributes:
        name: what ``--regional-backend`` and test ids call it.
        factory: returns the Dynamo backend (a callable, or the name of a registered one); called when a test compiles,
            so that importing a specification costs nothing.
        capabilities: what the backend claims and disclaims.
        known_failures: a text file of known failures kept by the adopter (see ``docs/backends.md``), or ``None``.
        forget: called by isolation and ``restart()``; drops what the backend itself keeps in memory.
        compile_options: which ``torch.compile(..., options={...})`` the backend takes where torch has no such setting:
            ``pre_grad_pass_timing`` is the only one there is, and torch 2.11 the only torch without the setting.
        origin: the name that the registry resolved to this specification; another process finds it by that name.
    """

    name: str
    factory: Callable[[], DynamoBackend | str]
    capabilities: Capabilities = field(default_factory=Capabilities)
    known_failures: Path | None = None
    forget: Callable[[], None] | None = None
    compile_options: frozenset[str] = frozenset()
    origin: str = ""

    def __post_init__(self) -> None:
        """Refuse what would fail later with a less clear message."""
        if not self.name or any(c in self.name for c in ", []\n"):
            raise ValueError(f"a backend's name may not be empty or hold commas, brackets or spaces: {self.name!r}")
        if not callable(self.factory):
            raise TypeError(f"backend {self.name!r}: factory must be callable and return the Dynamo backend")
        if not isinstance(self.capabilities, Capabilities):
            raise TypeError(
                f"backend {self.name!r}: capabilities must be an instance of Capabilities, not {self.capabilities!r}; "
                f"a class, such as declared(...) returns, wants calling: declared(...)()"
            )
        for option in self.compile_options - COMPILE_OPTIONS:
            raise ValueError(f"backend {self.name!r}: {unknown_name('compile option', option, COMPILE_OPTIONS)}")
