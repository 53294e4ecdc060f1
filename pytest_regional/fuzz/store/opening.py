"""From a URL, or the path of a folder, to a store; who may write to it is checked here."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from pytest_regional._redis import UntrustedRedis
from pytest_regional.fuzz.store.documents import Documents
from pytest_regional.fuzz.store.errors import StoreError, StoreWarning
from pytest_regional.fuzz.store.folder import FolderBackend
from pytest_regional.fuzz.store.server import TIMEOUT_SECONDS, RedisBackend
from pytest_regional.fuzz.store.store import Store
from pytest_regional.fuzz.store.urls import ServerUrl, parsed

SECRET = "PYTEST_REGIONAL_CAMPAIGN_SECRET"
UNAUTHENTICATED = "PYTEST_REGIONAL_CAMPAIGN_UNAUTHENTICATED"


def warn(message: str) -> None:
    """Give ``message`` as a warning."""
    warnings.warn(message, StoreWarning, stacklevel=2)


def open_store(
    url: str | os.PathLike[str],
    *,
    secret: bytes | None = None,
    tell: Callable[[str], None] = warn,
    patience: float = 600.0,
    environment: Mapping[str, str] = os.environ,
) -> Store:
    """Open the store that ``url`` names.

    Args:
        url: ``redis://[user:password@]host:port/db[?campaign=NAME]``, ``rediss://`` and ``unix://`` like it,
            ``file:///path``, or the path of a folder, which is made for this user alone when something is written.
        secret: signs what is written, and nothing else is read; by default that of the environment. Without one a
            folder must be private to this user and a server is refused, unless the environment allows that.
        tell: is given sentences for people: that an entry was skipped (once for each kind), that the server is waited
            for, and that it answers again. Called in the thread that reads or writes.
        patience: seconds for which one operation waits for a server that does not answer.
        environment: where the secret is looked for.

    Raises:
        UrlError: ``url`` names no store.
        StoreError: the store cannot be used, or not without a secret.
    """
    secret = os.fsencode(environment.get(SECRET, "")) if secret is None else secret
    trusted = bool(secret) or environment.get(UNAUTHENTICATED) == "allow"
    place = parsed(url)
    if isinstance(place, Path):
        documents = Documents(secret, str(place), "", _once(tell))
        return Store(FolderBackend(place, documents, private=not trusted), documents)
    if not trusted:
        raise StoreError(
            f"the store at {place.where} is on a server, and there is no secret to sign its entries with: whoever can "
            f"write there would decide what is fuzzed. Set {SECRET} to the same secret everywhere, or "
            f"{UNAUTHENTICATED}=allow where everybody who can reach the server is trusted"
        )
    documents = Documents(secret, place.where, place.campaign, _once(tell))
    return _on_server(place, documents, tell, patience)


def _on_server(place: ServerUrl, documents: Documents, tell: Callable[[str], None], patience: float) -> Store:
    try:
        redis = importlib.import_module("redis")
    except ImportError:
        raise StoreError(
            f"the store at {place.where} needs the package redis. Run: pip install 'pytest-regional[redis]'"
        ) from None

    def connect() -> UntrustedRedis:
        return UntrustedRedis(redis.Redis.from_url(place.url.plain), TIMEOUT_SECONDS)

    backend = RedisBackend(connect, documents, campaign=place.campaign, patience=patience, tell=tell)
    try:
        store = Store(backend, documents)
        _tell_what_is_lost(place.where, backend.configuration(), tell)
    except BaseException:
        backend.close()
        raise
    return store


def _tell_what_is_lost(where: str, settings: Mapping[str, str], tell: Callable[[str], None]) -> None:
    if settings.get("appendonly") == "no" and settings.get("save") == "":
        tell(
            f"The server of the store at {where} keeps nothing on disk: when it ends, the campaign is lost. Its "
            f"setting `appendonly yes` keeps it."
        )
    if settings.get("maxmemory", "0") != "0" and settings.get("maxmemory-policy", "noeviction") != "noeviction":
        tell(
            f"The server of the store at {where} deletes entries when its memory is full. Its setting "
            f"`maxmemory-policy noeviction` keeps them."
        )


def _once(tell: Callable[[str], None]) -> Callable[[str, str], None]:
    told: set[str] = set()

    def skipped(kind: str, message: str) -> None:
        if kind not in told:
            told.add(kind)
            tell(f"{message} Others like it are skipped without a word.")

    return skipped
