"""Python's garbage collector, held for the moment in which a graph is taken apart."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Hold automatic collections; a decorator as well.

    For work that allocates much and drops nothing: every full collection in it would look at all of torch's objects in
    vain, which takes half of the time at 10,000 nodes. Threads that do so at once find the collector on afterwards.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
