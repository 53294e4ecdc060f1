"""Functions, custom ops and classes that programs use, as source: executed once a process, printed where needed."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

#: Source by name. Each defines that name with nothing but ``torch``, ``math``, ``annotate`` and other definitions.
DEFINITIONS: dict[str, str] = {}


def defined(names: Iterable[str]) -> dict[str, Any]:
    """Return what every program can use, and the definitions called ``names``."""
    return {**_common(), **{name: _definition(name) for name in names}}


@functools.cache
def _common() -> dict[str, Any]:
    import math

    import torch
    from torch.fx.traceback import annotate

    return {"torch": torch, "math": math, "annotate": annotate}


@functools.cache
def _definition(name: str) -> Any:
    scope = _common().copy()
    exec(compile(DEFINITIONS[name], f"<definition of {name}>", "exec"), scope)
    return scope[name]
