"""One compiled region as bytes, with the files of generated code that it is loaded from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_regional._torch.kernels import CodeFile, code_files, libraries_at_hand
from pytest_regional._torch.machine import inductor_cache_dir
from pytest_regional._torch.region_compile import aot_compiled_artifact
from pytest_regional.reference.caching.files import write_atomically
from pytest_regional.reference.calling import Compiled, as_graph_target


@dataclass(frozen=True)
class RegionCode:
    """What Inductor made of a region.

    Attributes:
        name: of the region in its graph.
        makes_plain_values: whether Inductor's code may be called without AOTAutograd's wrappers.
        artifact: PyTorch's own serialization.
        files: of generated code; a compiled library among them spares the C++ compiler.
    """

    name: str
    makes_plain_values: bool
    artifact: bytes
    files: tuple[CodeFile, ...]

    @staticmethod
    def is_region_call(target: Any) -> bool:
        """Return whether ``target`` is the function that calls a compiled region in a graph."""
        return isinstance(getattr(target, "__wrapped__", None), aot_compiled_artifact())

    @classmethod
    def of(cls, target: Any) -> RegionCode:
        """Describe the region that ``target``, such a function, calls."""
        artifact = target.__wrapped__
        return cls(target.__name__, target.makes_plain_values, artifact.serialize(), code_files(artifact))

    def load(self) -> Compiled:
        """Return the function that calls the region in a graph."""
        in_place = {str(_in_place(file)): file for file in self.files}
        with libraries_at_hand(in_place):
            artifact: Callable[..., Any] = aot_compiled_artifact().deserialize(self.artifact)  # type: ignore[attr-defined]
        return as_graph_target(artifact, self.name, plain=self.makes_plain_values)


def _in_place(file: CodeFile) -> Path:
    """Write ``file`` below Inductor's cache folder, unless it is there with the same content."""
    path = inductor_cache_dir() / file.path
    if not path.is_file() or _digest(path.read_bytes()) != _digest(file.content):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file.content)
    return path


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
