"""What a run of the compiler depends on, as a key.

As ccache does in its direct mode (https://ccache.dev/manual/latest.html#_how_ccache_works): sources by content, the
compiler by path, size and time of change, and all else that can change what it makes. A command of which that cannot
be told (``compilers``) is run each time.
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

from pytest_regional._torch import cpp

#: Executables by path, size and time of change.
Identity = tuple[tuple[str, int, int], ...]

# What all of them read and act on, by value.
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
# Which other programs the compiler runs, or what else its command line says: those are not looked at.
# https://github.com/llvm/llvm-project/blob/main/clang/tools/driver/driver.cpp for Clang's.
_STEERING_VARIABLES = ("COMPILER_PATH", "GCC_EXEC_PREFIX", "GCC_COMPARE_DEBUG", "CCC_OVERRIDE_OPTIONS")
_STEERING_FLAGS = ("-B", "-specs", "--specs", "-wrapper", "--wrapper", "-fplugin", "--config", "-fuse-ld=/")

_EXECUTABLE = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")  # Linux; macOS, for one processor and for several
# Each is in the compiler's own program and in no wrapper: a name in GCC's built-in specs, a variable of Clang's driver.
_DRIVERS = (b"%(cc1_options)", b"CC_PRINT_OPTIONS")
# GCC looks for both along PATH, unless it was built with its own.
_PROGRAMS_BELOW = ("as", "ld")


def identity(executable: str) -> Identity | None:
    """Return what tells the compiler ``executable``, and what it runs, from others.

    ``None`` where something else may decide what it makes: a wrapper, or a variable that has it run other programs.
    """
    below = [found for found in map(_along_path, _PROGRAMS_BELOW) if found]
    try:
        files = tuple(_file(path) for path in (os.path.realpath(executable), *below))
        known = _is_compiler(files[0]) and all(_is_program(file) for file in files[1:])
    except OSError:  # it may be run, but not read
        return None
    return files if known and not any(os.environ.get(name) for name in _STEERING_VARIABLES) else None


def environment() -> dict[str, str | None]:
    """Return the variables that compilers, linkers and what loads them read."""
    return {name: os.environ.get(name) for name in _VARIABLES}


def is_steering(word: str) -> bool:
    """Say whether an argument has the compiler run programs, or read settings, that are not looked at."""
    return word.startswith(_STEERING_FLAGS)


def _along_path(program: str) -> str | None:
    """Return the first ``program`` along PATH, as a compiler finds it; `shutil.which` takes five times as long."""
    paths = (os.path.join(folder, program) for folder in os.get_exec_path())
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def _file(path: str) -> tuple[str, int, int]:
    found = os.stat(path)
    return path, found.st_size, found.st_mtime_ns


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


#: Counts what is in a key and how an entry is written.
FORMAT = 2

# A source that includes a file by its place depends on what is there, which is not followed.
_INCLUDES_BY_PLACE = re.compile(rb'^\s*#\s*include\s*["<]/', re.MULTILINE)

# Precompiled headers, 100 MB each: Inductor itself keeps them outside of all cache folders.
_NOT_KEPT = (".gch", ".pch")
# What a command may name that decides what is made; those that are named by their whole path count by content.
_FILES = (".a", ".c", ".cc", ".cpp", ".cu", ".cxx", ".h", ".hpp", ".ld", ".o", ".s", ".S", ".so")


@dataclass(frozen=True)
class Command:
    """One run of the compiler.

    Attributes:
        compiler: what is known of its executable, and of those that it runs.
        words: the command line behind it, names of files that vary replaced.
        sources: digests of the files that are compiled or linked, in order.
        target: the file that it makes.
    """

    compiler: Identity
    words: tuple[str, ...]
    sources: tuple[str, ...]
    target: Path

    @classmethod
    def of(cls, line: str) -> Command | None:
        """Read a command line; ``None`` for one that is not understood, which is run as it is."""
        compiler, *words = shlex.split(line)
        found = shutil.which(compiler)
        if found is None or words.count("-o") != 1 or words[-1] == "-o" or any(word.startswith("@") for word in words):
            return None
        place = words.index("-o") + 1
        target = Path(words[place])
        if not target.is_absolute() or target.suffix in _NOT_KEPT:
            return None
        # A compiler behind another (`ccache g++`) would not be seen, nor would a file next to the directory.
        if shutil.which(words[0]) or any(_is_relative_file(word) or is_steering(word) for word in words):
            return None
        found_identity = identity(found)
        if found_identity is None:
            return None
        words[place] = f"<target>{''.join(target.suffixes[-1:])}"
        digests = []
        torch = str(cpp.torch_headers().parent)
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
        """Return the digest of everything that decides what is made."""
        parts = {
            "format": FORMAT,
            "compiler": self.compiler,
            "words": self.words,
            "sources": self.sources,
            "environment": environment(),
            "headers": _headers(),
            "processor": processor(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def run_whole(run: cpp.Run, line: str, folder: str) -> None:
    """Run a command whose result is not kept here; a precompiled header has its name when it is whole.

    A compiler that is killed leaves half of it otherwise, and every compile that reads it fails.
    """
    words = shlex.split(line)
    place = words.index("-o") + 1 if words.count("-o") == 1 and words[-1] != "-o" else 0
    target = Path(words[place])
    if not place or target.suffix not in _NOT_KEPT:
        run(line, folder)
        return
    aside = target.with_name(f"{target.stem}.{secrets.token_hex(8)}{target.suffix}")
    words[place] = str(aside)
    try:
        run(shlex.join(words), folder)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def _is_relative_file(word: str) -> bool:
    return not word.startswith(("-", "/")) and Path(word).suffix in _FILES


@functools.cache
def _headers() -> str:
    """Return a digest of PyTorch's headers: 0.1 s for 9,000, once in a process.

    An installed wheel's RECORD holds digests of all its files
    (https://packaging.python.org/en/latest/specifications/recording-installed-packages), so that of another environment
    with the same wheel is the same. Headers changed later, and those of a source tree, count by size and time.
    """
    record, installed = _record()
    digest = hashlib.sha256(record)
    root = cpp.torch_headers()
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            found = os.stat(path)
            if found.st_mtime > installed:
                place = os.path.relpath(path, root)
                digest.update(f"{place}|{found.st_size}|{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _record() -> tuple[bytes, float]:
    """Return what RECORD says of PyTorch's headers and when it was written; nothing, long ago, without one."""
    root = cpp.torch_headers()
    for path in root.parent.parent.glob("torch-*.dist-info/RECORD"):
        place = os.path.relpath(root, path.parent.parent)
        lines = [line for line in path.read_bytes().splitlines() if line.startswith(f"{place}/".encode())]
        if lines:
            # Whatever installs writes the record last, and file systems round.
            return b"\n".join(sorted(lines)), path.stat().st_mtime + 2
    return b"", 0.0


@functools.cache
def processor() -> str:
    """Return what ``-march=native`` looks at: the machine's kind, and its processor's model and instructions."""
    wanted = re.compile(r"(vendor_id|cpu family|model|stepping|cache size|flags|features|cpu \w+)\s*:", re.IGNORECASE)
    named = [
        line
        for line in cpp.described_processor()
        if wanted.match(line) and not line.startswith(("cpu MHz", "cpu cores"))
    ]
    return "\n".join([platform.system(), platform.machine(), *(named or [platform.processor()])])


__all__ = ["FORMAT", "Command", "processor", "run_whole"]
