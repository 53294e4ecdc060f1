"""Files of generated code: where Inductor keeps them, and how to have them loaded without a C++ compiler."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from pytest_regional._torch import symbol

_CODECACHE = "torch._inductor.codecache"


class CodeFile(NamedTuple):
    """A file of generated code, its path relative to Inductor's cache folder.

    ``library`` is the key under which a compiled C++ library is known to Inductor; empty for Python sources.
    """

    path: str
    content: bytes
    library: str = ""


def cache_dir() -> str:
    """``cache_dir`` of ``torch._inductor.runtime.cache_dir_utils``: ``TORCHINDUCTOR_CACHE_DIR`` or a default."""
    return str(symbol("torch._inductor.runtime.cache_dir_utils", "cache_dir")())


def code_files(artifact: Any) -> tuple[CodeFile, ...]:
    """Return the Python source of a compiled region and the C++ libraries that it has loaded.

    ``CompiledFxGraph.source_code`` and ``cache_key`` (2.11 to 2.15) name the source; the libraries are those whose
    functions stand in the module made of it, each with Inductor's ``key``.
    """
    graph = artifact.inner_fn.compiled_fn.serialize().compiled_fw.result
    key = graph.cache_key
    source = CodeFile(_below_cache_dir(_source_path(key)), graph.source_code.encode())
    return source, *_libraries(key)


def install(file: CodeFile, path: str) -> None:
    """Make Inductor load the library at ``path`` when its code asks for the library that ``file`` was.

    Without it Inductor would look for a compiler, its vector instructions and a precompiled header before it finds
    that nothing is to be built (``CppPythonBindingsCodeCache.cache``, 2.11 to 2.15).
    """
    cache = symbol(_CODECACHE, "CppPythonBindingsCodeCache")
    if file.library and file.library not in cache.cache:
        library = cache._load_library(path, file.library)
        cache.cache[file.library] = lambda: library


def _source_path(key: str) -> str:
    """``torch._inductor.codecache.get_path`` (2.11 to 2.15)."""
    return str(symbol(_CODECACHE, "get_path")(key, "py")[2])


def _below_cache_dir(path: str) -> str:
    """Return the last two parts of ``path``: Inductor puts every file into a folder named after its key."""
    return os.path.join(os.path.basename(os.path.dirname(path)), os.path.basename(path))


def _libraries(key: str) -> Iterator[CodeFile]:
    """``PyCodeCache.modules`` holds every generated module that this process loaded (2.11 to 2.15)."""
    seen = set()
    for module in symbol(_CODECACHE, "PyCodeCache").modules:
        if getattr(module, "key", None) != key:
            continue
        for function in vars(module).values():
            library = getattr(function, "__self__", None)
            path, name = getattr(library, "__file__", None), getattr(library, "key", "")
            if path and name and path not in seen and os.path.isfile(path):
                seen.add(path)
                with open(path, "rb") as file:
                    yield CodeFile(_below_cache_dir(path), file.read(), name)
