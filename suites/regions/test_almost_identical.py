"""Regions that differ in one thing are compiled apart: a backend that shares identical ones must see the difference."""

from __future__ import annotations

import pytest
import torch

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("region_ids",))


def numbers(x):
    with in_region("one"):
        h = x.sin() * 2.0
    g = h.exp()
    with in_region("two"):
        return h, g.sin() * 3.0


def dimensions(x):
    with in_region("one"):
        rows = x.sin().sum(0)
    g = rows.exp() + x
    with in_region("two"):
        return rows, g.sin().sum(1)


def dtypes(x):
    with in_region("one"):
        h = x.sin() * 2
    g = h.to(torch.float64)
    with in_region("two"):
        return h, g.sin() * 2


def shapes(x):
    with in_region("one"):
        h = x.sin() * 2
    g = h[1:].clone()
    with in_region("two"):
        return h, g.sin() * 2


def strides(x):
    with in_region("one"):
        h = x.sin() * 2
    g = h.exp().t()
    with in_region("two"):
        return h, g.sin() * 2


def results(x):
    with in_region("one"):
        h = x.sin()
        g = h.exp()
        k = g.cos()
    y = h + k
    with in_region("two"):
        h2 = y.sin()
        g2 = h2.exp()
        k2 = g2.cos()
    return y, g2 + k2


def constants(x):
    with in_region("one"):
        h = x + torch.arange(6, device=x.device)
    g = h.exp()
    with in_region("two"):
        return h, g + torch.arange(6, 12, device=x.device)


def inputs_in_another_order(x):
    y = x.exp()
    with in_region("one"):
        h = x - y
    g = h.tanh()
    with in_region("two"):
        return g, y - g


PROGRAMS = [numbers, dimensions, dtypes, shapes, strides, results, constants, inputs_in_another_order]


@pytest.mark.quick
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_inference(regional, program):
    regional.assert_parity(program, regional.randn(6, 6))


@pytest.mark.parametrize("program", [numbers, dimensions, results], ids=lambda program: program.__name__)
def test_training(regional, program):
    regional.assert_parity(program, regional.randn(6, 6, requires_grad=True))


@pytest.mark.regional_compile(requires=("region_ids", "region_configs", "region_counts"))
def test_other_configs_are_another_compile(regional):
    """Values cannot show which configs a region was compiled with."""

    def program(x):
        with in_region("one", max_fusion_size=8):
            h = x.sin() * 2
        g = h.exp()
        with in_region("two", max_fusion_size=16):
            return h, g.sin() * 2

    record = regional.run(program, regional.randn(6, 6))

    assert record.counters["region_compiles"] == 2


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("region_ids", "share_identical", "region_counts"))
def test_regions_that_differ_in_nothing_are_shared(regional):
    """What shows that the programs above come near to being shared."""

    def program(x):
        with in_region("one"):
            h = x.sin() * 2
        g = h.exp()
        with in_region("two"):
            return h, g.sin() * 2

    record = regional.run(program, regional.randn(6, 6))

    assert record.counters["region_compiles"] == 1
