"""``pre_grad_pass`` and ``fake_pg``; the others have their option's file."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from pytest_regional.harness import _child
from pytest_regional.harness.process import Job


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


@pytest.mark.parametrize("by", ["the search path", "the file"])
def test_a_new_process_finds_functions_of_test_modules(tmp_path, monkeypatch, by):
    """Under ``--import-mode=importlib`` the folder of a test is not on the search path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = Path(tmp_path, "test_of_a_user.py")
    file.write_text("def child(n):\n    return n * 2, __name__\n")
    search_path = (str(tmp_path),) if by == "the search path" else ()
    job = Job(file.stem, "child", str(file), pickle.dumps((3,)), {"spec": "aot_eager", "device": "cpu"}, search_path)
    request = Path(tmp_path, "request")
    request.write_bytes(pickle.dumps(job))
    answer = _child._answer(request)
    sys.modules.pop(file.stem, None)
    assert answer.get("value") == (6, file.stem), answer


@pytest.mark.slow(
    "starts processes that import torch",
    fast="test_a_new_process_finds_functions_of_test_modules",
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
