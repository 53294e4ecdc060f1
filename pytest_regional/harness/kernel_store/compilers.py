"""What a compiler is, where that can be told: the program itself, not a script or a wrapper in front of it.

A wrapper may ask anything: a variable, a file, a server, the time. What it makes is not kept.
"""

from __future__ import annotations

import functools
import mmap
import os

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


__all__ = ["Identity", "environment", "identity", "is_steering"]
