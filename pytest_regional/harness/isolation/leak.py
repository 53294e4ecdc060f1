"""One thing that a test left changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_regional._secrets import masked_urls

#: What stands before the name of an environment variable.
VARIABLE = "environment variable "


@dataclass(frozen=True, repr=False)
class Leak:
    """One thing that a test left changed.

    As text it says of an environment variable only what became of it: its value may be a secret.

    Attributes:
        name: the setting.
        before: what it was.
        after: what the test left.
        put_back: whether it is again what it was; ``False`` where only its name could be noted.
        poisons: whether later results of this process cannot be trusted, since it is not what it was.
    """

    name: str
    before: Any
    after: Any
    put_back: bool = True
    poisons: bool = False

    def __str__(self) -> str:
        if self.name.startswith(VARIABLE):
            became = "removed" if self.after is MISSING else "set" if self.before is MISSING else "changed"
            return f"{self.name}: {became}"
        return f"{self.name}: {_short(self.before)} -> {_short(self.after)}"

    def __repr__(self) -> str:
        return f"<Leak {self}>"


class _Missing:
    def __repr__(self) -> str:
        return "(not set)"


MISSING = _Missing()


def _short(value: Any) -> str:
    text = masked_urls(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."


__all__ = ["MISSING", "VARIABLE", "Leak"]
