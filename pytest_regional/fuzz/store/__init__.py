"""The store that the workers of one campaign share: a folder, or a Redis server.

* ``opening`` and ``urls``: from a URL to a store; ``store``: what can be done with one.
* ``documents``: an entry as bytes, signed and checked; ``folder`` and ``server``: where such bytes are
  kept.
* ``errors``: what is raised.

Nothing here imports torch.
"""

from __future__ import annotations

from pytest_regional.fuzz.store.errors import EntryError, StoreError, StoreWarning, UrlError
from pytest_regional.fuzz.store.opening import open_store
from pytest_regional.fuzz.store.store import Entry, Store

__all__ = ["Entry", "EntryError", "Store", "StoreError", "StoreWarning", "UrlError", "open_store"]
