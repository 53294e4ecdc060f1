"""Payload bytes in a container that says what they are and proves that they are whole.

Layout, numbers big-endian::

    magic (8)  format version (4)  header length (4)  payload length (8)  crc32 of the 24 bytes so far (4)
    sha256 of everything else (32)
    header: JSON with kind, key, and the machine's fields
    payload

The first 28 bytes keep their meaning in every format version. They have a checksum of their own, so that a flipped bit
in a length is told from a file that ends too early. Nothing of the payload is used, and nothing is unpickled here,
before the checksum over all of it has been compared.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from pytest_regional.reference.caching.errors import (
    ArtifactError,
    ArtifactFormatError,
    ArtifactNotFoundError,
    CorruptedArtifactError,
    EmptyArtifactError,
    ForeignMachineError,
    ForeignTorchError,
    NotAFileError,
    NotAnArtifactError,
    TruncatedArtifactError,
    UnsafeFolderError,
    WrongKeyError,
    WrongKindError,
)
from pytest_regional.reference.caching.machine import Machine, this_machine

__all__ = [
    "FORMAT_VERSION",
    "ArtifactError",
    "ArtifactFormatError",
    "ArtifactNotFoundError",
    "CorruptedArtifactError",
    "EmptyArtifactError",
    "ForeignMachineError",
    "ForeignTorchError",
    "NotAFileError",
    "NotAnArtifactError",
    "TruncatedArtifactError",
    "UnsafeFolderError",
    "WrongKeyError",
    "WrongKindError",
    "seal",
    "unseal",
]

# Not text, and a line end that a transfer in text mode would change.
MAGIC = b"\x89REGION\n"
FORMAT_VERSION = 1
_PREAMBLE = struct.Struct(">8sIIQ")
_CRC = struct.Struct(">I")
_START = _PREAMBLE.size + _CRC.size
_HEADER_AT = _START + hashlib.sha256().digest_size


def seal(payload: bytes, *, kind: str, key: str = "", machine: Machine | None = None) -> bytes:
    """Return ``payload`` in an envelope.

    Args:
        payload: any bytes.
        kind: what they are, in words that stand in error messages.
        key: the cache key they belong to, if any.
        machine: where they were compiled; this one by default.
    """
    fields = {"kind": kind, "key": key, "machine": (machine or this_machine()).as_dict()}
    header = json.dumps(fields, sort_keys=True).encode()
    preamble = _PREAMBLE.pack(MAGIC, FORMAT_VERSION, len(header), len(payload))
    start = preamble + _CRC.pack(zlib.crc32(preamble))
    return b"".join((start, _checksum(start, header, payload), header, payload))


def unseal(data: bytes, *, kind: str, key: str | None = None, where: str = "", machine: Machine | None = None) -> bytes:
    """Return the payload of an envelope after every check.

    Args:
        data: what ``seal`` returned, perhaps long ago and elsewhere.
        kind: what the payload must be.
        key: the cache key it must belong to; ``None`` takes any.
        where: the file or entry, for messages.
        machine: where it must have been compiled; this one by default.

    Raises:
        ArtifactError: the subclass says what is wrong, the message also where and what to do.
    """
    check = _Check(data, where or "these bytes")
    header = check.header()
    check.belongs(header, kind, key)
    check.machine(header, machine or this_machine())
    return check.payload


@dataclass
class _Check:
    """One envelope on its way to being believed."""

    data: bytes
    where: str
    payload: bytes = b""

    def header(self) -> dict[str, Any]:
        """Compare lengths and checksums; keep the payload and return the header."""
        lengths = self._preamble()
        stop = _HEADER_AT + lengths[0]
        expected = stop + lengths[1]
        if len(self.data) < expected:
            raise self._truncated(f"{len(self.data)} of {expected} bytes are there")
        if len(self.data) > expected:
            raise self._corrupted(f"{len(self.data) - expected} bytes follow its end")
        header, payload = self.data[_HEADER_AT:stop], self.data[stop:]
        if _checksum(self.data[:_START], header, payload) != self.data[_START:_HEADER_AT]:
            raise self._corrupted("its checksum does not fit its contents")
        self.payload = payload
        return self._fields(header)

    def _fields(self, header: bytes) -> dict[str, Any]:
        # The checksum holds, so another program wrote this with ours as its model.
        try:
            fields = json.loads(header)
        except ValueError as error:
            raise self._corrupted("its header is no JSON") from error
        if not isinstance(fields, dict) or not {"kind", "key", "machine"} <= fields.keys():
            raise self._corrupted("its header lacks kind, key or machine")
        return fields

    def _preamble(self) -> tuple[int, int]:
        data = self.data
        if not data:
            raise EmptyArtifactError(f"{self.where} is empty. Delete it and compile again.")
        if data[: len(MAGIC)] != MAGIC[: len(data)]:
            raise NotAnArtifactError(
                f"{self.where} is no artifact of pytest-regional: it starts with {data[:8]!r}. Check the path."
            )
        if len(data) < _HEADER_AT:
            raise self._truncated(f"{len(data)} bytes are fewer than any artifact has")
        if zlib.crc32(data[: _PREAMBLE.size]) != _CRC.unpack_from(data, _PREAMBLE.size)[0]:
            raise self._corrupted("the checksum of its first bytes does not fit them")
        _, version, header_length, payload_length = _PREAMBLE.unpack_from(data)
        if version != FORMAT_VERSION:
            raise ArtifactFormatError(
                f"{self.where} is written in format {version}; this pytest-regional reads format {FORMAT_VERSION}. "
                f"Compile again, or use the pytest-regional that wrote it."
            )
        return header_length, payload_length

    def belongs(self, header: dict[str, Any], kind: str, key: str | None) -> None:
        """Refuse another kind or key."""
        if header["kind"] != kind:
            raise WrongKindError(f"{self.where} holds {header['kind']!r}, not {kind!r}. Check the path.")
        if key is not None and header["key"] != key:
            raise WrongKeyError(
                f"{self.where} belongs to the key {header['key'] or '(none)'}, not to {key}: it was moved or copied. "
                f"Delete it and compile again."
            )

    def machine(self, header: dict[str, Any], here: Machine) -> None:
        """Refuse what was compiled elsewhere, naming the fields that differ."""
        there, mine = dict(header["machine"]), here.as_dict()
        if there == mine:
            return
        if there.get("torch") != mine["torch"]:
            raise ForeignTorchError(
                f"{self.where} was compiled by torch {there.get('torch')}; this is torch {mine['torch']}. "
                f"Compile again with this one, or install that one."
            )
        names = [name for name in sorted({*there, *mine}) if there.get(name) != mine.get(name)]
        differences = "; ".join(f"{name} {there.get(name)!r} there, {mine.get(name)!r} here" for name in names)
        raise ForeignMachineError(
            f"{self.where} was compiled on another machine: {differences}. Compile again on this one."
        )

    def _truncated(self, how: str) -> TruncatedArtifactError:
        return TruncatedArtifactError(
            f"{self.where} is truncated: {how}. Copy it again, or delete it and compile again."
        )

    def _corrupted(self, how: str) -> CorruptedArtifactError:
        return CorruptedArtifactError(
            f"{self.where} is corrupted: {how}. Copy it again, or delete it and compile again."
        )


def _checksum(start: bytes, header: bytes, payload: bytes) -> bytes:
    checksum = hashlib.sha256(start)
    checksum.update(header)
    checksum.update(payload)
    return checksum.digest()
