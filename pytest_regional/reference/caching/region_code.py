"""One compiled region as bytes, with the files of generated code that it is loaded from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_regional._torch.kernels import CodeFile, code_files
from pytest_regional._torch.region_compile import aot_compiled_artifact, is_serializable, why_unserializable
from pytest_regional.reference.caching.code_in_place import code_in_place
from pytest_regional.reference.caching.pickling import UnsavableGraphError
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
        """Describe the region that ``target``, such a function, calls.

        Raises:
            UnsavableGraphError: PyTorch has made nothing of it that could be stored.
        """
        artifact = target.__wrapped__
        if not is_serializable(artifact):
            why = why_unserializable(artifact) or "PyTorch's caches were off while it was compiled"
            raise UnsavableGraphError(f"region {target.__name__} was compiled to nothing that can be stored: {why}")
        # PyTorch's own pass wraps what it compiled too, and says nothing of the kind.
        plain = getattr(target, "makes_plain_values", False)
        return cls(target.__name__, plain, artifact.serialize(), code_files(artifact))

    def load(self) -> Compiled:
        """Return the function that calls the region in a graph."""
        with code_in_place(self.files):
            artifact: Callable[..., Any] = aot_compiled_artifact().deserialize(self.artifact)  # type: ignore[attr-defined]
        return as_graph_target(artifact, self.name, plain=self.makes_plain_values)
