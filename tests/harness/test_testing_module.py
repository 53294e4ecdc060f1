"""The plain forms of ``pytest_regional.testing``, as a unittest class uses them."""

from __future__ import annotations

import unittest

import pytest
import torch

from pytest_regional import VacuousTestError, testing
from pytest_regional.harness.codegen import CodeLookupError

from .programs import pair, product


class PlainFormsTest(unittest.TestCase):
    """No plugin, no fixture, no marker."""

    def test_everything_in_one_block(self):
        with testing.regional("torch") as r:
            x = pair(r)
            with testing.expect(region_compiles=1):
                compiled = testing.compile(product)
                compiled(*x)
            with testing.no_compile():
                compiled(*x)
            testing.restart()
            assert testing.run(product, *x).counters.region_cache_hits == 1
            assert testing.assert_parity(product, *x).ok
            assert testing.counters().region_compiles == r.counters.region_compiles
            assert testing.current() is r

    def test_a_missing_capability_skips(self):
        with (
            pytest.raises(unittest.SkipTest, match="disclaims regions"),
            testing.regional("inductor", requires=["regions"]),
        ):
            pass

    def test_a_missing_device_skips(self):
        with (
            pytest.raises(unittest.SkipTest, match="needs real_cuda, which the CPU has not"),
            testing.regional("aot_eager", device="cpu", expects_regions=False),
        ):
            testing.require_device("bf16", "real_cuda")

    def test_kernels_of_a_record_without_any(self):
        with testing.regional("aot_eager", device="cpu", expects_regions=False) as r:
            record = testing.run(product, *pair(r))
            with pytest.raises(CodeLookupError):
                testing.assert_kernels_compile(record)

    def test_vacuity(self):
        with pytest.raises(VacuousTestError), testing.regional("torch"):
            pass


def test_without_an_active_harness_the_functions_say_so():
    with pytest.raises(RuntimeError, match="no regional harness is active"):
        testing.compile(product)


def test_fake_process_group():
    import torch.distributed as dist

    with testing.fake_process_group(world_size=4, rank=1):
        assert (dist.get_world_size(), dist.get_rank()) == (4, 1)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        with pytest.raises(RuntimeError, match="already"), testing.fake_process_group():
            pass
    assert not dist.is_initialized()


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_the_world_is_refused(rank):
    with pytest.raises(ValueError, match="rank"), testing.fake_process_group(world_size=8, rank=rank):
        pass


def test_input_factories_draw_on_the_device():
    with testing.regional("aot_eager", device="cpu", expects_regions=False) as r:
        made = [
            r.randn(2),
            r.rand(2),
            r.randint(0, 5, (2,)),
            torch.randperm(2, device=r.device),
            torch.zeros(2, device=r.device),
            torch.ones(2, device=r.device),
            torch.full((2,), 3.0, device=r.device),
        ]
        made += [
            torch.empty(2, device=r.device),
            torch.arange(2, device=r.device),
            torch.linspace(0, 1, 2, device=r.device),
            r.tensor([1, 2]),
        ]
    assert all(tensor.shape == (2,) and tensor.device == r.device for tensor in made)


def test_kernels_that_nobody_could_verify_are_refused():
    with pytest.raises(ValueError, match="emulated GPU: device='cuda-emulated', not 'cpu'"):
        with testing.regional("aot_eager", "cpu", verify=5.0):
            pass
