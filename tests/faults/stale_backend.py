"""Planted faults for suites/staleness: backends that run graphs as they are, with caches whose keys lack something.

``COMPLETE`` lacks nothing.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_regional import BackendSpec, GraphCapabilities

#: The key of a graph, by what is planted.
KEYS: dict[str, Callable[[Any], str]] = {
    "COMPLETE": lambda gm: gm.code,
    "NOTHING": lambda gm: "",
    "WITHOUT_NUMBERS": lambda gm: " ".join(str(node.target) for node in gm.graph.nodes),
}

_MEMORY: dict[str, Any] = {}


def on_disk(planted: str, gm: Any, inputs: Sequence[Any]) -> Any:
    """Keep graphs in files."""
    file = Path(
        os.environ["TORCHINDUCTOR_CACHE_DIR"],
        "planted",
        f"{hashlib.sha256(KEYS[planted](gm).encode()).hexdigest()}.pickle",
    )
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(gm))
    return pickle.loads(file.read_bytes()).forward


def in_memory(gm: Any, inputs: Sequence[Any]) -> Any:
    """Keep the first graph for good: a restart doesn't clear this cache."""
    return _MEMORY.setdefault("all", gm).forward


def always_twice(gm: Any, inputs: Sequence[Any]) -> Any:
    """Take each factor for 2, without any cache."""
    for node in gm.graph.nodes:
        if node.target is operator.mul:
            node.args = (node.args[0], 2)
    gm.recompile()
    return gm.forward


def _spec(name: str, backend: Callable[..., Any]) -> BackendSpec:
    return BackendSpec(name.lower(), lambda: backend, GraphCapabilities())


COMPLETE, NOTHING, WITHOUT_NUMBERS = (_spec(name, functools.partial(on_disk, name)) for name in KEYS)
IN_MEMORY = _spec("IN_MEMORY", in_memory)
ALWAYS_TWICE = _spec("ALWAYS_TWICE", always_twice)
