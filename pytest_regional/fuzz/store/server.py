"""A store on a Redis server, which is not trusted, and may be away for minutes.

Of a campaign ``NAME`` all keys begin with ``pytest-regional:campaign:NAME:``. A table has three hashes, by name of
entry: ``values:TABLE`` holds the documents, ``versions:TABLE`` their versions, for listing alone, and ``wrote:TABLE``
the nonces of the last writes. A counter is a number, ``counter:COUNTER``, and a sorted set, ``tokens:COUNTER``.

**Writes** are one script each, and a script is atomic. It compares the version that begins the document that is there.
A script whose reply was lost is run again: when its nonce is among those of the last writes, it had been run.

**Junk** in the place of an entry is replaced if it is still the same, byte by byte.

**Outages**: each question has a deadline, and is asked again until :attr:`RedisBackend.patience` is over. What a server
forgot when it came back is lost (``appendfsync everysec``, its default, may forget a second): then a write that says
which version it has seen fails, and numbers may be given a second time. ``appendfsync always`` forgets nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from pytest_regional._redis import ServerError, UnexpectedReplyError, UntrustedRedis, within
from pytest_regional._text import shown
from pytest_regional.fuzz.store.documents import LARGEST, NAME, VERSION, Document, Documents, matches
from pytest_regional.fuzz.store.errors import StoreError

#: Seconds for one question; then the server is taken for away.
TIMEOUT_SECONDS = 10.0
#: Between two questions to a server that is away: the first and the longest wait, in seconds.
FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0

#: Entries of the largest table, and bytes of documents in one reply.
MOST_ENTRIES, MOST_BYTES = 100_000, 8 * 2**20
_BATCH = 500
#: Tokens of a counter, and nonces of an entry, that are remembered.
REMEMBERED, NONCES = 100_000, 32

_LIST = """
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[1]) then
  return redis.error_reply('ERR the table has more than ' .. ARGV[1] .. ' entries')
