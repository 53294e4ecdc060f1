"""Entries as bytes: one line with version and signature, then JSON in an envelope.

::

    7 0f3a...                                       version, signature in hexadecimal digits, or "unsigned"
    {"format": 1, "nonce": "8c...", "data": ...}    the nonce is random: equal bytes are the same write
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_regional._signatures import is_signed, signature
from pytest_regional._text import shown
from pytest_regional.fuzz.findings import strict_json
from pytest_regional.fuzz.findings.strict_json import Field, MalformedError
from pytest_regional.fuzz.store.errors import EntryError

#: Raised when bytes or keys of a store change so that older releases cannot read them.
FORMAT = 1

#: Bytes of the largest entry. A finding has 2,000 in the median; zlib would take 0.1 ms of each write to save 1,300.
LARGEST = 4 * 2**20

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,150}"
TABLE = r"[a-z][a-z_]{0,60}"
#: What the store keeps for itself.
OWN_TABLE = "store"
VERSION = r"[1-9][0-9]{0,17}"
NONCE = r"[0-9a-f]{16}"


def matches(form: str, text: bytes) -> bool:
    """Say whether the whole of ``text``, which is from elsewhere, has one of the forms above."""
    return bool(re.fullmatch(form.encode(), text))


_PURPOSE = b"pytest-regional campaign entry 1"
_UNSIGNED = b"unsigned"
_HEAD = re.compile(rb"(%s) (unsigned|[0-9a-f]{64})\n" % VERSION.encode())


@dataclass(frozen=True)
class Document:
    """One version of one entry.

    Attributes:
        version: 1 for the first.
        nonce: 16 hexadecimal digits, which no other document has.
        data: plain JSON data; ``None`` where the entry is deleted.
        content: all this as bytes.
    """

    version: int
    nonce: str
    data: Any
    content: bytes


@dataclass(frozen=True)
class Documents:
    """Makes documents, and reads what others made; they are signed where there is a secret.

    Attributes:
        secret: empty where nothing is signed, and then nothing signed is read.
        where: the store, for messages.
        campaign: is signed too, so that an entry of one campaign is none of another on the same server.
        skipped: is given the kind of what is wrong with an entry, and a sentence about it.
    """

    secret: bytes
    where: str
    campaign: str
    skipped: Callable[[str, str], None]

    def made(self, table: str, name: str, version: int, data: Any) -> Document:
        """Return the document of a new version.

        Raises:
            EntryError: ``data`` is not plain JSON data, or too large.
        """
        nonce = secrets.token_hex(8)
        payload = _json(table, name, {"format": FORMAT, "nonce": nonce, "data": data})
        signed = signature(self.secret, *self._fields(table, name, version, payload)).hex() if self.secret else None
        head = b"%d %s\n" % (version, signed.encode() if signed else _UNSIGNED)
        return Document(version, nonce, data, head + payload)

    def read(self, table: str, name: str, content: bytes, *, named: str = "") -> Document | None:
        """Return what ``content`` says; ``None``, and one message for each kind, where it is none of ours.

        Args:
            table: where it stands.
            name: where it stands in the table.
            content: what anybody may have written.
            named: version and nonce, with a dot between, where its place says them too.
        """
        try:
            document = self._read(table, name, content)
        except _SkippedError as error:
            self.refuse(table, name, error.kind, str(error))
            return None
        if named and named != f"{document.version}.{document.nonce}":
            self.refuse(table, name, "misplaced", "is another version than its file's name says")
            return None
        return document

    def refuse(self, table: str, name: str, kind: str, problem: str) -> None:
        """Say that an entry is skipped.

        Args:
            table: of the entry.
            name: of the entry.
            kind: each is told once.
            problem: what is wrong with the entry, a predicate.
        """
        self.skipped(kind, f"The entry {table}/{shown(name, 80)} in {self.where} is skipped: it {problem}.")

    def _read(self, table: str, name: str, content: bytes) -> Document:
        if not content:
            raise _SkippedError("empty", "is empty, is no regular file, or must not be read")
        if len(content) > LARGEST:
            raise _SkippedError("large", f"has more than {LARGEST // 2**20} MiB")
        head = _HEAD.match(content)
        if head is None:
            raise _SkippedError("malformed", "does not begin with a version and a signature")
        version, signed, payload = int(head[1]), head[2], content[head.end() :]
        self._require_signature(table, name, version, signed, payload)
        try:
            fields = Field(strict_json.loads(payload.decode("utf-8"))).fields(("format", "nonce", "data"))
            fields["format"].integer(FORMAT, FORMAT)
            nonce = fields["nonce"].line(16)
        except (MalformedError, UnicodeDecodeError) as error:
            raise _SkippedError("malformed", f"cannot be read: {shown(error, 200)}") from error
        if not re.fullmatch(NONCE, nonce):
            raise _SkippedError("malformed", "has no nonce of 16 hexadecimal digits")
        return Document(version, nonce, fields["data"].value, content)

    def _require_signature(self, table: str, name: str, version: int, signed: bytes, payload: bytes) -> None:
        if not self.secret and signed != _UNSIGNED:
            raise _SkippedError("secret", "is signed, and this process has no secret to check that with")
        if self.secret and signed == _UNSIGNED:
            raise _SkippedError("unsigned", "is not signed, though this store is")
        if self.secret and not is_signed(
            bytes.fromhex(signed.decode()), self.secret, *self._fields(table, name, version, payload)
        ):
            raise _SkippedError(
                "forged",
                "is not signed with this process's secret for this name and version: forged, moved from another one, "
                "damaged, or written where the secret is another",
            )

    def _fields(self, table: str, name: str, version: int, payload: bytes) -> tuple[bytes, ...]:
        return _PURPOSE, self.campaign.encode(), table.encode(), name.encode(), b"%d" % version, payload


class _SkippedError(Exception):
    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind


def _json(table: str, name: str, envelope: dict[str, Any]) -> bytes:
    """Return what reads as the same again: JSON turns keys into texts, and tuples into lists, without a word."""
    what = f"the data of {table}/{name}"
    try:
        text = json.dumps(envelope, allow_nan=False, separators=(",", ":"))
        same = strict_json.loads(text) == envelope
    except MalformedError as error:
        raise EntryError(f"{what} {error}") from error
    except RecursionError:
        raise EntryError(f"{what} is nested too deeply, or holds itself") from None
    except (TypeError, ValueError) as error:
        raise EntryError(f"{what} is no JSON: {shown(error, 200)}") from error
    if not same:
        raise EntryError(
            f"{what} would be read as something else than is written: it may hold texts, finite numbers, true, false, "
            f"None, lists of such, and dicts of such whose keys are texts"
        )
    if len(text) > LARGEST - 100:
        raise EntryError(f"{what} has {len(text):,} bytes of JSON; {LARGEST - 100:,} are the most")
    return text.encode("ascii")
