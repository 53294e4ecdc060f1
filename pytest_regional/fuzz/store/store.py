"""The store: entries by table and name, each with a version; whoever writes says which version it has seen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_regional._text import shown
from pytest_regional.fuzz.store.documents import FORMAT, NAME, OWN_TABLE, TABLE, Document, Documents
from pytest_regional.fuzz.store.errors import EntryError, StoreError


@dataclass(frozen=True)
class Entry:
    """What is stored under a name.

    Attributes:
        data: plain JSON data; ``None`` where the entry is deleted.
        version: 1 for the first write, one more with each further one, also with that which deletes.
    """

    data: Any
    version: int


class Backend(Protocol):
    """Where documents are kept. Whatever stands there and is no document of the store's is skipped.

    All methods raise :class:`~pytest_regional.fuzz.store.errors.StoreError` where the place cannot be used.
    """

    def listed(self, table: str) -> dict[str, int]:
        """Return what the place says of names and versions, unchecked."""

    def fetch(self, table: str, names: Iterable[str]) -> dict[str, Document]:
        """Return the newest document of each of ``names`` that has one."""

    def replace(self, table: str, name: str, document: Document) -> bool:
        """Put ``document`` in the place of the version before it, if that is the newest; return whether it was.

        Version 1 takes the place of nothing at all.
        """

    def is_taken(self, table: str, name: str) -> bool:
        """Return whether something stands in the place of an entry, whatever it is."""

    def unreadable(self, table: str, name: str) -> int:
        """Return the version of an entry that cannot be read and has to be replaced as that version; 0 if none has."""

    def next_number(self, counter: str, token: str) -> int:
        """Return the next number of ``counter``, or the one that ``token`` got."""

    def close(self) -> None:
        """End what waits, and all connections."""


class Store:
    """Entries that many processes read and write at once.

    Every write is a compare-and-set: it names the version that it replaces, and fails if there is another by now. So a
    process that was taken for dead fails at its next write, once somebody else has written or deleted its entry.

    Against somebody who can write to the place but has no secret: nothing of theirs is read as an entry, and junk in
    the place of an entry is replaced by the next write. They can still delete entries, or put old ones in the place of
    new ones; signatures do not help against that.

    Args:
        backend: keeps the documents.
        documents: makes and checks them.

    Attributes:
        where: the folder or the server, for messages: without user and password.
    """

    def __init__(self, backend: Backend, documents: Documents) -> None:
        self.where = documents.where
        self._backend, self._documents = backend, documents
        self._formatted = False
        #: What was read of each table: versions by name, and which of them are deletions. Unchanged ones are not
        #: fetched again.
        self._versions: dict[str, dict[str, int]] = {}
        self._deleted: dict[str, set[str]] = {}
        self._has_format()

    def read(self, table: str, name: str) -> Entry | None:
        """Return an entry, which is one without data if it was deleted; ``None`` if there never was one.

        Raises:
            EntryError: a name that none can have.
            StoreError: the store cannot be used.
        """
        _require_names(table, name)
        found = self._fetch(table, [name]).get(name)
        return None if found is None else Entry(found.data, found.version)

    def entries(self, table: str, known: Mapping[str, int] = {}) -> dict[str, Entry]:
        """Return all entries of a table that are not deleted, but those whose version ``known`` has.

        Raises:
            EntryError: a name that none can have.
            StoreError: the store cannot be used.
        """
        _require_table(table)
        wanted = [name for name, version in self._listed(table).items() if known.get(name) != version]
        return {
            name: Entry(found.data, found.version)
            for name, found in self._fetch(table, wanted).items()
            if found.data is not None and known.get(name) != found.version
        }

    def names(self, table: str) -> dict[str, int]:
        """Return the version of each entry that is not deleted.

        Raises:
            EntryError: a name that none can have.
            StoreError: the store cannot be used.
        """
        _require_table(table)
        seen, listed = self._versions.get(table, {}), self._listed(table)
        found = self._fetch(table, [name for name, version in listed.items() if seen.get(name) != version])
        return {
            name: found[name].version if name in found else version
            for name, version in listed.items()
            if (name not in found or found[name].data is not None) and (name in found or seen.get(name) == version)
        }

    def write(self, table: str, name: str, data: Any, *, version: int) -> bool:
        """Write an entry if its version is still ``version``, and return whether it was; its version is one more then.

        Args:
            table: lower-case letters and underscores, the first a letter.
            name: up to 151 letters, digits, and ``_.-``, the first a letter or digit.
            data: plain JSON data; ``None`` deletes the entry, whose version goes on.
            version: of the entry that is replaced; 0 if there is none. An entry that is deleted can be replaced with
                either, and its version goes on in both cases.

        Raises:
            EntryError: such a name, or such data, cannot be stored.
            StoreError: the store cannot be used; the entry may have been written.
        """
        _require_names(table, name)
        if type(version) is not int or version < 0:
            raise EntryError(f"{version!r} is no version: 0 where there is no entry, else that of the entry")
        if table == OWN_TABLE:
            raise EntryError(f"the table {OWN_TABLE} is written by the store itself")
        self._write_format()
        return self._write(table, name, data, version)

    def next_number(self, counter: str, token: str) -> int:
        """Return 0, 1, 2, ...: each number once among all processes.

        Args:
            counter: named as an entry is, in up to 100 characters.
            token: named as an entry is. Who asks again with the same one gets the same number, as long as fewer than
                :data:`~pytest_regional.fuzz.store.folder.REMEMBERED` others were given.

        Raises:
            EntryError: a name that none can have.
            StoreError: the store cannot be used; a number may have been given to the token.
        """
        _require_names(OWN_TABLE, f"number.{counter}")
        _require_names(OWN_TABLE, token)
        self._write_format()
        return self._backend.next_number(counter, token)

    def close(self) -> None:
        """End all connections, and what waits for them in other threads."""
        self._backend.close()

    def _write(self, table: str, name: str, data: Any, version: int) -> bool:
        if self._backend.replace(table, name, self._documents.made(table, name, version + 1, data)):
            return True
        goes_on = self._goes_on(table, name) if version == 0 else 0
        if not goes_on:
            return False
        return self._backend.replace(table, name, self._documents.made(table, name, goes_on + 1, data))

    def _goes_on(self, table: str, name: str) -> int:
        """Return the version of an entry that is deleted, or cannot be read; 0 for any other."""
        found = self._fetch(table, [name]).get(name)
        if found is None:
            return self._backend.unreadable(table, name)
        return found.version if found.data is None else 0

    def _listed(self, table: str) -> dict[str, int]:
        """Return names and versions as the place has them, without deletions that were read before."""
        versions, deleted = self._versions.get(table, {}), self._deleted.get(table, set())
        listed = self._backend.listed(table)
        return {name: one for name, one in listed.items() if name not in deleted or versions[name] != one}

    def _fetch(self, table: str, names: Iterable[str]) -> dict[str, Document]:
        found = self._backend.fetch(table, names)
        versions, deleted = self._versions.setdefault(table, {}), self._deleted.setdefault(table, set())
        for name, document in found.items():
            versions[name] = document.version
            (deleted.add if document.data is None else deleted.discard)(name)
        return found

    def _write_format(self) -> None:
        if not self._formatted and not self._has_format():
            self._write(OWN_TABLE, "format", {"number": FORMAT}, 0)
            self._has_format()  # somebody else's, if they were faster
        self._formatted = True

    def _has_format(self) -> bool:
        """Return whether the store was begun.

        Raises:
            StoreError: in a way that this process cannot read.
        """
        begun = self._backend.is_taken(OWN_TABLE, "format")  # before it is read: it may be written meanwhile
        found = self._fetch(OWN_TABLE, ["format"]).get("format")
        if found is None:
            if begun:
                raise StoreError(
                    f"the store at {self.where} was begun with another secret, or without one. Set "
                    f"PYTEST_REGIONAL_CAMPAIGN_SECRET to the same secret everywhere. If its entry store/format was "
                    f"damaged, or put there by somebody else, use a new store"
                )
            return False
        number = found.data.get("number") if isinstance(found.data, dict) else None
        if number != FORMAT:
            raise StoreError(
                f"the store at {self.where} has format {shown(number)}; this release reads format {FORMAT}. Use the "
                f"release of pytest-regional that began it, or a new store"
            )
        return True


def _require_table(table: str) -> None:
    if not isinstance(table, str) or not re.fullmatch(TABLE, table):
        raise EntryError(f"{shown(repr(table))} names no table: up to 61 lower-case letters and _, the first a letter")


def _require_names(table: str, name: str) -> None:
    _require_table(table)
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise EntryError(
            f"{shown(repr(name))} names no entry: up to 151 letters, digits and _.-, the first a letter or digit"
        )
