"""Pipelines that end with the pass of a named backend, whichever one is under test."""

from __future__ import annotations

from pytest_regional.backends import registry
from pytest_regional.harness.compiling import FullGraph, full_graph_of


def ending_with(backend: str) -> FullGraph:
    """Return the pipeline of ``backend``: ``aot_eager`` compiles nothing, ``inductor`` the whole graph."""
    return full_graph_of(registry.resolve(backend))
