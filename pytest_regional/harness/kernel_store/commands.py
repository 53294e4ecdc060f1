"""Runs of the C++ compiler: their keys, and how they use the store; and Triton's files, kept in the same store.

Like ccache's direct mode (https://ccache.dev/manual/latest.html#_how_ccache_works): sources by content, the compiler by
path, size and modification time, and everything else that can change the output. A command for which this is unknown
always runs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
import os
import platform
import re
import secrets
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton.runtime.cache import FileCacheManager

from pytest_regional._torch import cpp
from pytest_regional.harness.kernel_store.files import PRECOMPILED, KernelFiles, chosen_folder

#: Executables by path, size and modification time.
Identity = tuple[tuple[str, int, int], ...]

# Variables that all of them read, by value.
# https://gcc.gnu.org/onlinedocs/gcc/Environment-Variables.html, `man ld`, `man ld.so`
_VARIABLES = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "SOURCE_DATE_EPOCH",
    "GNUTARGET",
    "LDEMULATION",
    "LD_RUN_PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LD_AUDIT",
    "MACOSX_DEPLOYMENT_TARGET",
    "SDKROOT",
)
# Variables and arguments that name other programs to run, or more arguments; those are not followed.
# https://github.com/llvm/llvm-project/blob/main/clang/tools/driver/driver.cpp for Clang's.
_STEERING_VARIABLES = ("COMPILER_PATH", "GCC_EXEC_PREFIX", "GCC_COMPARE_DEBUG", "CCC_OVERRIDE_OPTIONS")
_STEERING_FLAGS = ("-B", "-specs", "--specs", "-wrapper", "--wrapper", "-fplugin", "--config", "-fuse-ld=/")

_EXECUTABLE = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")  # Linux; macOS, for one processor and for several
# Each string is in the compiler's own program and in no wrapper: a name in GCC's built-in specs, a variable of Clang's
# driver.
_DRIVERS = (b"%(cc1_options)", b"CC_PRINT_OPTIONS")
# GCC looks for both along PATH, unless it was built with its own.
_PROGRAMS_BELOW = ("as", "ld")


def identity(executable: str) -> Identity | None:
    """Return the identity of the compiler ``executable`` and of the programs that it runs.

    ``None`` if something else may affect the output: a wrapper, or a variable that makes it run other programs.
    """
    below = [found for found in map(_along_path, _PROGRAMS_BELOW) if found]
    try:
        found = [(path, os.stat(path)) for path in (os.path.realpath(executable), *below)]
        files = tuple((path, status.st_size, status.st_mtime_ns) for path, status in found)
        known = _is_compiler(files[0]) and all(_is_program(file) for file in files[1:])
    except OSError:  # executable, but not readable
        return None
    return files if known and not any(os.environ.get(name) for name in _STEERING_VARIABLES) else None


def environment() -> dict[str, str | None]:
    """Return the variables read by compilers, linkers and loaders."""
    return {name: os.environ.get(name) for name in _VARIABLES}


def _along_path(program: str) -> str | None:
    """Return the first ``program`` along PATH, as a compiler finds it; `shutil.which` takes five times as long."""
    paths = (os.path.join(folder, program) for folder in os.get_exec_path())
    return next((path for path in paths if os.access(path, os.X_OK)), None)


@functools.cache
def _is_program(file: tuple[str, int, int]) -> bool:
    with open(file[0], "rb") as program:
        return program.read(4) in _EXECUTABLE


@functools.cache
def _is_compiler(file: tuple[str, int, int]) -> bool:
    if not _is_program(file):
        return False
    with open(file[0], "rb") as program, mmap.mmap(program.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(mark) >= 0 for mark in _DRIVERS)


#: Version of the key and of an entry's format.
FORMAT = 2

# A source that includes a file by path depends on its content, which is not followed.
_INCLUDES_BY_PLACE = re.compile(rb'^\s*#\s*include\s*["<]/', re.MULTILINE)

# GCC checks compiler, flags and macros when it reads one. Clang's precompiled headers depend on times of files.
_NOT_KEPT = (".pch",)
# Arguments that name files and affect the output; files given by absolute path count by content.
_FILES = (".a", ".c", ".cc", ".cpp", ".cu", ".cxx", ".h", ".hpp", ".ld", ".o", ".s", ".S", ".so")


@dataclass(frozen=True)
class Command:
    """One run of the compiler.

    Attributes:
        compiler: identity of its executable, and of the programs that it runs.
        words: the rest of the command line, with varying file names replaced.
        sources: digests of the compiled or linked files, in order.
        target: the output file.
    """

    compiler: Identity
    words: tuple[str, ...]
    sources: tuple[str, ...]
    target: Path

    @classmethod
    def of(cls, line: str) -> Command | None:
        """Parse a command line; ``None`` if it is not understood, which runs it unchanged."""
        compiler, *words = shlex.split(line)
        found = shutil.which(compiler)
        if found is None or words.count("-o") != 1 or words[-1] == "-o" or any(word.startswith("@") for word in words):
            return None
        place = words.index("-o") + 1
        target = Path(words[place])
        if not target.is_absolute() or target.suffix in _NOT_KEPT:
            return None
        # A compiler behind another (`ccache g++`) or a file next to the directory would be missed.
        relative = [word for word in words if not word.startswith(("-", "/")) and Path(word).suffix in _FILES]
        if shutil.which(words[0]) or relative or any(word.startswith(_STEERING_FLAGS) for word in words):
            return None
        found_identity = identity(found)
        if found_identity is None:
            return None
        words[place] = f"<target>{''.join(target.suffixes[-1:])}"
        digests = []
        torch = str(cpp.torch_headers().parent)
        if target.suffix == PRECOMPILED:
            # Its name contains a digest of the preprocessed header, and it names the headers in it by their place.
            words[place], torch = target.name, "/no/other/place"
        for index, word in enumerate(words):
            words[index] = word.replace(torch, "<torch>")
            if word.startswith("-") or not os.path.isfile(word):
                continue
            content = Path(word).read_bytes()
            if _INCLUDES_BY_PLACE.search(content):
                return None
            digests.append(hashlib.sha256(content).hexdigest())
            words[index] = f"<file>{Path(word).suffix}"
        return cls(found_identity, tuple(words), tuple(digests), target) if digests else None

    def key(self) -> str:
        """Return the digest of everything that affects the output."""
        parts = {
            "format": FORMAT,
            "compiler": self.compiler,
            "words": self.words,
            "sources": self.sources,
            "environment": environment(),
            "headers": _headers(cpp.torch_headers()),
            "processor": processor(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def run_whole(run: cpp.Run, line: str, folder: str) -> None:
    """Run a command without storing the result; a precompiled header gets its name when it is complete.

    Otherwise a killed compiler leaves an incomplete one, and every compile that reads it fails.
    """
    words = shlex.split(line)
    place = words.index("-o") + 1 if words.count("-o") == 1 and words[-1] != "-o" else 0
    target = Path(words[place])
    if not place or target.suffix not in (PRECOMPILED, *_NOT_KEPT):
        run(line, folder)
        return
    aside = target.with_name(f"{target.stem}.{secrets.token_hex(8)}{target.suffix}")
    words[place] = str(aside)
    try:
        run(shlex.join(words), folder)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


@functools.cache
def _headers(root: Path) -> str:
    """Return a digest of PyTorch's headers in ``root``: 0.1 s for 9,000, once per process.

    The RECORD of an installed wheel holds digests of all its files
    (https://packaging.python.org/en/latest/specifications/recording-installed-packages), so another environment with
    the same wheel has the same digest. Headers changed later, and those of a source tree, count by size and time.
    """
    record, installed = b"", 0.0
    for path in root.parent.parent.glob("torch-*.dist-info/RECORD"):
        place = os.path.relpath(root, path.parent.parent)
        lines = [line for line in path.read_bytes().splitlines() if line.startswith(f"{place}/".encode())]
        if lines:
            # Installers write the record last, and file systems round times.
            record, installed = b"\n".join(sorted(lines)), path.stat().st_mtime + 2
            break
    digest = hashlib.sha256(record)
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            header = os.path.join(folder, name)
            found = os.stat(header)
            if found.st_mtime > installed:
                place = os.path.relpath(header, root)
                digest.update(f"{place}|{found.st_size}|{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@functools.cache
def processor() -> str:
    """Return what ``-march=native`` depends on: the machine type, and the CPU's model and instructions."""
    wanted = re.compile(r"(vendor_id|cpu family|model|stepping|cache size|flags|features|cpu \w+)\s*:", re.IGNORECASE)
    named = [
        line
        for line in cpp.described_processor()
        if wanted.match(line) and not line.startswith(("cpu MHz", "cpu cores"))
    ]
    return "\n".join([platform.system(), platform.machine(), *(named or [platform.processor()])])


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
            # Triton chooses from these compilers (``triton.runtime.build``, 3.6 to 3.9).
            named = [os.environ.get(variable) for variable in ("CC", "CXX")] + ["gcc", "clang", "g++", "clang++"]
            found = [path for path in (shutil.which(name) for name in named if name) if path]
            made_by = [one for one in map(identity, found) if one]
            if not found or len(made_by) != len(found):
                return None
            parts += [made_by, environment()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
