"""Property tests with the ``regional`` fixture."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies

from pytest_regional.testing import regional

SOURCE = """
    from hypothesis import given, settings, strategies as st

    @settings(max_examples=4, database=None)
    @given(n=st.integers(1, 6))
    @pytest.mark.regional_compile
    def test_any_size(regional, n):
        # A fresh start for each example: nothing loaded, the same draws.
        before = regional.counters
        x, w = pair(regional, n)
        regional.assert_parity(block, x, w)
        moved = regional.counters - before
        if regional.backend == "torch":
            assert (moved.region_compiles, moved.region_cache_hits) == (1, 0)

    @settings(max_examples=2, database=None)
    @given(n=st.integers(1, 6))
    @pytest.mark.regional_compile
    def test_vacuous(regional, n):
        regional.assert_parity(plain, *pair(regional, n))
"""


def test_no_health_check_no_deadline_and_a_reset_for_each_example(downstream):
    result = downstream(SOURCE, "--regional-backend=torch,aot_eager", "-k", "any_size")
    result.assert_outcomes(passed=2, deselected=2)


def test_a_vacuous_property_fails(downstream):
    downstream(SOURCE, "--regional-backend=torch", "-k", "vacuous").assert_outcomes(failed=1, deselected=1)


def test_without_the_option_it_is_skipped(downstream):
    downstream(SOURCE).assert_outcomes(skipped=2)


#: As docs/writing-tests.md and docs/continuous-integration.md have it.
LEAKS_ARE_ERRORS = "error::pytest_regional.RegionalLeakWarning"


@settings(max_examples=1, database=None)
@given(n=strategies.integers())
def property_test(n):
    pass


def of_the_test(phase, info):
    pass


def test_a_callback_of_a_package_is_no_leak_and_one_of_a_test_is():
    property_test()
    before = list(gc.callbacks)
    (callback,) = (one for one in before if one.__module__.startswith("hypothesis."))
    try:
        for added, leaks in (([], []), ([of_the_test], ["garbage collector"])):
            gc.callbacks.remove(callback)
            with regional("aot_eager", expects_regions=False) as r:
                gc.callbacks[:0] = [callback, *added]
            assert [leak.name for leak in r.leaks] == leaks
            assert gc.callbacks.count(callback) == 1
            assert of_the_test not in gc.callbacks
    finally:
        gc.callbacks[:] = before


@pytest.mark.slow(
    "starts processes that import torch", fast="test_a_callback_of_a_package_is_no_leak_and_one_of_a_test_is"
)
def test_what_hypothesis_installs_at_the_first_property_test_is_no_leak(downstream):
    """It adds a callback of the garbage collector, once in each process; the option is as in the documentation."""
    source = """
        import gc
        from hypothesis import given, settings, strategies as st

        @settings(max_examples=2, database=None)
        @given(n=st.integers(1, 6))
        @pytest.mark.regional_compile
        def test_any_size(regional, n):
            regional.assert_parity(torch.sin, regional.randn(n))

        @pytest.mark.regional_compile
        def test_leaks(regional):
            regional.assert_parity(torch.sin, regional.randn(2))
            gc.callbacks.append(print)

        def test_the_callback_is_still_there():
            assert any(each.__module__.startswith("hypothesis.") for each in gc.callbacks)
            assert print not in gc.callbacks
    """
    result = downstream(source, "--regional-backend=aot_eager", "-W", LEAKS_ARE_ERRORS, subprocess=True)
    result.assert_outcomes(passed=3, errors=1)
    for page in ("writing-tests.md", "continuous-integration.md"):
        assert f"-W {LEAKS_ARE_ERRORS}`" in (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    result.stdout.fnmatch_lines(
        ["*RegionalLeakWarning: test_it.py::test_leaks left 1 setting changed*garbage collector*"]
    )
