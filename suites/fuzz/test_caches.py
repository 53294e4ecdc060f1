"""Any history of compiles, restarts, changes and damage, against a model of what a cache has to answer."""

import functools

import pytest

from pytest_regional.fuzz.cache_machine import run_cache_machine
from pytest_regional.fuzz.lanes import in_lane


@pytest.mark.regional_compile(device="cuda-emulated", requires=("outer_cache",), expects_regions=False)
def test_histories_of_generated_code(regional, regional_fuzz):
    """What is stored is code for a GPU, and other processes load it."""
    budget = regional_fuzz.budget.part(5)

    assert run_cache_machine(regional, budget, regional_fuzz.seed) > 0


@pytest.mark.regional_compile(requires=("regions", "outer_cache"), expects_regions=False)
def test_histories_of_structure(regional, regional_fuzz):
    """The same for what a backend stores around its regions, many times as fast."""
    if regional.device_under_test.kind == "cuda-emulated":
        pytest.skip("no code is generated in the lane 'structure': device cpu runs it")
    lane = functools.partial(in_lane, regional, "structure")

    assert run_cache_machine(regional, regional_fuzz.budget, regional_fuzz.seed, processes=False, scope=lane) > 0
