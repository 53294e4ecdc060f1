"""Inductor's seam for remote caches, and what its configuration says of them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from . import symbol


class RemoteCacheLostError(ConnectionError):
    """PyTorch's Redis backend has given the server up, which it says to nobody."""


class RemoteBytes:
    """Bytes by name in the remote cache that PyTorch's environment variables describe.

    A ``torch._inductor.remote_cache.RemoteCache`` over ``RedisRemoteCacheBackend`` (2.11 to 2.15), which reads
    ``TORCHINDUCTOR_REDIS_URL``, or ``TORCHINDUCTOR_REDIS_HOST`` and ``TORCHINDUCTOR_REDIS_PORT``. PyTorch's own caches
    over it wait for ever and try again, and hold JSON; this one has a time limit, tries once, and holds bytes. Like
    theirs it counts in ``cache_stats`` and takes another backend from ``RemoteCache.backend_override_cls``.

    Raises:
        ValueError: an address that is none.
    """

    def __init__(self, timeout: float) -> None:
        module = "torch._inductor.remote_cache"
        backend = symbol(module, "RedisRemoteCacheBackend")("pytest-regional")
        _hurry(backend._redis, timeout)
        self._cache = _cache_class()(backend, symbol(module, "RemoteCachePassthroughSerde")())

    def get(self, name: str) -> bytes | None:
        """Return what is stored as ``name``; raises :func:`remote_errors`."""
        value: bytes | None = self._cache.get(name)
        self._require_connection()
        return value

    def put(self, name: str, data: bytes) -> None:
        """Store ``data`` as ``name``; raises :func:`remote_errors`."""
        self._cache.put(name, data)
        self._require_connection()

    def _require_connection(self) -> None:
        if getattr(self._cache.backend, "_redis", self) is None:
            raise RemoteCacheLostError("the server cannot be reached")


def redis_is_installed() -> bool:
    """Say whether the Python package that PyTorch's Redis backend needs is there."""
    return importlib.util.find_spec("redis") is not None


def remote_errors() -> tuple[type[Exception], ...]:
    """Return what a Redis server that is absent, slow, full or locked raises through PyTorch's backend."""
    return (importlib.import_module("redis.exceptions").RedisError, OSError)


def remote_cache_settings() -> tuple[bool | None, bool | None]:
    """Return what was asked for: ``enable_remote_autograd_cache``, ``fx_graph_remote_cache``; ``None`` is no opinion.

    ``torch._functorch.config`` and ``torch._inductor.config`` (2.11 to 2.15); outside Meta PyTorch takes ``None`` for
    no, whether or not a Redis host is named.
    """
    return (
        symbol("torch._functorch.config", "enable_remote_autograd_cache"),
        symbol("torch._inductor.config", "fx_graph_remote_cache"),
    )


@functools.cache
def _cache_class() -> Any:
    # PyTorch counts and logs by the name of the class. Its own ``_get`` takes an empty value for none.
    members = {"_get": lambda self, name, sample: self._backend_get(name)}
    return type("RemoteRegionalCache", (symbol("torch._inductor.remote_cache", "RemoteCache"),), members)


def _hurry(client: Any, timeout: float) -> None:
    """Give a Redis client that has not connected yet a time limit, and take its repetitions away."""
    retry = importlib.import_module("redis.retry").Retry
    no_backoff = importlib.import_module("redis.backoff").NoBackoff
    client.get_connection_kwargs().update(socket_timeout=timeout, socket_connect_timeout=timeout)
    client.set_retry(retry(no_backoff(), 0))
