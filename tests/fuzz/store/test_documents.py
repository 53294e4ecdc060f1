"""What is read as an entry, and what is skipped."""

from __future__ import annotations

import json

import pytest

from pytest_regional._signatures import signature
from pytest_regional.fuzz.store import documents
from pytest_regional.fuzz.store.documents import Documents
from tests.fuzz.store.conftest import KEY


@pytest.fixture
def skipped() -> list[tuple[str, str]]:
    return []


def reader(skipped: list[tuple[str, str]], secret: bytes = KEY, campaign: str = "c") -> Documents:
    return Documents(secret, "here", campaign, lambda kind, message: skipped.append((kind, message)))


@pytest.mark.parametrize("secret", [KEY, b""])
def test_what_is_made_is_read(skipped: list[tuple[str, str]], secret: bytes) -> None:
    one = reader(skipped, secret)
    made = one.made("findings", "a", 7, {"x": [1]})
    assert one.read("findings", "a", made.content) == made
    assert (made.version, made.data) == (7, {"x": [1]})
    assert made.content != one.made("findings", "a", 7, {"x": [1]}).content
    assert skipped == []


@pytest.mark.parametrize("what", ["table", "name", "version", "campaign", "secret", "data", "shifted"])
def test_a_signature_is_for_one_place(skipped: list[tuple[str, str]], what: str) -> None:
    content = reader(skipped).made("findings", "ab", 7, "data").content
    table, name, other = "findings", "ab", reader(skipped)
    if what == "table":
        table = "claims"
    elif what == "name":
        name = "b"
    elif what == "version":
        content = content.replace(b"7", b"8", 1)
    elif what == "campaign":
        other = reader(skipped, campaign="d")
    elif what == "secret":
        other = reader(skipped, KEY + b"!")
    elif what == "data":
        content = content.replace(b'"data":"data"', b'"data":"date"')
    else:
        table, name = "finding", "sab"
    assert other.read(table, name, content) is None
    assert [kind for kind, _ in skipped] == ["forged"]
    assert f"The entry {table}/{name} in here is skipped: it is not signed with this process's secret" in skipped[0][1]


def test_signed_and_unsigned_are_not_mixed(skipped: list[tuple[str, str]]) -> None:
    signed, plain = reader(skipped), reader(skipped, b"")
    assert plain.read("t", "n", signed.made("t", "n", 1, 1).content) is None
    assert signed.read("t", "n", plain.made("t", "n", 1, 1).content) is None
    assert [kind for kind, _ in skipped] == ["secret", "unsigned"]


def sealed(payload: bytes, version: int = 1) -> bytes:
    """Return what somebody with the secret could write."""
    purpose = documents._PURPOSE
    digest = signature(KEY, purpose, b"c", b"t", b"n", b"%d" % version, payload).hex()
    return b"%d %s\n" % (version, digest.encode()) + payload


def envelope(**changes: object) -> bytes:
    return json.dumps({"format": 1, "nonce": "0" * 16, "data": 1, **changes}).encode()


def test_the_right_envelope_is_read(skipped: list[tuple[str, str]]) -> None:
    assert reader(skipped).read("t", "n", sealed(envelope())) is not None


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b"x" * (documents.LARGEST + 1), "large"),
        (b"\x80\x04\x95pickle", "malformed"),
        (b"0 unsigned\n{}", "malformed"),
        (b"-1 unsigned\n{}", "malformed"),
        (b"1" * 30 + b" unsigned\n{}", "malformed"),
        (b"1 unsigned", "malformed"),
        (b"1 " + b"a" * 64 + b"\n", "forged"),
        (sealed(b"{"), "malformed"),
        (sealed(b"\xff"), "malformed"),
        (sealed(b"[" * 100_000), "malformed"),
        (sealed(b"[]"), "malformed"),
        (sealed(b'{"format": 1, "nonce": "0000000000000000"}'), "malformed"),
        (sealed(b'{"format": 1, "nonce": "0000000000000000", "data": NaN}'), "malformed"),
        (sealed(b'{"format": 1, "nonce": "0000000000000000", "data": 1, "data": 2}'), "malformed"),
        (sealed(envelope(format=2)), "malformed"),
        (sealed(envelope(format=True)), "malformed"),
        (sealed(envelope(nonce="../../../../../x")), "malformed"),
        (sealed(envelope(nonce="0" * 15 + "\x1b")), "malformed"),
        (sealed(envelope(more=1)), "malformed"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_all_else_is_skipped(skipped: list[tuple[str, str]], content: bytes, kind: str) -> None:
    assert reader(skipped).read("t", "n", content) is None
    assert [one for one, _ in skipped] == [kind]
    assert len(skipped[0][1]) < 400
    assert skipped[0][1].isprintable()
