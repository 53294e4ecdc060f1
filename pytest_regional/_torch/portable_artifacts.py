"""PyTorch's portable artifacts: what ``torch.compiler.save_cache_artifacts()`` returns, and loading puts on disk."""

from __future__ import annotations

from pathlib import Path

from pytest_regional._torch import symbol

_AUTOGRAD_CACHE = "torch._functorch._aot_autograd.autograd_cache"


def record(key: str, content: bytes) -> None:
    """Add ``content`` to the portable artifacts of this process, as an entry of AOTAutograd's cache.

    ``torch.compiler._cache.CacheArtifactManager.record_artifact`` with the type of ``AOTAutogradCacheArtifact`` (2.11
    to 2.15). Equal entries are recorded once. A type of our own would have to be registered wherever artifacts are
    loaded: PyTorch refuses all of them, everybody's, where it does not know one type.
    """
    artifact_type = symbol(_AUTOGRAD_CACHE, "AOTAutogradCacheArtifact").type()
    symbol("torch.compiler._cache", "CacheArtifactManager").record_artifact(artifact_type, key, content)


def folder_of_loaded(key: str) -> Path:
    """Return the folder into which loading writes entries under ``key``.

    ``AOTAutogradCache._get_tmp_dir_for_key`` (2.11 to 2.15): below Inductor's cache folder.
    """
    return Path(symbol(_AUTOGRAD_CACHE, "AOTAutogradCache")._get_tmp_dir_for_key(key))


def forget_recorded() -> None:
    """Drop what was recorded, as a new process has it: ``CacheArtifactManager.clear`` (2.11 to 2.15)."""
    symbol("torch.compiler._cache", "CacheArtifactManager").clear()
