"""Artifacts: bytes in a checked container, private files, the machine's fingerprint, and the cache's errors.

Layout, numbers big-endian::

    magic (8)  format version (4)  header length (4)  payload length (8)  crc32 of the 24 bytes so far (4)
    sha256 of everything else (32)
    header: JSON with kind, key, and the machine's fields
    payload

The first 28 bytes keep their meaning in every format version. They have their own checksum, which distinguishes a
flipped bit in a length from a truncated file. The payload is only used, or unpickled, after the checksum over
everything was compared.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pickle
import platform
import re
import stat
import struct
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_regional._base import files
from pytest_regional._base.errors import RegionalError, RegionalValueError, RegionalWarning
from pytest_regional._base.files import NotPrivateError
from pytest_regional._torch import cpp


class ArtifactError(RegionalError, RuntimeError):
    """An artifact cannot be used; the message says which, why, and what to do."""


class UnstorableError(RegionalValueError):
    """A value means nothing in another process, or cannot be stored for it; the message names it."""


class ArtifactNotFoundError(ArtifactError):
    """The file does not exist."""


class CacheWarning(RegionalWarning):
    """The cache could not be fully used; the program is still compiled correctly."""


_said: set[str] = set()
_saying = threading.Lock()


def warn_once(message: str, *, about: str = "") -> None:
    """Warn with ``message`` once per process, or once for all messages with the same ``about``."""
    with _saying:
        if (about or message) in _said:
            return
        _said.add(about or message)
    warnings.warn(message, CacheWarning, stacklevel=3)


def reset_warnings() -> None:
    """Let ``warn_once`` give every warning again, as in a new process."""
    with _saying:
        _said.clear()


def warn_of_unusable_entry(error: Exception) -> None:
    """Warn that an intact entry of the outer cache refers to something that this process lacks."""
    warnings.warn(
        f"an entry of the outer cache cannot be used here and is compiled again: {type(error).__name__}: {error}",
        CacheWarning,
        stacklevel=3,
    )


# Not text, and with a line end that a transfer in text mode would change.
MAGIC = b"\x89REGION\n"
FORMAT_VERSION = 1
_PREAMBLE = struct.Struct(">8sIIQ")
_CRC = struct.Struct(">I")
_START = _PREAMBLE.size + _CRC.size
_HEADER_AT = _START + hashlib.sha256().digest_size


def seal(payload: bytes, *, kind: str, key: str = "", machine: TargetFingerprint | None = None) -> bytes:
    """Return ``payload`` in a container.

    Args:
        payload: any bytes.
        kind: what they are, as shown in error messages.
        key: their cache key, if any.
        machine: where they were compiled; by default this machine.
    """
    fields = {"kind": kind, "key": key, "machine": (machine or this_machine()).as_dict()}
    header = json.dumps(fields, sort_keys=True).encode()
    preamble = _PREAMBLE.pack(MAGIC, FORMAT_VERSION, len(header), len(payload))
    start = preamble + _CRC.pack(zlib.crc32(preamble))
    return b"".join((start, _checksum(start, header, payload), header, payload))


def unseal(
    data: bytes, *, kind: str, key: str | None = None, where: str = "", machine: TargetFingerprint | None = None
) -> bytes:
    """Return the payload of a container after every check.

    Args:
        data: the result of ``seal``, perhaps from another process or machine.
        kind: required kind of the payload.
        key: required cache key; ``None`` accepts any.
        where: the file or entry, for messages.
        machine: required machine; by default this one.

    Raises:
        ArtifactError: its subclass tells what is wrong, the message also where and what to do.
    """
    where = where or "these bytes"
    header, payload = _opened(data, where)
    if header["kind"] != kind:
        raise ArtifactError(f"{where} holds {header['kind']!r}, not {kind!r}. Check the path.")
    if key is not None and header["key"] != key:
        raise ArtifactError(
            f"{where} belongs to the key {header['key'] or '(none)'}, not to {key}: it was moved or copied. "
            f"Delete it and compile again."
        )
    there, here = dict(header["machine"]), (machine or this_machine()).as_dict()
    if there.get("torch") != here["torch"]:
        raise ArtifactError(
            f"{where} was compiled by torch {there.get('torch')}; this is torch {here['torch']}. "
            f"Compile again with this one, or install that one."
        )
    if there != here:
        names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
        differences = "; ".join(f"{name} {there.get(name)!r} there, {here.get(name)!r} here" for name in names)
        raise ArtifactError(f"{where} was compiled on another machine: {differences}. Compile again on this one.")
    return payload


def _opened(data: bytes, where: str) -> tuple[dict[str, Any], bytes]:
    """Check lengths and checksums; return the header and the payload."""

    def damaged(how: str) -> ArtifactError:
        return ArtifactError(f"{where} is {how}. Copy it again, or delete it and compile again.")

    if not data:
        raise ArtifactError(f"{where} is empty. Delete it and compile again.")
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise ArtifactError(
            f"{where} is not an artifact of pytest-regional: it starts with {data[:8]!r}. Check the path."
        )
    if len(data) < _HEADER_AT:
        raise damaged(f"truncated: {len(data)} bytes are fewer than any artifact has")
    if zlib.crc32(data[: _PREAMBLE.size]) != _CRC.unpack_from(data, _PREAMBLE.size)[0]:
        raise damaged("corrupted: the checksum of its first bytes does not match")
    _, version, header_length, payload_length = _PREAMBLE.unpack_from(data)
    if version != FORMAT_VERSION:
        raise ArtifactError(
            f"{where} is written in format {version}; this pytest-regional reads format {FORMAT_VERSION}. "
            f"Compile again, or use the pytest-regional that wrote it."
        )
    stop = _HEADER_AT + header_length
    expected = stop + payload_length
    if len(data) < expected:
        raise damaged(f"truncated: {len(data)} of {expected} bytes exist")
    if len(data) > expected:
        raise damaged(f"corrupted: {len(data) - expected} bytes follow its end")
    header, payload = data[_HEADER_AT:stop], data[stop:]
    if _checksum(data[:_START], header, payload) != data[_START:_HEADER_AT]:
        raise damaged("corrupted: its checksum does not match its contents")
    # The checksum holds, so another program wrote a wrong header in our format.
    try:
        fields = json.loads(header)
    except ValueError as error:
        raise damaged("corrupted: its header is not JSON") from error
    if not isinstance(fields, dict) or not {"kind", "key", "machine"} <= fields.keys():
        raise damaged("corrupted: its header lacks kind, key or machine")
    return fields, payload


def _checksum(start: bytes, header: bytes, payload: bytes) -> bytes:
    checksum = hashlib.sha256(start)
    checksum.update(header)
    checksum.update(payload)
    return checksum.digest()


#: Errors of ``pickle``, and of reducers of torch and users, for an object that cannot be pickled.
_PICKLING_ERRORS = (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError)


def dumped(value: Any, parts: Iterable[tuple[str, Any]], dump: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """Return ``dump(value)``.

    Args:
        value: the object to be dumped.
        parts: its parts, each with a name for messages.
        dump: returns the bytes of the whole or of a part.

    Raises:
        UnstorableError: a part cannot be dumped; the message names it.
        Exception: the error of ``dump``, if every part alone can be dumped, so that no single value is at fault.
    """
    try:
        return dump(value)
    except UnstorableError:
        raise
    except _PICKLING_ERRORS:
        for name, part in parts:
            try:
                dump(part)
            except UnstorableError:
                raise
            except _PICKLING_ERRORS as error:
                raise UnstorableError(f"{name} cannot be pickled: {type(error).__name__}: {error}") from error
        raise


KIND = "outer cache entry"


def require_key(key: str) -> None:
    """Raise unless a key is a lower-case hexadecimal number: it becomes the name of a directory.

    Raises:
        ValueError: invalid key.
    """
    if not re.fullmatch(r"[0-9a-f]{1,128}", key):
        raise ValueError(f"{key!r} is not a cache key: 1 to 128 digits from 0123456789abcdef, as a hash's hexdigest().")


@dataclass(frozen=True)
class TargetFingerprint:
    """The machine that compiled an artifact. Equal machines can use each other's artifacts.

    Attributes:
        python: implementation and minor version, with ABI flags, for pickles and extension modules.
        torch: full version and commit.
        triton: version, empty without.
        compiler: Inductor's C++ compiler and its version, empty without.
        cpu: platform, architecture, Inductor's vector instructions, and a digest of all instruction sets, because
            Inductor compiles with ``-march=native``.
        gpu: names, capabilities, runtime and driver, empty without.
    """

    python: str
    torch: str
    triton: str
    compiler: str
    cpu: str
    gpu: str

    def digest(self) -> str:
        """Return a hash over all fields."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, str]:
        """Return the fields by name."""
        return asdict(self)


