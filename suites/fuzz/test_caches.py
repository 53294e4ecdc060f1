"""Any sequence of compiles, restarts, changes and damage, against a model of what a cache has to answer."""

import pytest


@pytest.mark.regional_compile(device="cuda-emulated", requires=("regions",), expects_regions=False)
def test_sequences_emulated(regional, regional_fuzz):
    """What is stored is code for a GPU, and other processes load it."""
    _skip_without_cache(regional)

    regional_fuzz.run_sequences("emulated")


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions",), expects_regions=False)
def test_sequences_interpreted(regional, regional_fuzz):
    """The same for what a backend stores around its regions, many times as fast."""
    _skip_without_cache(regional)
    if regional.device_under_test.kind == "cuda-emulated":
        pytest.skip("no code is generated in the mode 'interpret': device cpu runs it")

    regional_fuzz.run_sequences("interpret", processes=False)


def _skip_without_cache(regional):
    """Skip where neither the backend nor PyTorch keeps whole results of it."""
    support = regional.supports("outer_cache")
    if not support and not regional.supports("pytorch_outer_cache"):
        pytest.skip(f"the backend keeps no whole results: {support.reason}")
