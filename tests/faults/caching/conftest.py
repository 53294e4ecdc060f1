"""A clean memory of warnings, and no shared cache, as for the tests of caching."""

from __future__ import annotations

from tests.caching.conftest import as_new_process

__all__ = ["as_new_process"]
