"""``pre_grad_pass`` and ``fake_pg``; the others have their option's file."""

from __future__ import annotations

import pytest


def test_pre_grad_pass(downstream):
    result = downstream(
        """
        @pytest.mark.regional_compile
        def test_it(regional, pre_grad_pass):
            counting = pre_grad_pass(uuid="v1")
            with regional.expect(pre_grad_calls=1):
                regional.compile(block, pre_grad_pass=counting)(*pair(regional))
            assert counting.calls == 1
        """,
        "--regional-backend=reference,inductor",
    )
    result.assert_outcomes(passed=2)


def test_fake_pg_is_destroyed_at_teardown(downstream):
    result = downstream(
        """
        import torch.distributed as dist

        def test_it(fake_pg):
            fake_pg(world_size=4, rank=2)
            assert (dist.get_world_size(), dist.get_rank()) == (4, 2)

        def test_next():
            assert not dist.is_initialized()
        """
    )
    result.assert_outcomes(passed=2)


@pytest.mark.slow(
    "starts processes that import torch",
    fast="tests/harness/test_new_process.py::test_a_function_without_harness_gets_only_its_arguments",
)
def test_in_new_process_finds_functions_of_test_modules(downstream):
    result = downstream(
        """
        def child(regional, n):
            regional.compile(block)(*pair(regional, n))
            return n * 2

        def skipping():
            pytest.skip("not there")

        @pytest.mark.regional_compile(expects_regions=False)
        def test_value(regional):
            value, counters = regional.in_new_process(child, 3)
            assert (value, counters.region_compiles) == (6, 1)

        @pytest.mark.regional_compile(expects_regions=False)
        def test_skip(regional):
            regional.in_new_process(skipping)
        """,
        "--regional-backend=torch",
    )
    result.assert_outcomes(passed=1, skipped=1)
