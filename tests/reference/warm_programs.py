"""What the tests of warm starts share: programs in files that can be edited, and processes that can be begun anew."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from pytest_regional._torch.patching import patched_stages
from pytest_regional.reference import warm_starts
from pytest_regional.reference.dynamo_backend import clear_caches

HEAD = "import enum, functools, os\nimport torch\nfrom pytest_regional import region\n"


class Programs:
    """Modules in a folder; each process begins by importing them anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, source: str, name: str = "warm_program") -> None:
        """Write or edit a module."""
        (self.folder / f"{name}.py").write_text(HEAD + source)

    def begin(self, name: str = "warm_program") -> Any:
        """Begin a process: forget what was compiled and imported, and return the module, imported from its file."""
        for path in self.folder.glob("*.py"):
            sys.modules.pop(path.stem, None)
        importlib.invalidate_caches()
        torch._dynamo.reset()
        clear_caches()
        return importlib.import_module(name)


@contextlib.contextmanager
def traces() -> Iterator[list[str]]:
    """Yield the names of the frames that are traced inside."""
    seen: list[str] = []

    def note(original: Callable[..., Any], code: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(code.co_name)
        return original(code, *args, **kwargs)

    with patched_stages({"trace": note}):
        yield seen


def warm_run(fn: Any, *inputs: Any, **options: Any) -> tuple[Any, int]:
    """Compile and run with stored traces; return the output and how many frames were traced."""
    with warm_starts(), traces() as seen:
        output = torch.compile(fn, backend="regional", **options)(*inputs)
    return output, len(seen)


def bypasses() -> list[str]:
    """Return why traces were not stored."""
    return list(counters["regional_trace_bypass"])


def misses() -> list[str]:
    """Return why stored traces did not hold."""
    return list(counters["regional_trace_miss"])