end
return redis.call('HGETALL', KEYS[1])
"""

_FETCH = """
local found, size = {}, 0
for i = 3, #ARGV do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value and #value > tonumber(ARGV[1]) then value = '' end
  found[i - 2] = value
  size = size + (value and #value or 0)
  if size > tonumber(ARGV[2]) then break end
end
return found
"""

# ARGV: name, the version or the SHA-1 of what is replaced, document, its version, its nonce, largest document, nonces.
_REPLACE = """
local there = redis.call('HGET', KEYS[1], ARGV[1])
local past = redis.call('HGET', KEYS[3], ARGV[1]) or ''
local version = there and (string.match(there, '^(%d+) ') or 'junk') or '0'
local same = there and #ARGV[2] == 40 and redis.sha1hex(there) == ARGV[2]
if not same and version ~= ARGV[2] then
  if string.find(past, ARGV[5], 1, true) then return {1, '', ''} end
  if not there then return {0, '', ''} end
  return {0, #there > tonumber(ARGV[6]) and '' or there, redis.sha1hex(there)}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
redis.call('HSET', KEYS[3], ARGV[1], string.sub(ARGV[5] .. ' ' .. past, 1, 17 * tonumber(ARGV[7])))
return {1, '', ''}
"""

_NUMBER = """
local number = redis.call('ZSCORE', KEYS[2], ARGV[1])
if number then return number end
number = redis.call('INCR', KEYS[1]) - 1
redis.call('ZADD', KEYS[2], number, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', number - tonumber(ARGV[2]))
return string.format('%.0f', number)
"""

#: What a server refuses for now: it is loading, a replica, out of memory or disk, or busy with a script.
_FOR_NOW = ("MISCONF", "BUSY", "NOREPLICAS", "LOADING", "READONLY", "OOM", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN")
_FOR_NOW_CLASSES = ("ReadOnlyError", "OutOfMemoryError", "TryAgainError", "ClusterDownError", "MasterDownError")

_T = TypeVar("_T")


class RedisBackend:
    """A Redis server.

    Args:
        connect: returns a client that has not connected yet.
        documents: makes and checks what is there.
        campaign: the name that keys begin with.
        patience: seconds for which one operation waits for a server that does not answer.
        tell: is given a sentence when such a wait begins, and when it is over.
    """

    def __init__(
        self,
        connect: Callable[[], UntrustedRedis],
        documents: Documents,
        *,
        campaign: str,
        patience: float,
        tell: Callable[[str], None],
    ) -> None:
        self._connect, self._documents = connect, documents
        self._prefix = f"pytest-regional:campaign:{campaign}:"
        self.patience = patience
        self._tell = tell
        self._redis: UntrustedRedis | None = None
        self._closed = threading.Event()
        self._away_since: float | None = None
        self._lock = threading.Lock()

    def listed(self, table: str) -> dict[str, int]:
        """Return the names of a table, with the versions that the server says."""
        found = self._ask(lambda client: _pairs(client.eval(_LIST, 1, self._key("versions", table), MOST_ENTRIES)))
        return dict(self._checked(table, found))

    def fetch(self, table: str, names: Iterable[str]) -> dict[str, Document]:
        """Return the documents, in several questions if they are large or many."""
        found: dict[str, Document] = {}
        waiting = iter(names)
        batch = list(islice(waiting, _BATCH))
        while batch:
            values = self._values(table, batch)
            for name, value in zip(batch, values, strict=False):
                document = None if value is None else self._documents.read(table, name, value)
                if document is not None:
                    found[name] = document
            batch = batch[len(values) :] or list(islice(waiting, _BATCH))
        return found

    def replace(self, table: str, name: str, document: Document) -> bool:
        """Put ``document`` in the place of the version before it, or in that of junk."""
        replaced = str(document.version - 1)
        while True:
            done, there, digest = self._replace(table, name, document, replaced)
            # With version 1 the caller says that there is nothing: what there is goes on with its own versions.
            if done or not digest or document.version == 1 or self._documents.read(table, name, there) is not None:
                return done
            replaced = digest

    def is_taken(self, table: str, name: str) -> bool:
        """Return whether there is a value."""
        return self._ask(lambda client: _integer(client.hexists(self._key("values", table), name))) != 0

    def unreadable(self, table: str, name: str) -> int:
        """Return the version that the server says of an entry that cannot be read; 0 if there is none at all."""
        return max(1, self.listed(table).get(name, 1)) if self.is_taken(table, name) else 0

    def next_number(self, counter: str, token: str) -> int:
        """Return the next number."""
        keys = self._key("counter", counter), self._key("tokens", counter)
        return self._ask(lambda client: _number(client.eval(_NUMBER, 2, *keys, token, REMEMBERED)))

    def configuration(self) -> dict[str, str]:
        """Return the server's settings on persistence; empty where it does not tell."""
        redis = importlib.import_module("redis")

        def question(client: Any) -> dict[str, str]:
            try:
                found = [client.config_get(name) for name in ("appendonly", "save", "maxmemory", "maxmemory-policy")]
            except redis.ResponseError:
                return {}
            return {_text(name): _text(value) for one in found for name, value in _mapping(one).items()}

        return self._ask(question)

    def close(self) -> None:
        """End the connections, and whoever waits in another thread."""
        self._closed.set()
        self._drop(self._redis)

    # Replies

    def _values(self, table: str, names: list[str]) -> list[bytes | None]:
        def question(client: Any) -> list[bytes | None]:
            values = client.eval(_FETCH, 1, self._key("values", table), LARGEST, MOST_BYTES, *names)
            if not isinstance(values, list) or not 0 < len(values) <= len(names):
                raise UnexpectedReplyError("it answered with another number of values than was asked for")
            if not all(value is None or isinstance(value, bytes) for value in values):
                raise UnexpectedReplyError("it answered with values that are no bytes")
            return values

        return self._ask(question)

    def _replace(self, table: str, name: str, document: Document, replaced: str) -> tuple[bool, bytes, str]:
        keys = [self._key(kind, table) for kind in ("values", "versions", "wrote")]
        of_it = document.content, document.version, document.nonce

        def question(client: Any) -> tuple[bool, bytes, str]:
            reply = client.eval(_REPLACE, 3, *keys, name, replaced, *of_it, LARGEST, NONCES)
            if (
                not isinstance(reply, list)
                or len(reply) != 3
                or reply[0] not in (0, 1)
                or not isinstance(reply[1], bytes)
                or not isinstance(reply[2], bytes)
                or len(reply[2]) not in (0, 40)
            ):
                raise UnexpectedReplyError("it answered a write with something else than was asked for")
            return reply[0] == 1, reply[1], reply[2].decode("ascii", "replace")

        return self._ask(question)

    def _checked(self, table: str, found: list[tuple[bytes, bytes]]) -> Iterator[tuple[str, int]]:
        for name, version in found:
            if matches(NAME, name) and matches(VERSION, version):
                yield name.decode(), int(version)
            else:
                self._documents.refuse(table, shown(repr(name)), "named", "has a name or a version that none can have")

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}{kind}:{name}"

    # Waiting

    def _ask(self, question: Callable[[Any], _T]) -> _T:
        """Return the answer, however often the server has to be asked.

        Raises:
            StoreError: it refuses for good, did not answer for as long as is waited, or the store was closed.
        """
        deadline = time.monotonic() + self.patience
        wait, failures = FIRST_WAIT, 0
        while True:
            try:
                answer = self._asked_once(question, deadline)
            except ServerError as error:
                failures += 1
                self._require_patience(error, deadline)
                if failures > 1:  # A connection that was ended for want of use is made again, and that is all.
                    self._tell_that_it_is_away(error)
                self._closed.wait(min(wait * random.uniform(0.5, 1), max(0.0, deadline - time.monotonic())))
                wait = min(2 * wait, LONGEST_WAIT)
            else:
                self._tell_that_it_is_back()
                return answer

    def _asked_once(self, question: Callable[[Any], _T], deadline: float) -> _T:
        with self._lock:
            redis = self._redis = self._redis or self._connect()
        if self._closed.is_set():
            raise StoreError(f"the store at {self._documents.where} was closed")
        seconds = min(TIMEOUT_SECONDS, max(0.05, deadline - time.monotonic()))
        try:
            return within(seconds, lambda: redis.ask(question), redis.give_up)
        except BaseException:
            self._drop(redis)
            raise

    def _require_patience(self, error: ServerError, deadline: float) -> None:
        if self._closed.is_set():
            raise StoreError(f"the store at {self._documents.where} was closed") from error
        if _is_final(error):
            raise StoreError(f"the store at {self._documents.where} cannot be used: {error}") from error
        if time.monotonic() >= deadline:
            raise StoreError(
                f"the store at {self._documents.where} did not answer for {self.patience:.0f} s: {error}. Is a Redis "
                f"server running there, and can it be reached from here?"
            ) from error

    def _tell_that_it_is_away(self, error: ServerError) -> None:
        with self._lock:
            known, self._away_since = self._away_since is not None, self._away_since or time.monotonic()
        if not known:
            self._tell(
                f"The store at {self._documents.where} does not answer: {error}. It is waited for, up to "
                f"{self.patience:.0f} s."
            )

    def _tell_that_it_is_back(self) -> None:
        with self._lock:
            since, self._away_since = self._away_since, None
        if since is not None:
            seconds = time.monotonic() - since
            self._tell(f"The store at {self._documents.where} answers again, after {seconds:.0f} s.")

    def _drop(self, redis: UntrustedRedis | None) -> None:
        with self._lock:
            if self._redis is redis:
                self._redis = None
        if redis is not None:
            redis.give_up()


def _is_final(error: ServerError) -> bool:
    """Say whether waiting does not help: a wrong password, no permission, another type of value, another server."""
    redis, cause = importlib.import_module("redis"), error.__cause__
    if isinstance(cause, redis.AuthenticationError):
        return True
    if not isinstance(cause, redis.ResponseError):
        return False
    return not str(cause).startswith(_FOR_NOW) and type(cause).__name__ not in _FOR_NOW_CLASSES


def _pairs(reply: Any) -> list[tuple[bytes, bytes]]:
    if not isinstance(reply, list) or len(reply) % 2 or not all(isinstance(one, bytes) for one in reply):
        raise UnexpectedReplyError("it answered HGETALL with something else than names and versions")
    return list(zip(reply[::2], reply[1::2], strict=True))


def _integer(reply: Any) -> int:
    if not isinstance(reply, int):
        raise UnexpectedReplyError("it answered with something else than a number")
    return reply


def _number(reply: Any) -> int:
    if not isinstance(reply, bytes) or not matches("[0-9]{1,16}", reply):
        raise UnexpectedReplyError("it answered with something else than the next number")
    return int(reply)


def _mapping(reply: Any) -> dict[Any, Any]:
    return reply if isinstance(reply, dict) else {}


def _text(value: Any) -> str:
    with contextlib.suppress(UnicodeDecodeError):
        return value.decode() if isinstance(value, bytes) else str(value)
    return ""
