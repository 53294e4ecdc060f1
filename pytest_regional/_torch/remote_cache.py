"""Inductor's seam for remote caches, and what its configuration says of them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from pytest_regional._redis import UntrustedRedis
from pytest_regional._torch import symbol


class RemoteBytes:
    """Bytes by name in the remote cache that PyTorch's environment variables describe.

    A ``torch._inductor.remote_cache.RemoteCache`` over ``RedisRemoteCacheBackend`` (2.11 to 2.15), which reads
    ``TORCHINDUCTOR_REDIS_URL``, or ``TORCHINDUCTOR_REDIS_HOST`` and ``TORCHINDUCTOR_REDIS_PORT``. PyTorch's own caches
    over it wait for ever and try again, and hold JSON; this one has a time limit, tries once, checks what the server
    answers, and holds bytes. Like theirs it counts in ``cache_stats`` and takes another backend from
    ``RemoteCache.backend_override_cls``.

    Args:
        timeout: seconds for a connect, and for one read.

    Raises:
        ValueError: an address that is none.
    """

    def __init__(self, timeout: float) -> None:
        module = "torch._inductor.remote_cache"
        backend = symbol(module, "RedisRemoteCacheBackend")("pytest-regional")
        self._redis = UntrustedRedis(backend._redis, timeout)
        # The backend calls `get` and `set` of its client and nothing else; it hides only redis-py's own errors.
        backend._redis = self._redis
        self._cache = _cache_class()(backend, symbol(module, "RemoteCachePassthroughSerde")())

    def get(self, name: str) -> bytes | None:
        """Return what is stored as ``name``; raises :func:`remote_errors`."""
        value: bytes | None = self._cache.get(name)
        return value

    def put(self, name: str, data: bytes) -> None:
        """Store ``data`` as ``name``; raises :func:`remote_errors`."""
        self._cache.put(name, data)

    def give_up(self) -> None:
        """End all connections, from whatever thread."""
        self._redis.give_up()


def redis_is_installed() -> bool:
    """Say whether the Python package that PyTorch's Redis backend needs is there."""
    return importlib.util.find_spec("redis") is not None


def remote_errors() -> tuple[type[Exception], ...]:
    """Return what an address that is none, and a server that is absent, slow, full, locked or evil, raise."""
    return (importlib.import_module("redis.exceptions").RedisError, OSError, ValueError)


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