def this_machine() -> TargetFingerprint:
    """Describe this process's machine: about 0.1 s once, then cached. A GPU is only initialized if there is one."""
    return _machine(cpp.cpu_capability_override())


@functools.cache
def _machine(cpu_capability: str) -> TargetFingerprint:
    words = [sys.platform, platform.machine(), *cpp.vector_instructions(), f"features {_cpu_features()}"]
    return TargetFingerprint(
        python=f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}",
        torch=_torch(),
        triton=_triton(),
        compiler=_compiler(*cpp.cpp_compiler()),
        cpu=" ".join([*words, f"as {cpu_capability}"] if cpu_capability else words),
        gpu=_gpu(),
    )


def _torch() -> str:
    import torch  # a process that only reads and writes artifacts starts without it

    return f"{torch.__version__} ({torch.version.git_version or 'unknown commit'})"


def _triton() -> str:
    for package in ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return ""


def _compiler(path: str, version_text: str) -> str:
    """Return a short name: the sentence with the version, else a digest of all output of ``--version``."""
    if not path:
        return ""
    found = re.search(r"[A-Za-z ]*\bversion [^_\n]+", version_text)
    said = found.group().strip() if found else hashlib.sha256(version_text.encode()).hexdigest()[:16]
    return f"{Path(path).name}: {said}"


