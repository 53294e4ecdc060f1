"""A store in a folder, also on NFS: one file renamed is one compare-and-set.

::

    FOLDER/TABLE/now/NAME.VERSION.NONCE         empty; says which document is the entry now
    FOLDER/TABLE/documents/NAME.VERSION.NONCE   a document, complete before anything names it
    FOLDER/TABLE/first/NAME.SLOT                the document of version 1, for ever (SLOT is 0)

**Replacing** version 6. The document of version 7 is written, ``now/NAME.6.a`` is renamed to ``now/NAME.7.b``, and
document 6 is deleted. Of any number of processes that rename one file, one succeeds, on a local file system as on NFS,
and the others find it gone. Names are never used again: each has a nonce that was drawn for one write. So a process
that slept between any two of these steps cannot take a later version for the one that it saw. (That can happen where
"create version 7 exclusively" decides: once version 8 is there and 7 has been deleted, it can be created a second
time.)

**Creating** version 1 has no file to rename. It is decided by ``link()`` to ``first/NAME.0``, which fails where that
exists, and that is never deleted. A file ``now/NAME.1.NONCE`` counts only if ``first/NAME.0`` is that very document.

**Reading** lists ``now``, and reads a document. If that is gone, a newer one is there. A directory that changes while
it is listed may be listed without the file that is renamed meanwhile; ``first`` says which entries there must be.

**Killed writers** leave a document that nothing names: nobody reads it. When a later version is there, it can never
become the entry, and is deleted. Nothing is forced to disk (``fsync``): processes may die at any time, and what they
wrote is there; where the machine loses power, the last entries written may be lost or empty, and are skipped then.

**Junk**, which somebody without the secret put there, is skipped and otherwise left: a file in ``now`` whose document
is not signed, a slot of ``first`` that is not (the next slot decides then).

On NFS others see an entry when their directory caches end, after ``acdirmax`` (60 s) at the latest; writes are decided
by the server.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_regional._files import NotAFileError, bytes_of
from pytest_regional._private_folders import NotPrivateError, make_folder, private_folder
from pytest_regional.fuzz.store.documents import LARGEST, NAME, NONCE, OWN_TABLE, VERSION, Document, Documents
from pytest_regional.fuzz.store.errors import StoreError

#: A token is remembered until so many others were given numbers.
REMEMBERED = 500

_NOW, _DOCUMENTS, _FIRST = "now", "documents", "first"
_FILE = re.compile(rf"({NAME})\.({VERSION})\.({NONCE})")
_SLOT = re.compile(rf"({NAME})\.(\d+)")
#: Slots of ``first`` that may hold junk.
_SLOTS = 64
#: Writes to a table between two looks for what killed writers left.
_SWEEP_EVERY = 500

#: Where a listing and what follows disagree since somebody renamed meanwhile, it is repeated. Each time another process
#: got on; so many times in a row they do not.
_TIMES = 1000
#: Listings in a row that miss an entry since it is renamed just then; after that it is lost, and not waited for again.
_LISTINGS = 50

#: The file is gone, or its directory; NFS has a number of its own for files that are gone while they are read.
_GONE = (errno.ENOENT, errno.ESTALE)
_NO_FILE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR)

#: What tells one version of an entry from all others.
_Key = tuple[int, str]


class FolderBackend:
    """A folder, which is made when something is written.

    Args:
        folder: where it is.
        documents: makes and checks what is in it.
        private: whether nobody else may be able to write to it.

    Raises:
        StoreError: others can write to it, or it cannot be read.
    """

    def __init__(self, folder: Path, documents: Documents, *, private: bool) -> None:
        self._folder, self._documents, self._private = folder, documents, private
        self._made: set[str] = set()
        # Workers that begin together do not look at the same moment.
        self._writes: dict[str, int] = defaultdict(lambda: random.randrange(_SWEEP_EVERY))
        #: The newest version of each entry that was seen here, and was one. Versions only grow.
        self._newest: dict[tuple[str, str], _Key] = {}
        #: The nonce of version 1.
        self._first: dict[tuple[str, str], str] = {}
        self._junk: set[tuple[str, str, _Key]] = set()
        self._lost: dict[str, set[str]] = defaultdict(set)
        with self._failures():
            if os.path.lexists(folder):
                os.listdir(folder)
                self._require_private()

    def listed(self, table: str) -> dict[str, int]:
        """Return the names of a table, each with the highest version that is not known to be junk."""
        return {name: keys[0][0] for name, keys in self._keys(table).items()}

    def fetch(self, table: str, names: Iterable[str]) -> dict[str, Document]:
        """Return the newest documents."""
        missing, found = set(names), dict[str, Document]()
        for _ in range(_TIMES if missing else 0):
            listed = self._keys(table)
            for name in tuple(missing):
                try:
                    document = self._newest_of(table, name, listed.get(name, ()))
                except _MovedError:
                    continue
                missing.remove(name)
                if document is not None:
                    found[name] = document
            if not missing:
                return found
        if missing:
            raise StoreError(f"the table {table} in {self._folder} changes faster than it can be read")
        return found

    def replace(self, table: str, name: str, document: Document) -> bool:
        """Put ``document`` in the place of the version before it."""
        if document.version == 1 and self._nonce_of_first(table, name):
            return False
        self._make(table)
        self._sweep_at_times(table)
        if document.version == 1:
            return self._created(table, name, document)
        return self._replaced(table, name, document)

    def is_taken(self, table: str, name: str) -> bool:
        """Return whether a first version was decided on."""
        return os.path.lexists(self._path(table, _FIRST, name, 0))

    def unreadable(self, table: str, name: str) -> int:
        """Return the version of an entry that was one and cannot be read, so that it can be replaced; 0 if it can be.

        After a loss of power a document may be empty.
        """
        first = self._nonce_of_first(table, name)
        listed = self._with_junk(table).get(name, []) if first else []
        keys = [key for key in listed if key[0] > 1 or key[1] == first]
        if not keys or any((table, name, key) not in self._junk for key in keys):
            return 0
        self._newest[table, name] = keys[0]
        return keys[0][0]

    def next_number(self, counter: str, token: str) -> int:
        """Return the next number, kept in an entry with the tokens of the last ones."""
        name = f"number.{counter}"
        for attempt in range(_TIMES):
            document = self.fetch(OWN_TABLE, [name]).get(name)
            version, given, tokens = _counted(document)
            if token in tokens:
                return given - len(tokens) + tokens.index(token)
            data = {"given": given + 1, "tokens": [*tokens, token][-REMEMBERED:]}
            if self.replace(OWN_TABLE, name, self._documents.made(OWN_TABLE, name, version + 1, data)):
                return given
            time.sleep(random.uniform(0, min(0.05, 0.001 * 2 ** min(attempt, 6))))
        raise StoreError(f"no number of {counter} in {self._folder}: others were faster {_TIMES} times")

    def close(self) -> None:
        """Nothing is open between calls."""

    # Reading

    def _keys(self, table: str) -> dict[str, list[_Key]]:
        """Return what may be the entry of each name, the newest first; some of it may be junk."""
        listed = self._with_junk(table)
        kept = {name: [key for key in keys if (table, name, key) not in self._junk] for name, keys in listed.items()}
        return {name: keys for name, keys in kept.items() if keys}

    def _with_junk(self, table: str) -> dict[str, list[_Key]]:
        # An entry that is in `first` has been in `now` since, but a listing may miss it while it is renamed.
        due = {found[1] for found in self._names(table, _FIRST, _SLOT)} - self._lost[table]
        for _ in range(_LISTINGS):
            keys: dict[str, list[_Key]] = defaultdict(list)
            for found in self._names(table, _NOW, _FILE):
                keys[found[1]].append((int(found[2]), found[3]))
            if due <= keys.keys():
                break
        self._lost[table] |= due - keys.keys()
        return {name: sorted(those, reverse=True) for name, those in keys.items()}

    def _newest_of(self, table: str, name: str, keys: Iterable[_Key]) -> Document | None:
        return next(filter(None, (self._document(table, name, key) for key in keys)), None)

    def _document(self, table: str, name: str, key: _Key) -> Document | None:
        """Return the document of one version that was listed, if it is one.

        Raises:
            _MovedError: there is a newer one.
        """
        if key[0] == 1 and self._nonce_of_first(table, name) != key[1]:
            return None
        content = self._content(self._path(table, _DOCUMENTS, name, *key))
        if content is None:
            # The document is there while the file is. A look at the directory may be answered from a cache.
            if self._content(self._path(table, _NOW, name, *key)) is None:
                raise _MovedError
            self._documents.refuse(table, name, "missing", "has no document")
            document = None
        else:
            document = self._documents.read(table, name, content, named=f"{key[0]}.{key[1]}")
        if document is None:
            self._junk.add((table, name, key))
            return None
        self._saw(table, name, key)
        return document

    def _nonce_of_first(self, table: str, name: str) -> str:
        """Return the nonce of an entry's first version; empty if there is no such entry."""
        known = self._first.get((table, name), "")
        for slot in range(0 if known else _SLOTS):
            content = self._content(self._path(table, _FIRST, name, slot))
            if content is None:
                break
            document = self._documents.read(table, name, content)
            if document is not None and document.version == 1:
                known = self._first[table, name] = document.nonce
                break
        return known

    def _saw(self, table: str, name: str, key: _Key) -> None:
        self._newest[table, name] = max(key, self._newest.get((table, name), key))

    # Writing

    def _replaced(self, table: str, name: str, document: Document) -> bool:
        old = self._newest.get((table, name))
        if old is None or old[0] < document.version - 1:
            self.fetch(table, [name])
            old = self._newest.get((table, name))
        if old is None or old[0] != document.version - 1:
            return False
        new = document.version, document.nonce
        self._write(table, name, document)
        try:
            with self._failures():
                os.rename(self._path(table, _NOW, name, *old), self._path(table, _NOW, name, *new))
        except _GoneError:
            # Where a reply was lost, an NFS client may have asked a second time, and been told that it is gone.
            if self._content(self._path(table, _NOW, name, *new)) is None:
                self._delete(self._path(table, _DOCUMENTS, name, *new))
                return False
        self._saw(table, name, new)
        self._delete(self._path(table, _DOCUMENTS, name, *old))
        return True

    def _created(self, table: str, name: str, document: Document) -> bool:
        key = document.version, document.nonce
        self._write(table, name, document)
        with self._failures():
            os.close(os.open(self._path(table, _NOW, name, *key), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        if self._is_first(table, name, document):
            self._first[table, name] = document.nonce
            self._saw(table, name, key)
            return True
        self._delete(self._path(table, _NOW, name, *key))
        self._delete(self._path(table, _DOCUMENTS, name, *key))
        return False

    def _is_first(self, table: str, name: str, document: Document) -> bool:
        made = self._path(table, _DOCUMENTS, name, 1, document.nonce)
        for slot in range(_SLOTS):
            try:
                with self._failures(), contextlib.suppress(FileExistsError):
                    os.link(made, self._path(table, _FIRST, name, slot))
                    return True
            except _GoneError:
                return False  # somebody saw another first version, and deleted this one
            # Also where that is said though this very link was made, as NFS may: then it is this document.
            nonce = self._nonce_of_first(table, name)
            if nonce:
                return nonce == document.nonce
        path = self._path(table, _FIRST, name, 0)
        raise StoreError(f"{path} and {_SLOTS - 1} others like it are no entries of this store. Delete them")

    def _write(self, table: str, name: str, document: Document) -> None:
        path = self._path(table, _DOCUMENTS, name, document.version, document.nonce)
        try:
            with self._failures(), open(path, "xb") as file:
                file.write(document.content)
                self._let_others_read(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    def _let_others_read(self, descriptor: int) -> None:
        """Let everybody who may read the folder read a file, whatever this process's umask is."""
        mode = self._folder.stat().st_mode & 0o044
        if mode & ~os.fstat(descriptor).st_mode:
            os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o777 | mode)

    def _make(self, table: str) -> None:
        """Make what is missing of a table; its folders have the permissions of the store's."""
        if table in self._made:
            return
        with self._failures():
            make_folder(self._folder)
            self._require_private()
            for path in (Path(table), *(Path(table, part) for part in (_DOCUMENTS, _NOW, _FIRST))):
                with contextlib.suppress(FileExistsError):
                    (self._folder / path).mkdir()
                    (self._folder / path).chmod(self._folder.stat().st_mode & 0o7777)
        self._made.add(table)

    def _require_private(self) -> None:
        try:
            if self._private:
                private_folder(self._folder)
        except NotPrivateError as error:
            raise StoreError(
                f"{error.fault}, and without a secret anybody who can write there decides what is fuzzed. "
                f"{error.remedy}, or set PYTEST_REGIONAL_CAMPAIGN_SECRET to the same secret everywhere, or "
                f"PYTEST_REGIONAL_CAMPAIGN_UNAUTHENTICATED=allow where everybody who can write there is trusted"
            ) from None

    # Cleaning up

    def _sweep_at_times(self, table: str) -> None:
        self._writes[table] += 1
        if self._writes[table] % _SWEEP_EVERY == 0:
            self.sweep(table)

    def sweep(self, table: str) -> None:
        """Delete what killed writers left of entries that this process has seen a later version of."""
        for part in (_DOCUMENTS, _NOW):
            for found in list(self._names(table, part, _FILE)):
                newest, key = self._newest.get((table, found[1])), (int(found[2]), found[3])
                # An older version, or another one with this number: neither can become the entry, nor be it.
                if newest is not None and key != newest and key[0] <= newest[0]:
                    self._delete(self._path(table, part, found[1], *key))

    def _delete(self, path: str) -> None:
        with contextlib.suppress(_GoneError), self._failures():
            os.unlink(path)

    # Files

    def _path(self, table: str, part: str, *name: object) -> str:
        return os.path.join(self._folder, table, part, ".".join(map(str, name)))

    def _names(self, table: str, part: str, form: re.Pattern[str]) -> Iterator[re.Match[str]]:
        try:
            with self._failures():
                names = os.listdir(os.path.join(self._folder, table, part))
        except _GoneError:
            return
        for name in names:
            found = form.fullmatch(name)
            if found is None:
                self._documents.refuse(table, name, "named", "is named as no file of a store")
            else:
                yield found

    def _content(self, path: str) -> bytes | None:
        """Return what a file holds, a byte more than is allowed at most; ``None`` if it is gone."""
        try:
            with self._failures():
                try:
                    return bytes_of(Path(path), LARGEST + 1)
                except OSError as error:
                    # Somebody else's pipe, folder, link in a circle, or a file that they do not let us read.
                    if isinstance(error, NotAFileError) or error.errno in _NO_FILE:
                        return b""
                    raise
        except _GoneError:
            return None

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise a :class:`StoreError` for what the file system says."""
        try:
            yield
        except OSError as error:
            kind = _GoneError if error.errno in _GONE else StoreError
            what = error.filename2 or error.filename or self._folder
            raise kind(f"the store in {self._folder} cannot be used: {what}: {error.strerror}") from error


class _GoneError(StoreError):
    """A file is not there any more."""


class _MovedError(Exception):
    """There is a newer version."""


def _counted(document: Document | None) -> tuple[int, int, list[str]]:
    """Return the version of a counter, how many numbers were given, and the tokens of the last of them."""
    if document is None:
        return 0, 0, []
    return document.version, document.data["given"], document.data["tokens"]
