"""Property tests with the ``regional`` fixture."""

from __future__ import annotations

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
