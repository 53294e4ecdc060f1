"""The wrappers that ``capture_wrappers.py`` wrote."""

from __future__ import annotations

from pathlib import Path

from pytest_regional.harness.record import GeneratedCode, GeneratedSource

WRAPPERS = Path(__file__).parent / "wrappers"


def captured(program: str, graph: str, version: str) -> GeneratedCode:
    """Return captured Triton code as if another process had generated it."""
    text = (WRAPPERS / f"triton_{program}_{graph}_torch{version}.txt").read_text()
    return GeneratedCode((GeneratedSource(graph, (), text, True),))
