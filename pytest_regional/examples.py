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

    A folder is safe for many writers: each example is a file of its own, written beside and renamed. A server that
    does not answer within two seconds is left alone for a minute, with one warning, and tests run without it.

    Raises:
        ExamplesError: a package is missing, or it is no URL of a server; without its password.
    """
    try:
        from hypothesis.database import DirectoryBasedExampleDatabase
    except ImportError as error:
        raise ExamplesError(
            "examples are kept by Hypothesis, which is not installed: pip install hypothesis"
        ) from error
    if place.startswith(_SERVERS):
        url = SecretUrl(place)
        if unescaped_in(url):
            raise ExamplesError(
                "the URL of the Redis server cannot be understood: write characters such as / ? # [ ] @ of a user or a "
                "password as %2F %3F %23 %5B %5D %40, and the port as a number"
            )
        try:
            return _shared_examples(url).examples_at(url)
        except (TypeError, ValueError) as error:
            raise ExamplesError(f"{url} is no URL of a Redis server: {without_secrets_of(url, str(error))}") from None
    if "://" in place:
        raise ExamplesError(f"{SecretUrl(place)} is neither a folder nor a Redis server: {', '.join(_SERVERS)}")
    return DirectoryBasedExampleDatabase(root / place)


def check_place(place: str) -> None:
    """Ask a server that ``place`` names whether it is there; a folder is made when the first example is kept.

    Raises:
        ExamplesError: a package is missing, or the server does not answer within two seconds.
    """
    if not place.startswith(_SERVERS):
        return
    shared = _shared_examples(place)
    try:
        shared.require_answer(place)
    except (OSError, TypeError, ValueError) as error:  # TypeError: a parameter in the URL that redis-py does not know
        url, said = SecretUrl(place), without_secrets_of(place, str(error))
        raise ExamplesError(f"{url}: no Redis server answers there: {said}") from None


def _shared_examples(url: str) -> Any:
    try:
        from pytest_regional import _shared_examples
    except ImportError as error:
        raise ExamplesError(f"{url} needs the package redis: pip install 'pytest-regional[redis]'") from error
    return _shared_examples
