"""The emulated GPU of the tests of emulation."""

from __future__ import annotations

from tests.emulation.conftest import emulation

__all__ = ["emulation"]
