"""Caches: their directory, files of generated code, portable artifacts, the remote cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pytest_regional._torch import calling, fetching, symbol
from pytest_regional._torch.autograd_cache import cache_class
from pytest_regional._torch.inductor import compiled_fx_graph
from pytest_regional._torch.patching import PatchPoint, wrapped
from pytest_regional._torch.tracing import compile_lock


def record_portable(key: str, content: bytes) -> None:
    """Add ``content`` to this process's portable artifacts, as an entry of AOTAutograd's cache.

    ``torch.compiler._cache.CacheArtifactManager.record_artifact`` with the type of ``AOTAutogradCacheArtifact`` (2.11
    to 2.15). Equal entries are recorded once. A type of our own would have to be registered wherever artifacts are
    loaded: PyTorch refuses all artifacts if it does not know the type of one.
    """
    module = "torch._functorch._aot_autograd.autograd_cache"
    artifact_type = symbol(module, "AOTAutogradCacheArtifact").type()
    _portable_artifacts().record_artifact(artifact_type, key, content)


def portable_folder(key: str) -> Path:
    """Return the directory, below Inductor's, into which loading writes entries under ``key`` (2.11 to 2.15)."""
    return Path(cache_class()._get_tmp_dir_for_key(key))


def clear_portable() -> None:
    """Clear the recorded artifacts, as in a new process: ``CacheArtifactManager.clear`` (2.11 to 2.15)."""
    _portable_artifacts().clear()


def inductor_cache_dir() -> Path:
    """Return Inductor's cache directory, by ``TORCHINDUCTOR_CACHE_DIR``, created if missing (2.11 to 2.15)."""
    return Path(symbol("torch._inductor.runtime.cache_dir_utils", "cache_dir")())


_CODECACHE = "torch._inductor.codecache"

#: Clears loaded code and every in-memory cache that Inductor registers for a fresh cache (2.11 to 2.15).
clear_inductor_caches = calling("torch._inductor.utils", "clear_caches")
_portable_artifacts = fetching("torch.compiler._cache", "CacheArtifactManager")
#: Generated modules (2.11 to 2.15).
_python_code_cache = fetching(_CODECACHE, "PyCodeCache")


class CodeFile(NamedTuple):
    """A file of generated code, its path relative to Inductor's cache directory.

    ``library`` is Inductor's key of a compiled C++ library, ``source`` the SHA-256 of its source; both are empty for
    Python sources.
    """

    path: str
    content: bytes
    library: str = ""
    source: str = ""


def code_files(artifact: Any) -> tuple[CodeFile, ...]:
    """Return the Python source of a compiled region and the C++ libraries that it loaded."""
    return code_files_of_entry(artifact.inner_fn.compiled_fn.serialize())


def code_files_of_entry(entry: Any) -> tuple[CodeFile, ...]:
    """Return the code files of an entry of AOTAutograd's cache (2.11 to 2.15).

    The libraries are those whose functions are in its module. Other output code brings its own files.
    """
    results = [part.result for part in (entry.compiled_fw, entry.compiled_bw) if part is not None]
    graphs = [result for result in results if isinstance(result, compiled_fx_graph())]
    path_of = symbol(_CODECACHE, "get_path")
    sources = [
        CodeFile(_below_cache_dir(str(path_of(graph.cache_key, "py")[2])), graph.source_code.encode())
        for graph in graphs
    ]
    return *sources, *(library for graph in graphs for library in _libraries(graph.cache_key))


@contextlib.contextmanager
def libraries_at_hand(files: Mapping[str, CodeFile]) -> Iterator[None]:
    """Load code inside with its libraries from ``files``, by path, without a compiler.

    Inductor itself first probes the compiler, with a test program for vector instructions and a precompiled header,
    before it finds that nothing has to be built. It looks for another library if the results differ
    (``CppPythonBindingsCodeCache.load_async``, 2.11 to 2.15, whose first argument is the source). Contexts nest:
    regions of a graph are loaded while the graph is.
    """
    point = PatchPoint("torch._inductor.codecache:CppPythonBindingsCodeCache", "load_async", static=True)
    paths = {file.source: (path, file.library) for path, file in files.items() if file.source}

    def load_async(original: Callable[..., Any], main_code: str, *args: Any, **kwargs: Any) -> Any:
        found = paths.get(_digest(main_code.encode()))
        if found is None:
            return original(main_code, *args, **kwargs)
        cache = point.container()
        return lambda: cache._load_library(*found)

    with compile_lock(), wrapped({"load": point}, {"load": load_async}):
        yield


def _below_cache_dir(path: str) -> str:
    """Return the last two parts of ``path``: Inductor puts every file into a directory named after its key."""
    return os.path.join(os.path.basename(os.path.dirname(path)), os.path.basename(path))


def _libraries(key: str) -> Iterator[CodeFile]:
    """``PyCodeCache.modules`` holds every generated module that this process loaded (2.11 to 2.15)."""
    seen = set()
    for module in _python_code_cache().modules:
        functions = vars(module).values() if getattr(module, "key", None) == key else ()
        for library in (getattr(function, "__self__", None) for function in functions):
            path, name = getattr(library, "__file__", None), getattr(library, "key", "")
            if not path or not name or name in seen:
                continue
            # It may be gone from where it was loaded, or replaced by another of that name.
            candidates = inductor_cache_dir() / _below_cache_dir(path), Path(path)
            file = next((file for file in candidates if file.is_file()), None)
            if file is not None:
                seen.add(name)
                source = file.with_suffix(".cpp")  # Inductor keeps it next to the library
                digest = _digest(source.read_bytes()) if source.is_file() else ""
                yield CodeFile(_below_cache_dir(str(file)), file.read_bytes(), name, digest)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def load_source(source: str, name: str) -> Any:
    """Return ``name`` from the module with this ``source``, cached as Inductor caches modules (2.11 to 2.15)."""
    return getattr(_python_code_cache().load(source), name)