def _cpu_features() -> str:
    # "flags" on x86, "Features" on ARM, "features" on s390x.
    named = [line.partition(":")[2] for line in cpp.described_processor() if re.match(r"(flags|[Ff]eatures)\s*:", line)]
    features = sorted(set(named[0].split())) if named else [platform.processor()]
    return hashlib.sha256(" ".join(features).encode()).hexdigest()[:12]


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return ""
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    names = sorted({f"{device.name} sm_{device.major}{device.minor}" for device in devices})
    runtime = f"hip {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}"
    driver = "unknown"
    for path in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):  # no driver is initialized
        with contextlib.suppress(OSError):
            lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
            found = re.search(r"\d+(\.\d+)+", lines[0] if lines else "")
            driver = found.group() if found else "unknown"
            break
    return f"{', '.join(names)}; {runtime}; driver {driver}"


_WHY = "Artifacts are pickles: whoever can write one there can run code here."


def require_private(folder: Path) -> None:
    """Make ``folder`` if it is missing, for its owner only, and raise if another user could write to it.

    Another user is everybody; a group, except for the user's own; an owner who is neither this user nor root. A parent
    directory that another user owns or can write to is refused as well, because ``folder`` could be replaced there,
    unless it has the sticky bit (like the system's temporary directory).

    Raises:
        ArtifactError: with the command that fixes it.
        ArtifactError: part of the path is not a directory.
        OSError: it cannot be made.
    """
    try:
        files.make_folder(folder)
    except NotADirectoryError as error:
        what = error.filename or folder
        raise ArtifactError(f"{what} is not a directory. Delete it, or choose another directory.") from error
    with _unsafe():
        files.private_folder(folder)


@contextlib.contextmanager
def _unsafe() -> Iterator[None]:
    try:
        yield
    except NotPrivateError as error:
        raise ArtifactError(f"{error.fault}. {_WHY} {error.remedy}") from None


def write_artifact(path: Path, payload: bytes, kind: str) -> None:
    """Seal ``payload`` and write it to ``path`` atomically, with missing directories.

    Raises:
        ArtifactError: ``path`` is a directory or a device.
        ArtifactError: others can write to the directory.
        OSError: no space, no permission; an existing file is unchanged.
    """
    if path.exists() and not path.is_file():
        raise ArtifactError(f"{path} is {_what(path.stat().st_mode)}. Name a file.")
    require_private(path.parent)
    files.remove_abandoned(path.parent)
    files.write_whole(path, seal(payload, kind=kind), mode=0o600, sync=True)


def read_artifact(path: Path, kind: str) -> bytes:
    """Return the payload of the artifact at ``path``.

    Raises:
        ArtifactError: its subclass tells what is wrong, the message also which file and what to do.
        OSError: the file cannot be read.
    """
    return unseal(read_private(path), kind=kind, where=str(path))


def read_private(path: Path) -> bytes:
    """Return the bytes of a file that only this user or root can have written.

    Raises:
        ArtifactNotFoundError: it does not exist.
        ArtifactError: it is a directory or a device.
        ArtifactError: others can write to the directory, or could when the file was written.
        OSError: the file cannot be read.
    """
    path = Path(os.path.realpath(path))
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactNotFoundError(f"{path} does not exist. Save it first, or check the path.") from error
    # Before opening: opening a pipe would wait for a writer.
    if not stat.S_ISREG(mode):
        raise ArtifactError(f"{path} is {_what(mode)}, not the file of an artifact. Name the file.")
    require_private(path.parent)
    with path.open("rb") as file:
        with _unsafe():  # the file may be older than the directory's permissions
            files.require_own(path, os.fstat(file.fileno()))
        return file.read()


def _what(mode: int) -> str:
    return "a directory" if stat.S_ISDIR(mode) else "not a regular file"
