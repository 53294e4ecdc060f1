"""The container: what is changed, cut, or from elsewhere is refused, each with its own error."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from pathlib import Path

import pytest

from pytest_regional.reference import ArtifactError
from pytest_regional.reference.caching import container
from pytest_regional.reference.caching.container import seal, unseal
from tests.faults.caching.trials import flipped, refusal
from tests.faults.caching.writer import MACHINE

PAYLOAD = bytes(range(256))
FORMAT_AT, HEADER_AT = 8, 60


pytestmark = pytest.mark.usefixtures("become")


@pytest.fixture
def sealed() -> bytes:
    return seal(PAYLOAD, kind="region", key="ab")


def test_a_payload_comes_back(sealed: bytes) -> None:
    assert unseal(sealed, kind="region", key="ab") == PAYLOAD
    assert unseal(seal(b"", kind="region"), kind="region") == b""


def test_equal_payloads_are_equal_bytes(sealed: bytes) -> None:
    assert seal(PAYLOAD, kind="region", key="ab") == sealed


def test_a_bit_flipped_anywhere_is_noticed(sealed: bytes) -> None:
    """Every byte of magic, version, lengths, checksums, header and payload."""
    found = {at: refusal(unseal, data, kind="region") for at, data in flipped(sealed, range(len(sealed)))}
    assert len(found) == len(sealed) > 400
    assert {found[at] for at in range(FORMAT_AT)} == {ArtifactError}
    assert {found[at] for at in range(FORMAT_AT, len(sealed))} == {ArtifactError}


def test_a_file_cut_anywhere_is_noticed(sealed: bytes) -> None:
    found = [refusal(unseal, sealed[:length], kind="region") for length in range(len(sealed))]
    assert found[0] is ArtifactError
    assert set(found[1:]) == {ArtifactError}


def test_bytes_after_the_end_are_noticed(sealed: bytes) -> None:
    with pytest.raises(ArtifactError, match="3 bytes follow its end"):
        unseal(sealed + b"abc", kind="region")


def test_two_flipped_bits_that_cancel_out_in_the_lengths_are_noticed(sealed: bytes) -> None:
    """Header and payload exchange a byte, with the first checksum made to fit: the second does not."""
    header_length, payload_length = struct.unpack_from(">IQ", sealed, 12)
    start = struct.pack(">8sIIQ", sealed[:8], 1, header_length + 1, payload_length - 1)
    with pytest.raises(ArtifactError, match="does not match its contents"):
        unseal(start + struct.pack(">I", zlib.crc32(start)) + sealed[28:], kind="region")


def test_another_format_version_is_named(sealed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "FORMAT_VERSION", 7)
    with pytest.raises(ArtifactError, match=r"x\.art is written in format 1.*reads format 7.*Compile again"):
        unseal(sealed, kind="region", where="x.art")


@pytest.mark.parametrize("data", [b"PK\x03\x04 a zip file", b"{}", Path(__file__).read_bytes()])
def test_another_programs_file_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"model\.zip is not an artifact.*Check the path"):
        unseal(data, kind="region", where="model.zip")


@pytest.mark.parametrize("header", [b"not json", b"[]", b'{"kind": "region"}'])
def test_a_header_that_fits_its_checksum_and_says_nothing_is_refused(header: bytes) -> None:
    start = struct.pack(">8sIIQ", container.MAGIC, 1, len(header), 0)
    start += struct.pack(">I", zlib.crc32(start))
    with pytest.raises(ArtifactError, match="its header"):
        unseal(start + container._checksum(start, header, b"") + header, kind="region")


def test_another_kind_is_refused(sealed: bytes) -> None:
    with pytest.raises(ArtifactError, match="holds 'region', not 'whole result'"):
        unseal(sealed, kind="whole result")


def test_another_key_is_refused(sealed: bytes) -> None:
    with pytest.raises(ArtifactError, match="belongs to the key ab, not to cd"):
        unseal(sealed, kind="region", key="cd")


def test_another_torch_is_refused(sealed: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"compiled by torch torch; this is torch 3\.0"):
        unseal(sealed, kind="region", machine=dataclasses.replace(MACHINE, torch="3.0"))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(MACHINE) if field.name != "torch"])
def test_another_machine_is_refused_with_the_field_that_differs(sealed: bytes, name: str) -> None:
    elsewhere = dataclasses.replace(MACHINE, **{name: "other"})
    with pytest.raises(ArtifactError, match=f"another machine: {name} '.*' there, 'other' here. Compile again"):
        unseal(sealed, kind="region", machine=elsewhere)


def test_an_artifact_from_before_a_field_was_added_is_refused(sealed: bytes) -> None:
    more = dataclasses.make_dataclass("More", [("linker", str, "mold")], bases=(type(MACHINE),), frozen=True)
    with pytest.raises(ArtifactError, match="linker None there, 'mold' here"):
        unseal(sealed, kind="region", machine=more(**MACHINE.as_dict()))


def test_nothing_of_the_payload_is_used_before_its_checksum_fits(sealed: bytes) -> None:
    """A payload that is wrong and of the wrong kind and from elsewhere is first of all wrong."""
    broken = sealed[:-1] + bytes([sealed[-1] ^ 1])
    with pytest.raises(ArtifactError):
        unseal(broken, kind="whole result", key="cd", machine=dataclasses.replace(MACHINE, torch="3.0"))


def test_every_error_can_be_caught_as_one() -> None:
    from pytest_regional.reference.caching import container

    named = {name: kind for name, kind in vars(container).items() if name.endswith("Error")}
    own = [kind for kind in named.values() if kind.__module__ == container.__name__]
    # A value that cannot be stored is no fault of an artifact.
    kinds = [kind for kind in own if kind is not container.UnstorableError]
    assert len(kinds) >= 2
    assert all(issubclass(kind, ArtifactError) for kind in kinds)
