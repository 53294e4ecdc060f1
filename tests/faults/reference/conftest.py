"""A separate cache folder for each test, as for the tests of the reference."""

from __future__ import annotations

from tests.reference.conftest import _private_caches

__all__ = ["_private_caches"]
