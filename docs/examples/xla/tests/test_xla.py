"""What XLA compiles of a region, and that its results are eager's."""

import pytest
import torch

from pytest_regional import VacuousTestError, region, testing

pytestmark = pytest.mark.regional_compile


def block(x, w):
    h = x @ w
    with region("mlp"):
        h = torch.nn.functional.silu(h) * h
        h = torch.erf(h)  # no translation: eager, between two parts that XLA compiles
        h = (h @ w).softmax(-1)
    return h @ w.T


def test_values_and_gradients_are_those_of_eager(regional):
    regional.assert_parity(block, regional.randn(8, 16, requires_grad=True), regional.randn(16, 16, requires_grad=True))


def test_an_operator_without_translation_divides_a_region(regional):
    record = regional.run(block, regional.randn(8, 16), regional.randn(16, 16))
    assert record.region("mlp").partitions == 2


def test_a_region_of_which_nothing_is_compiled_is_no_test_of_xla(regional):
    with pytest.raises(VacuousTestError, match="no region was compiled"), testing.regional(regional.spec) as r:
        r.compile(region(lambda x: x.erf()))(r.randn(8))
    regional.compile(region(lambda x: x.sin()))(regional.randn(8))
