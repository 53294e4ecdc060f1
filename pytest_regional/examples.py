"""Where property tests of marked tests keep failing examples: one folder, or one Redis server, for all processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_regional._secrets import SecretUrl, unescaped_in, without_secrets_of

#: How a Redis server is named; ``redis.Redis.from_url`` takes these.
_SERVERS = ("redis://", "rediss://", "unix://")


class ExamplesError(ValueError):
    """A place for examples that cannot be used."""


def database_at(place: str, root: Path) -> Any:
    """Return Hypothesis's database at ``place``: a folder, below ``root`` unless absolute, or a Redis URL.

    A folder is safe for many writers: each example is a file of its own, written beside and renamed.

    Raises:
        ExamplesError: a package is missing, or the server does not answer; without the password of the URL.
    """
    try:
        from hypothesis.database import DirectoryBasedExampleDatabase
    except ImportError as error:
        raise ExamplesError(
            "examples are kept by Hypothesis, which is not installed: pip install hypothesis"
        ) from error
    if place.startswith(_SERVERS):
        return _redis(SecretUrl(place))
    if "://" in place:
        raise ExamplesError(f"{SecretUrl(place)} is neither a folder nor a Redis server: {', '.join(_SERVERS)}")
    return DirectoryBasedExampleDatabase(root / place)


def _redis(url: SecretUrl) -> Any:
    if unescaped_in(url):
        raise ExamplesError(
            "the URL of the Redis server cannot be understood: write characters such as / ? # [ ] @ of a user or a "
            "password as %2F %3F %23 %5B %5D %40, and the port as a number"
        )
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis, RedisError
    except ImportError as error:
        raise ExamplesError(f"{url} needs the package redis: pip install 'pytest-regional[redis]'") from error
    try:
        server = Redis.from_url(url)
        server.ping()
    except (RedisError, TypeError, ValueError) as error:  # TypeError: a parameter in the URL that it does not know
        said = without_secrets_of(url, str(error))
        raise ExamplesError(f"{url}: no Redis server answers there: {said}") from None
    return RedisExampleDatabase(server, key_prefix=b"pytest-regional:")
