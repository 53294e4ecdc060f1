"""``--regional-list-backends``: which backends there are, where each comes from, and what it disclaims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_regional.backends import registry
from pytest_regional.backends.project_file import ProjectFile

if TYPE_CHECKING:
    from pathlib import Path


def lines(named: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield a paragraph for each backend that is installed, and for each of ``named``.

    Args:
        named: names that ``--regional-backend`` asks for.
        folder: where the ``pyproject.toml`` stands that may disclaim capabilities.

    Raises:
        ProjectFileError: that file is written otherwise.
    """
    project = ProjectFile.read(folder)
    for name in dict.fromkeys((*registry.names(), *named)):
        yield f"{name}  ({registry.origin(name)})"
        try:
            spec = project.applied_to(registry.resolve(name))
        except (registry.UnknownBackendError, registry.BackendImportError) as error:
            yield f"    cannot be used: {error}"
            continue
        support = {capability: spec.capabilities.get(capability) for capability in spec.capabilities.names()}
        absent = {capability: found.reason for capability, found in support.items() if not found}
        yield f"    claims {len(support) - len(absent)} of {len(support)} capabilities"
        yield from (f"    - {capability}: {reason}" for capability, reason in absent.items())


__all__ = ["lines"]
