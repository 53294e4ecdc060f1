"""Triton's compiled kernels and launchers in the store: the value of ``TRITON_CACHE_MANAGER`` while a test runs.

Triton's own key of a kernel is a digest of its source, callees, options, target, compiler and environment
(``triton.compiler.compile``, 3.6 to 3.9), so a name in the store is that key and the name of the file. Its key of a
launcher does not include the C compiler, which is added here. Each test still has its own ``TRITON_CACHE_DIR``: files
from the store are written there first.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from triton.runtime.cache import FileCacheManager

from pytest_regional.harness.kernel_store import commands
from pytest_regional.harness.kernel_store.commands import FORMAT, processor
from pytest_regional.harness.kernel_store.files import KernelFiles, chosen_folder

_GROUP = "__grp__"  # prefix of a file that lists others by path: another directory has other paths


class StoredBinaries(FileCacheManager):  # type: ignore[misc]
    """Triton's manager of the files of one key, with the store as fallback for its directory."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override=override, dump=dump)
        folder = None if override or dump else chosen_folder()
        self._store = KernelFiles(folder) if folder else None

    def get_file(self, filename: str) -> str | None:
        """Return the path of a file of this key, from the test's directory or from the store."""
        path: str | None = super().get_file(filename)
        if path is None and self._store and not filename.startswith(_GROUP):
            name = self._name(filename)
            content = self._store.read(name) if name else None
            path = None if content is None else super().put(content, filename)
        return path

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        """Write a file of this key."""
        path: str = super().put(data, filename, binary)
        if self._store and not filename.startswith(_GROUP) and (name := self._name(filename)):
            self._store.put(name, Path(path))
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the paths of the files that belong to ``filename``; all of them, or ``None``."""
        paths: dict[str, str] | None = super().get_group(filename)
        if paths is not None or self._store is None:
            return paths
        name = self._name(_GROUP + filename)
        listed = self._store.read(name) if name else None
        found = {name: self.get_file(name) for name in json.loads(listed)} if listed else {}
        paths = {name: path for name, path in found.items() if path is not None}
        if not paths or len(paths) != len(found):
            return None
        super().put_group(filename, paths)
        return paths

    def put_group(self, filename: str, group: dict[str, str]) -> Any:
        """Note which files belong to ``filename``."""
        written = super().put_group(filename, group)
        if self._store and (name := self._name(_GROUP + filename)):
            self._store.keep(name, json.dumps(sorted(group)).encode())
        return written

    def _name(self, filename: str) -> str | None:
        """Return the name in the store; ``None`` for a launcher whose compiler is unknown."""
        parts = [FORMAT, processor(), self.key, filename]
        if filename.endswith(".so"):
            made_by = _c_compilers()
            if made_by is None:
                return None
            parts += [made_by, commands.environment()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _c_compilers() -> list[commands.Identity] | None:
    """Return the identities of the compilers that Triton chooses from (``triton.runtime.build``, 3.6 to 3.9)."""
    named = [os.environ.get(variable) for variable in ("CC", "CXX")] + ["gcc", "clang", "g++", "clang++"]
    found = [path for path in (shutil.which(name) for name in named if name) if path]
    known = [one for one in map(commands.identity, found) if one]
    return known if found and len(known) == len(found) else None


__all__ = ["StoredBinaries"]
