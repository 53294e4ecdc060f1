"""A small suite through the fixtures; ``by_hand.py`` checks the same. Not collected unless named."""

from __future__ import annotations

import pytest
from programs import mlp, pointwise, twice

pytestmark = pytest.mark.regional_compile


def test_pointwise(regional):
    regional.assert_parity(pointwise, regional.randn(7, 9))


def test_mlp(regional):
    shapes = (8, 16), (16, 32), (32, 16)
    regional.assert_parity(mlp, *(regional.randn(*shape, requires_grad=True) for shape in shapes))


def test_equal_regions_are_compiled_once(regional):
    with regional.expect(graphs=1, region_compiles=1):
        regional.compile(twice)(regional.randn(6, 6))


def test_a_second_process_would_compile_nothing(regional):
    x = regional.randn(5, 5, requires_grad=True)
    with regional.expect(cache_misses=1, cache_hits=0, region_compiles=2):
        regional.compile(pointwise)(x).sum().backward()
    regional.restart()
    with regional.expect(cache_misses=0, cache_hits=1, region_compiles=0):
        regional.compile(pointwise)(x).sum().backward()
