"""Payload bytes in a container that identifies them and proves that they are intact.

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

import hashlib
import json
import pickle
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_regional._base.errors import RegionalError, RegionalWarning
from pytest_regional.reference.caching.target import TargetFingerprint, this_machine


class ArtifactError(RegionalError, RuntimeError):
    """An artifact cannot be used; the message says which, why, and what to do."""


class WrongKindError(ArtifactError):
    """An intact artifact of another kind."""


class ArtifactNotFoundError(ArtifactError):
    """The file does not exist."""


class NotAFileError(ArtifactError):
    """The path is not a regular file."""


class CacheWarning(RegionalWarning):
    """The cache could not be fully used; the program is still compiled correctly."""


_said: set[str] = set()
_saying = threading.Lock()


def warn(message: str) -> None:
    """Warn with ``message`` as a ``CacheWarning``."""
    warnings.warn(message, CacheWarning, stacklevel=3)


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


__all__ = [
    "FORMAT_VERSION",
    "ArtifactError",
    "ArtifactNotFoundError",
    "NotAFileError",
    "WrongKindError",
    "seal",
    "unseal",
]

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
    check = _Check(data, where or "these bytes")
    header = check.header()
    check.belongs(header, kind, key)
    check.machine(header, machine or this_machine())
    return check.payload


@dataclass
class _Check:
    """The check of one container."""

    data: bytes
    where: str
    payload: bytes = b""

    def header(self) -> dict[str, Any]:
        """Check lengths and checksums; keep the payload and return the header."""
        lengths = self._preamble()
        stop = _HEADER_AT + lengths[0]
        expected = stop + lengths[1]
        if len(self.data) < expected:
            raise self._truncated(f"{len(self.data)} of {expected} bytes exist")
        if len(self.data) > expected:
            raise self._corrupted(f"{len(self.data) - expected} bytes follow its end")
        header, payload = self.data[_HEADER_AT:stop], self.data[stop:]
        if _checksum(self.data[:_START], header, payload) != self.data[_START:_HEADER_AT]:
            raise self._corrupted("its checksum does not match its contents")
        self.payload = payload
        return self._fields(header)

    def _fields(self, header: bytes) -> dict[str, Any]:
        # The checksum holds, so another program wrote this in our format.
        try:
            fields = json.loads(header)
        except ValueError as error:
            raise self._corrupted("its header is not JSON") from error
        if not isinstance(fields, dict) or not {"kind", "key", "machine"} <= fields.keys():
            raise self._corrupted("its header lacks kind, key or machine")
        return fields

    def _preamble(self) -> tuple[int, int]:
        data = self.data
        if not data:
            raise ArtifactError(f"{self.where} is empty. Delete it and compile again.")
        if data[: len(MAGIC)] != MAGIC[: len(data)]:
            raise ArtifactError(
                f"{self.where} is not an artifact of pytest-regional: it starts with {data[:8]!r}. Check the path."
            )
        if len(data) < _HEADER_AT:
            raise self._truncated(f"{len(data)} bytes are fewer than any artifact has")
        if zlib.crc32(data[: _PREAMBLE.size]) != _CRC.unpack_from(data, _PREAMBLE.size)[0]:
            raise self._corrupted("the checksum of its first bytes does not match")
        _, version, header_length, payload_length = _PREAMBLE.unpack_from(data)
        if version != FORMAT_VERSION:
            raise ArtifactError(
                f"{self.where} is written in format {version}; this pytest-regional reads format {FORMAT_VERSION}. "
                f"Compile again, or use the pytest-regional that wrote it."
            )
        return header_length, payload_length

    def belongs(self, header: dict[str, Any], kind: str, key: str | None) -> None:
        """Raise for another kind or key."""
        if header["kind"] != kind:
            raise WrongKindError(f"{self.where} holds {header['kind']!r}, not {kind!r}. Check the path.")
        if key is not None and header["key"] != key:
            raise ArtifactError(
                f"{self.where} belongs to the key {header['key'] or '(none)'}, not to {key}: it was moved or copied. "
                f"Delete it and compile again."
            )

    def machine(self, header: dict[str, Any], here: TargetFingerprint) -> None:
        """Raise if it was compiled elsewhere, with the fields that differ."""
        there, mine = dict(header["machine"]), here.as_dict()
        if there == mine:
            return
        if there.get("torch") != mine["torch"]:
            raise ArtifactError(
                f"{self.where} was compiled by torch {there.get('torch')}; this is torch {mine['torch']}. "
                f"Compile again with this one, or install that one."
            )
        names = [name for name in sorted({*there, *mine}) if there.get(name) != mine.get(name)]
        differences = "; ".join(f"{name} {there.get(name)!r} there, {mine.get(name)!r} here" for name in names)
        raise ArtifactError(f"{self.where} was compiled on another machine: {differences}. Compile again on this one.")

    def _truncated(self, how: str) -> ArtifactError:
        return ArtifactError(f"{self.where} is truncated: {how}. Copy it again, or delete it and compile again.")

    def _corrupted(self, how: str) -> ArtifactError:
        return ArtifactError(f"{self.where} is corrupted: {how}. Copy it again, or delete it and compile again.")


def _checksum(start: bytes, header: bytes, payload: bytes) -> bytes:
    checksum = hashlib.sha256(start)
    checksum.update(header)
    checksum.update(payload)
    return checksum.digest()


#: Errors of ``pickle``, and of reducers of torch and users, for an object that cannot be pickled.
_PICKLING_ERRORS = (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError)


class UnsavableGraphError(RegionalError):
    """The result of a compile holds something that cannot be stored; the message says what."""


def dumped(value: Any, parts: Iterable[tuple[str, Any]], dump: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """Return ``dump(value)``.

    Args:
        value: the object to be dumped.
        parts: its parts, each with a name for messages.
        dump: returns the bytes of the whole or of a part.

    Raises:
        UnsavableGraphError: a part cannot be dumped; the message names it.
        Exception: the error of ``dump``, if every part alone can be dumped, so that no single value is at fault.
    """
    try:
        return dump(value)
    except _PICKLING_ERRORS:
        for name, part in parts:
            _require_bytes(name, part, dump)
        raise


def _require_bytes(name: str, part: Any, dump: Callable[[Any], bytes]) -> None:
    try:
        dump(part)
    except _PICKLING_ERRORS as error:
        raise UnsavableGraphError(f"{name} cannot be pickled: {type(error).__name__}: {error}") from error


KIND = "outer cache entry"


class EntryStore(Protocol):
    """A store of entries: payloads by key.

    A key can have several payloads, one per set of guards from dynamic shapes; a lookup tries them in turn.
    """

    def candidates(self, key: str) -> Iterator[bytes]:
        """Yield the payloads saved under ``key``."""

    def save(self, key: str, payload: bytes) -> bool:
        """Save ``payload`` under ``key`` if possible, and return whether it was."""


def require_key(key: str) -> None:
    """Raise unless a key is a lower-case hexadecimal number: it becomes the name of a directory.

    Raises:
        ValueError: invalid key.
    """
    if not re.fullmatch(r"[0-9a-f]{1,128}", key):
        raise ValueError(f"{key!r} is not a cache key: 1 to 128 digits from 0123456789abcdef, as a hash's hexdigest().")
